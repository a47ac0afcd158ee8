"""vLLM for real: the GPU's way of serving, servers that do not start, parents that are killed."""

import asyncio
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from peft import PeftModel

from mappa_core.core.errors import EngineError
from mappa_core.core.ids import content_id
from mappa_core.core.records.episodes import Completion, GenerationRequest, PolicyVersion, Sampling
from mappa_core.models.serving.server import ForkedServers
from mappa_core.models.weights import load_base
from mappa_core.rollout.config import EngineConfig
from mappa_core.rollout.engines.base import EngineSetup
from mappa_core.rollout.engines.vllm.engine import VllmEngine
from mappa_core.rollout.engines.vllm.fork_server import open_fork_server
from mappa_core.rollout.engines.vllm.plain import sample_plainly
from tests.builders import make_policy, make_run
from tests.tiny_model import save_adapter, save_tiny_model

AGENTS = ("solver", "executor", "verifier")
CONFIG = EngineConfig(device="cpu", dtype="float32", max_model_length=512, kv_cache_gib=0.5)
PROMPT = (1, 4093, 198, 1780, 314, 216, 39, 1232, 216, 37, 47, 2, 198, 1, 520, 9531, 198)

# Starts an engine, says so, and waits to be killed.
PARENT = """
import asyncio, sys
from pathlib import Path
from mappa_core.rollout.engines.base import EngineSetup
from mappa_core.models.serving.server import ForkedServers
from mappa_core.rollout.engines.vllm.engine import VllmEngine
from mappa_core.rollout.engines.vllm.fork_server import open_fork_server
from mappa_core.rollout.config import EngineConfig

async def main(model, directory):
    config = EngineConfig(device="cpu")
    setup = EngineSetup(
        config=config, model=model, agents=("solver",), end_token_ids=(2,),
        work_directory=directory / "work", log_directory=directory / "logs",
    )
    engine = VllmEngine(setup, ForkedServers(open_fork_server(config, setup.log_directory)))
    await engine.start()
    print("started", flush=True)
    await asyncio.sleep(600)

asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
"""


def make_engine(
    model: Path, directory: Path, config: EngineConfig = CONFIG, *, sleeps: bool = False
) -> VllmEngine:
    setup = EngineSetup(
        config=config,
        model=model,
        agents=AGENTS,
        end_token_ids=(0, 2),
        work_directory=directory / "work",
        log_directory=directory / "logs",
        lora_rank=8,
        sleeps=sleeps,
    )
    return VllmEngine(setup, ForkedServers(open_fork_server(config, setup.log_directory)))


def policy(agent: str, step: int, adapter: Path | None) -> PolicyVersion:
    made = make_policy(make_run(), agent, step)
    return replace(made, adapter_uri=None if adapter is None else str(adapter))


def request(policy: PolicyVersion) -> GenerationRequest:
    return GenerationRequest(
        policy=policy,
        prompt_token_ids=PROMPT,
        sampling=Sampling(temperature=1.0, top_p=1.0, max_tokens=16),
        seed=11,
    )


def difference(model: torch.nn.Module, completion: Completion) -> float:
    sampled = completion.token_ids
    with torch.inference_mode():
        logits = model(torch.tensor([PROMPT + sampled])).logits[0, len(PROMPT) - 1 : -1]
    expected = logits.log_softmax(-1).gather(1, torch.tensor(sampled)[:, None])[:, 0]
    return float((expected - torch.tensor(completion.logprobs)).abs().mean())


def adapted(model: Path, adapter: Path) -> torch.nn.Module:
    return PeftModel.from_pretrained(load_base(model, torch.float32, "cpu"), str(adapter)).eval()


@pytest.mark.slow  # two engines, one after the other
def test_vllm_by_its_own_python_api_samples_what_its_servers_do(
    real_model: Path, tmp_path: Path
) -> None:
    """So that the bench of rollouts compares the same work.

    Its norms are torch's, and its blocks have 32 tokens: none of those that prompts share here
    after the third is whole in both.
    """
    alone = policy("solver", 0, None)
    requests = [
        replace(request(alone), seed=seed, prompt_token_ids=(*PROMPT * 7, 100 + seed))
        for seed in range(6)
    ]

    async def served() -> tuple[EngineSetup, list[Completion]]:
        engine = make_engine(real_model, tmp_path)
        await engine.start()
        try:
            await engine.load(alone)
            return engine.setup, await asyncio.gather(*map(engine.generate, requests))
        finally:
            await engine.close()

    setup, completions = asyncio.run(served())
    setup = replace(setup, agents=("solver",))
    first, second = sample_plainly(setup, (requests[:4], requests[4:]))
    assert (*first.tokens, *second.tokens) == tuple(each.token_ids for each in completions)
    assert min(first.seconds, second.seconds) > 0
    with pytest.raises(EngineError, match="by its own Python API sampled nothing: "):
        sample_plainly(replace(setup, model=tmp_path / "absent"), (requests,))


@pytest.mark.slow  # the GPU's way of serving; on a CPU its prefill takes a minute
def test_one_server_serves_every_agents_adapter(real_model: Path, tmp_path: Path) -> None:
    adapters = [save_adapter(real_model, tmp_path / f"a{n}", seed=n, size=0.01) for n in (1, 2)]
    solver, executor, verifier = (
        policy("solver", 0, None),
        policy("executor", 1, adapters[0]),
        policy("verifier", 1, adapters[1]),
    )
    newer = policy("executor", 2, adapters[1])

    async def scenario() -> list[Completion]:
        engine = make_engine(
            real_model, tmp_path, CONFIG.model_copy(update={"serving": "adapters"})
        )
        await engine.start()
        try:
            servers = [p for p in psutil.Process().children(recursive=True) if is_engine(p)]
            assert len(servers) == 1
            await asyncio.gather(*map(engine.load, (solver, executor, verifier)))
            together = await asyncio.gather(
                *(engine.generate(request(policy)) for policy in (solver, executor, verifier))
            )
            await engine.load(newer)
            with pytest.raises(EngineError, match="asked for at step 1 and the engine serves step"):
                await engine.generate(request(executor))
            return [*together, await engine.generate(request(newer))]
        finally:
            await engine.close()

    base, first, second, swapped = asyncio.run(scenario())
    assert difference(load_base(real_model, torch.float32, "cpu"), base) < 1e-4
    assert difference(adapted(real_model, adapters[0]), first) < 1e-4
    assert difference(adapted(real_model, adapters[1]), second) < 1e-4
    assert difference(adapted(real_model, adapters[1]), swapped) < 1e-4
    assert difference(adapted(real_model, adapters[0]), swapped) > 1e-2


def test_a_server_that_cannot_start_names_its_log(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "no-model", tmp_path)
    # Other tests' servers may live as long as the session.
    before = set(psutil.Process().children(recursive=True))
    started = time.monotonic()
    with pytest.raises(EngineError, match=r"ended while starting: read .*vllm-\w+\.log"):
        asyncio.run(engine.start())
    assert time.monotonic() - started < CONFIG.start_seconds
    assert (tmp_path / "logs" / "vllm-solver.log").stat().st_size > 0
    assert set(psutil.Process().children(recursive=True)) <= before


def test_no_server_outlives_a_killed_parent(real_model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(real_model), str(tmp_path)]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": folder}
        ) as parent,
        ExitStack() as ending,
    ):
        ending.callback(parent.kill)  # a failure here would wait for it otherwise
        assert parent.stdout is not None
        assert parent.stdout.readline() == "started\n"
        # All sockets lie in the server's own folder, with which they go away.
        sockets = [path.parent for path in Path(folder).rglob("*") if path.is_socket()]
        assert len(sockets) > 1
        assert {each.name[:11] for each in sockets} == {"mappa-vllm-"}
        family = psutil.Process(parent.pid).children(recursive=True)
        (engine,) = filter(is_engine, family)
        tasks = Path(f"/proc/{engine.pid}/task").glob("*/comm")
        assert [task.read_text() for task in tasks].count("gloo_tcp_loop\n") == 1
        log = (tmp_path / "logs" / "vllm-solver.log").read_text()
        amx = torch.cpu.get_capabilities().get("amx_tile", False)
        small = platform.machine() == "x86_64" and not amx
        assert f"'block_size': {16 if small else 32}," in log
        assert "rms_norm=['mappa'], fused_add_rms_norm=['mappa']" in log
        # The run itself, its store and its sandboxes come first.
        assert engine.nice() == min(19, psutil.Process(parent.pid).nice() + 10)
        group = Path(f"/proc/{engine.pid}/autogroup")
        assert not group.exists() or group.read_text().endswith(" nice 10\n")
        parent.send_signal(signal.SIGKILL)
        gone, alive = psutil.wait_procs(family, timeout=15)
    assert not alive
    assert len(gone) == len(family)


def is_engine(process: psutil.Process) -> bool:
    return "VLLM::EngineCore" in process.cmdline()


@pytest.mark.gpu
def test_a_sleeping_server_leaves_the_gpu_and_wakes_with_its_weights(
    real_model: Path, tmp_path: Path
) -> None:
    async def scenario() -> None:
        config = EngineConfig(device="cuda", max_model_length=512)
        engine = make_engine(real_model, tmp_path, config, sleeps=True)
        await engine.start()
        try:
            await engine.load(solver := policy("solver", 0, None))
            before = await engine.generate(request(solver))
            held = torch.cuda.mem_get_info()[0]
            await engine.sleep()
            assert torch.cuda.mem_get_info()[0] > held + 10 * 2**30
            await engine.wake()
            assert (await engine.generate(request(solver))).token_ids == before.token_ids
        finally:
            await engine.close()

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("serving", ["adapters", "merged"])
def test_replicas_serve_the_same_policy_and_keep_their_problems(
    tmp_path: Path, serving: str
) -> None:
    base = save_tiny_model(tmp_path / "model", hidden=256)
    adapters = {
        agent: save_adapter(base, tmp_path / agent, seed=seed, size=0.1)
        for seed, agent in enumerate(AGENTS[:2])
    }
    setup = EngineSetup(
        config=CONFIG.model_copy(update={"serving": serving, "max_model_length": 128}),
        model=base,
        agents=AGENTS[:2],
        end_token_ids=(2,),
        work_directory=tmp_path / "work",
        log_directory=tmp_path / "logs",
        lora_rank=8,
        replicas=2,
    )

    async def scenario() -> dict[str, list[Completion]]:
        engine = VllmEngine(
            setup, ForkedServers(open_fork_server(setup.config, setup.log_directory))
        )
        await engine.start()
        try:
            found: dict[str, list[Completion]] = {}
            for agent, adapter in adapters.items():
                await engine.load(loaded := policy(agent, 1, adapter))
                asked = [replace(request(loaded), prompt_token_ids=(1, 5, 9)) for _ in range(4)]
                problems = [content_id("problem", number) for number in (0, 1, 0, 1)]
                pairs = zip(asked, problems, strict=True)
                given = (engine.generate(replace(one, problem_id=of)) for one, of in pairs)
                found[agent] = list(await asyncio.gather(*given))
            return found
        finally:
            await engine.close()

    found = asyncio.run(scenario())
    servers = 2 if serving == "adapters" else 4
    assert len(list((tmp_path / "logs").glob("vllm-*-*.log"))) == servers
    for answers in found.values():
        # The two replicas have the same weights, so the same seed draws the same tokens.
        assert len({answer.token_ids for answer in answers}) == 1
    assert found[AGENTS[0]][0].token_ids != found[AGENTS[1]][0].token_ids
