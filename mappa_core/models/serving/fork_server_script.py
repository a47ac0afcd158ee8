"""Forks vLLM servers from one process that imported vLLM once; none outlives its requester.

    python fork_server_script.py [LISTENER]     standard input: a socket that carries requests

Importing vLLM takes a core ten seconds, and a server does it twice: for itself and for its engine.
Forked servers start with all of it in memory, and share that memory. Who connects to LISTENER, a
socket's number, may ask as well, if its first packet, the environment that its servers are to have,
has all that is in this process's, but for PATH: it is answered "yes", or "no".

A request is one packet: {"arguments": [...], "directory": PATH, "log": PATH, "variables": {...}}
and, with it, one end of a socket pair. The server runs in that directory; the variables are set in
its environment before it looks for a GPU.
That pair shows each side that the other lives. The kernel closes the requester's end however it
dies, SIGKILL included; then, or when the server ends by itself, the server's whole process group is
ended, and then the other end closes. This process itself ends when no more requests can come.

A script of its own: of this project it imports only what its servers need, and when they do.
"""

import contextlib
import ctypes
import fcntl
import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GRACE_SECONDS = 5.0
_NICENESS = 10
"""Of servers on a CPU: of two busy threads on a core the server's has a tenth."""
_PROVIDER = "mappa"
"""vLLM's word for whose an operation's kernel is."""
_PR_SET_PDEATHSIG = 1
_PACKET_BYTES = 2**17
_LATER = (
    *("vllm.v1.engine.async_llm", "vllm.v1.engine.core", "vllm.v1.worker.cpu_worker"),
    *("vllm.v1.attention.backends.cpu_attn", "vllm.v1.core.sched.scheduler"),
    *("vllm.model_executor.layers.quantization.online.base", "vllm.utils.cpu_triton_utils"),
    *("vllm.distributed.elastic_ep.elastic_execute", "vllm.renderers.hf"),
    *("vllm.entrypoints.generate.api_router", "vllm.entrypoints.openai.responses.api_router"),
    *("vllm.entrypoints.scale_out.factories", "vllm.entrypoints.serve.lora.api_router"),
    *("uvicorn.protocols.websockets.auto", "uvicorn.protocols.http.auto"),
    "mappa_core.models.serving.checkpoint_worker",
)
"""What every server and its engine on a CPU would import once they are forked."""
_PROJECT = str(Path(__file__).resolve().parents[3])
_needed = {name: value for name, value in os.environ.items() if name != "PATH"}
"""Of the environment as it was given, to which libraries add, what has to be in a server's."""


def serve_requests(listening: str | None = None) -> list[str] | None:
    """Fork a server for every request that comes.

    Args:
        listening: Number of the socket at which others connect.

    Returns:
        In each server: its arguments. In this process: None, when standard input is closed.
    """
    control = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    listener = None if listening is None else socket.socket(fileno=int(listening))
    here = [control] if listener is None else [control, listener]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    gc.enable()
    for packet, ends in _requests(control, listener, here):
        if os.fork() == 0:
            for each in here:
                each.close()
            request = json.loads(packet)
            os.chdir(request["directory"])
            _leave_streams(request["log"])
            os.environ.update(request["variables"])
            _fork_guarded(ends[0])
            return request["arguments"]
        for end in ends:
            os.close(end)
    return None


def _requests(
    control: socket.socket, listener: socket.socket | None, here: list[socket.socket]
) -> Iterator[tuple[bytes, list[int]]]:
    """Read requests, with what came along, until `control` is closed.

    `here` is kept: all sockets that are open.
    """
    while True:
        for each in select.select(here, (), ())[0]:
            if listener is not None and each is listener:
                here += _accepted(listener)
                continue
            packet, ends = _packet(each)
            if packet:
                yield packet, ends
            elif each is control:
                return
            else:
                here.remove(each)
                each.close()


def _accepted(listener: socket.socket) -> list[socket.socket]:
    """Take one that asks, if its servers are to have this environment."""
    asks, _ = listener.accept()
    asks.settimeout(GRACE_SECONDS)
    packet, _ = _packet(asks)
    asks.settimeout(None)
    fits = bool(packet) and _needed.items() <= json.loads(packet).items()
    with contextlib.suppress(OSError):
        asks.send(b"yes" if fits else b"no")
    if fits:
        return [asks]
    asks.close()
    return []


def _packet(asks: socket.socket) -> tuple[bytes, list[int]]:
    """Read one packet and what comes with it; nothing where the other side has ended."""
    try:
        packet, ends, _, _ = socket.recv_fds(asks, _PACKET_BYTES, 1)
    except OSError:
        return b"", []
    return packet, ends


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
    # By Python's threshold looking for garbage takes a fifth of the time.
    gc.disable()
    if _PROJECT not in sys.path:
        sys.path.insert(0, _PROJECT)
    # Transformers and vLLM import these where they find them, for a second or two; no server needs
    # them.
    for package in ("sklearn", "scipy"):
        sys.modules[package] = None  # pyright: ignore[reportArgumentType]
    from vllm.entrypoints.launchers.api_server import entry
    from vllm.platforms import current_platform

    faster: tuple[str, ...] = ()
    if current_platform.is_cpu():
        _fork_cpu_engines()
        _compute_in_turns()
        _lower_priority()
        faster = (*_cache_in_small_blocks(), *_compute_norms_at_once())
    arguments = serve_requests(*sys.argv[1:])
    if arguments is not None:
        sys.argv = ["vllm", *arguments, *faster]
        entry.main()


def _cache_in_small_blocks() -> tuple[str, ...]:
    """Have vLLM share prompts in blocks of 16 tokens where its kernels compute those.

    Prompts share what fills whole blocks, and with blocks of 32 a server reads half of what short
    ones have in common again. On x86 without AMX vLLM has kernels for 16, and offers 32 alone.

    Returns:
        The flag with which a server uses them.
    """
    import torch
    from vllm.v1.attention.backend import MultipleOf
    from vllm.v1.attention.backends import cpu_attn

    kernels_of: Any = cpu_attn._get_attn_isa  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    kernels = [kernels_of(torch.bfloat16, size) for size in (32, 16)]
    if kernels != ["vec", "vec16"]:
        return ("--block-size", "32")

    def multiples_of_16(_: object = None) -> list[Any]:
        return [MultipleOf(16)]

    own: Any = cpu_attn.CPUAttentionBackend
    own.get_supported_kernel_block_sizes = staticmethod(multiples_of_16)
    return ("--block-size", "16")


def _compute_norms_at_once() -> tuple[str, ...]:
    """Have vLLM compute a norm by its own kernel, which it has for CPUs and uses on GPUs alone.

    In torch it is eight operations, each of which wakes threads.

    Returns:
        The flag with which a server does.
    """
    import torch
    from torch import Tensor
    from vllm import ir
    from vllm.platforms import current_platform

    kernels: Any = torch.ops._C  # noqa: SLF001

    def fits(x: Tensor, weight: Tensor | None) -> bool:
        return weight is not None and weight.dtype == x.dtype and x.is_contiguous()

    # vLLM compares names, types and defaults with those of its own functions.
    # ruff: disable[ARG001]
    def fits_norm(
        x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> bool:
        return variance_size is None and fits(x, weight)

    def norm(
        x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> Tensor:
        normed = torch.empty_like(x)
        kernels.rms_norm(normed, x, weight, epsilon)
        return normed

    def fits_sum(
        x: Tensor,
        x_residual: Tensor,
        weight: Tensor | None,
        epsilon: float,
        variance_size: int | None = None,
    ) -> bool:
        return variance_size is None and fits(x, weight) and fits(x_residual, weight)

    def norm_of_sum(
        x: Tensor,
        x_residual: Tensor,
        weight: Tensor | None,
        epsilon: float,
        variance_size: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        kernels.fused_add_rms_norm(x, x_residual, weight, epsilon)
        return x, x_residual

    # ruff: enable[ARG001]
    current_platform.import_kernels()
    ir.ops.rms_norm.register_impl(_PROVIDER, supports_args=fits_norm)(norm)
    of_sum = ir.ops.fused_add_rms_norm
    of_sum.register_impl(_PROVIDER, supports_args=fits_sum, inplace=True)(norm_of_sum)
    first = {"rms_norm": [_PROVIDER], "fused_add_rms_norm": [_PROVIDER]}
    return ("--ir-op-priority", json.dumps(first))


def _lower_priority() -> None:
    """Lower the priority of every server to come, so that whoever shares their cores waits less.

    A server has work for all cores at any time, and a run's own process, its store and sandboxes
    hand it the next: the sooner they are done, the more of it there is at once.
    """
    os.nice(_NICENESS)
    # Where Linux groups processes by session, a priority counts within the group alone. A group
    # whose priority cannot be changed, or none, costs speed and nothing else.
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_NICENESS))


def _fork_cpu_engines() -> None:
    """Let a server fork its engine: vLLM would spawn it on a CPU, importing everything again.

    It spawns because a forked child cannot use OpenMP threads of its parent; a server computes
    nothing before it has its engine, and so has none.
    """
    import importlib
    import multiprocessing

    import vllm.v1.engine.utils as launching

    for module in _LATER:
        importlib.import_module(module)
    _share_gloo_thread()
    forking = multiprocessing.get_context("fork")
    launching.get_mp_context = lambda: forking  # pyright: ignore[reportPrivateImportUsage]


def _compute_in_turns() -> None:
    """Have servers that share cores compute one step at a time, where they are told a turn.

    Two that compute at once wait for each other's threads at every operation: a step of a few
    sequences took six times as long beside another server's, and three times the cores.
    """
    from vllm.v1.engine import core

    from mappa_core.models.serving.fork_server import TURN

    own: Any = core.EngineCoreProc
    step = own._process_engine_step  # noqa: SLF001
    locks = os.memfd_create("turns")

    def in_turn(self: Any) -> bool:  # noqa: ANN401
        number = self.vllm_config.additional_config.get(TURN)
        if number is None:
            return step(self)
        # The kernel takes both back from a server that is killed.
        turn, next_turn = 2 * number, 2 * number + 1
        # Whoever waits for the turn is the next to have it, before the one that has it now.
        fcntl.lockf(locks, fcntl.LOCK_EX, 1, next_turn)
        fcntl.lockf(locks, fcntl.LOCK_EX, 1, turn)
        fcntl.lockf(locks, fcntl.LOCK_UN, 1, next_turn)
        try:
            # What has come meanwhile is computed along.
            self._process_input_queue()
            return step(self)
        finally:
            fcntl.lockf(locks, fcntl.LOCK_UN, 1, turn)

    own._process_engine_step = in_turn  # noqa: SLF001


def _share_gloo_thread() -> None:
    """Have an engine's process groups share the thread that waits for their connections.

    vLLM makes 13 groups, of one process each, and each has a thread that looks 100 times a second.
    """
    from torch.distributed import distributed_c10d

    own: Any = distributed_c10d.ProcessGroupGloo
    devices: list[object] = []

    class SharedGloo(own):
        def __init__(self, store: object, rank: int, size: int, timeout: object) -> None:
            # torch offers no public way to give a group its device.
            options = own._Options()  # noqa: SLF001
            devices.extend(() if devices else (own.create_default_device(),))
            options._devices, options._timeout = devices, timeout  # noqa: SLF001
            super().__init__(store, rank, size, options)

    distributed_c10d.ProcessGroupGloo = SharedGloo  # pyright: ignore[reportAttributeAccessIssue]


if __name__ == "__main__":
    main()
