"""vLLM server processes of our own: engines sample from them, a local coach judges by one."""
