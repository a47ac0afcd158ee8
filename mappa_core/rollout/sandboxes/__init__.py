"""Where model-written Python runs.

    choose ─▶ local ══socket══▶ fork_server ──fork──▶ run ──exec──▶ program
    (probe)   (our process)     (one)                 (a supervisor   (in its tier's walls)
           ─▶ docker, sandbox_fusion ═▶ entrypoint ─▶  for each run)

The folder `supervisor` is what runs beside a program: it makes an empty workspace of bounded size,
starts the program, watches it, kills its whole tree, and collects its files. A supervisor lives as
long as its connection: when the caller is cancelled or killed, the connection closes and the run is
taken down. Elsewhere than here it is sent along (`remote`). What each tier holds is in
docs/security.md.
"""
