"""Forks vLLM servers from one process that imported vLLM once; none outlives its requester.

    python fork_server_script.py     standard input: a socket that carries requests

Importing vLLM takes a core ten seconds, and a server does it twice: for itself and for its engine.
Forked servers start with all of it in memory, and share that memory.

A request is one packet: {"arguments": [...], "log": PATH, "variables": {...}} and, with it, one end
of a socket pair; the variables are set in the server's environment before it looks for a GPU.
That pair shows each side that the other lives. The kernel closes the requester's end however it
dies, SIGKILL included; then, or when the server ends by itself, the server's whole process group is
ended, and then the other end closes. This process itself ends when no more requests can come.

A script of its own: nothing else of this project is imported.
"""

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys

GRACE_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1
_PACKET_BYTES = 2**17


def serve_requests() -> list[str] | None:
    """Fork a server for every request that comes.

    Returns:
        In each server: its arguments. In this process: None, when no more requests can come.
    """
    control = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    while True:
        packet, ends, _, _ = socket.recv_fds(control, _PACKET_BYTES, 1)
        if not packet:
            return None
        if os.fork() == 0:
            control.close()
            request = json.loads(packet)
            _leave_streams(request["log"])
            os.environ.update(request["variables"])
            _fork_guarded(ends[0])
            return request["arguments"]
        os.close(ends[0])


def _leave_streams(log: str) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    written = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for ours, standard in ((nothing, 0), (written, 1), (written, 2)):
        os.dup2(ours, standard)


def _fork_guarded(liveness: int) -> None:
    """Returns in a child alone; this process stays behind as its guard and never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        os.close(liveness)
        os.setpgid(0, 0)
        # Covers the guard itself being killed; it has one thread, so this is the right parent.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    # Both set it: the second to come finds it done.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpgid(child, child)
    ended = os.pidfd_open(child)
    if ended not in _wait_readable(liveness, ended):
        os.kill(child, signal.SIGTERM)
        _wait_readable(ended, seconds=GRACE_SECONDS)
    # The server has ended or was told to; this is for what it started and left behind.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os._exit(0)


def _wait_readable(*files: int, seconds: float | None = None) -> list[int]:
    return select.select(files, (), (), seconds)[0]


def main() -> None:
    """Import all that a server needs, then fork servers; in a fork, be the server."""
    # Transformers and vLLM import these where they find them, for a second or two; no server needs
    # them.
    for package in ("sklearn", "scipy"):
        sys.modules[package] = None  # pyright: ignore[reportArgumentType]
    from vllm.entrypoints.launchers.api_server import entry
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        _fork_cpu_engines()
    arguments = serve_requests()
    if arguments is not None:
        sys.argv = ["vllm", *arguments]
        entry.main()


def _fork_cpu_engines() -> None:
    """Let a server fork its engine: vLLM would spawn it on a CPU, importing everything again.

    It spawns because a forked child cannot use OpenMP threads of its parent; a server computes
    nothing before it has its engine, and so has none.
    """
    import importlib
    import multiprocessing

    import vllm.v1.engine.utils as launching

    importlib.import_module("vllm.v1.worker.cpu_worker")  # which the engine would import
    forking = multiprocessing.get_context("fork")
    launching.get_mp_context = lambda: forking  # pyright: ignore[reportPrivateImportUsage]


if __name__ == "__main__":
    main()
