"""vLLM as an engine: servers of its own, talked to over HTTP on a Unix socket."""
