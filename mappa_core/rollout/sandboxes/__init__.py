"""Where model-written Python runs.

    choose ─▶ client ══socket══▶ warden ──fork──▶ supervisor ──exec──▶ program
    (probe)   (our process)      (one)            (one per run)        (in its tier's walls)

The warden is a small process started once; for each run it forks a supervisor, which makes a room
(an empty workspace of bounded size), starts the program, watches it, ends its whole tree, and
collects its files. A supervisor lives as long as its socket: when the caller is cancelled or
killed, the socket closes and the run is taken down. What each tier holds is in docs/security.md.
"""
