"""One run from start to end, in a process of its own; standard library alone.

    fork_server | entrypoint ─▶ run ─▶ run_folder ─▶ program ─▶ files
                                                       └─ in a tier: bubblewrap, landlock, none

`remote` ships this folder to where MAPPA is not installed, so nothing here imports a package.
"""
