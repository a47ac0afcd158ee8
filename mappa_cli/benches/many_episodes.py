"""`mappa bench many-episodes`: what one process pays for thousands of episodes that only wait.

    rollout of a real run ─▶ HTTP ─▶ 2 stub engines, in processes of their own, 200 ms an answer
      tokens, team, grading, store as ever; Prefect has the flow and no task runs;
      programs are answered without being run; no traces

    mappa bench many-episodes phase=train episodes=2000     the rule coach scores every action

cost      seconds of a core for each request, all threads of this process, Prefect's client too
memory    the highest of the last round over the highest of the first that was measured
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

from pydantic import TypeAdapter, ValidationError

from mappa_cli.benches import bench_options
from mappa_cli.benches.metering import with_methods
from mappa_cli.benches.report import BenchReport, Figure, aimed
from mappa_core.app.config import TrainConfig
from mappa_core.app.config_files import load_config
from mappa_core.app.runs import prepare_run, stored_run
from mappa_core.app.services import Services, open_services, use
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Message, Phase
from mappa_core.core.records.tools import Limits, ToolResult, ToolStatus
from mappa_core.core.settings import Settings
from mappa_core.models.resolve import resolve_model
from mappa_core.models.tokenizer import ChatTokenizer

EPISODES = "2000"
SAMPLES = 4
"""Episodes of one problem."""
ROUNDS = 4
"""The first one warms up."""
SERVERS = 2
LATENCY_SECONDS = 0.2
REPLY = (
    "We add what is given and check the units, step by step, before the answer is said.\n"
    "```python\nprint(84)\n```\nThe program agrees, and the answer is \\boxed{84}."
)
AIM_SHARE = 0.2
"""Of one core, at 100 requests a second."""
AIM_MEMORY = 1.05
LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of all episodes."""

    requests: int
    failed: int
    unscored: int
    """Actions of training without a score."""
    seconds: float
    core_seconds: float
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What can be chosen on the command line, as `NAME=VALUE`."""

    episodes: int
    """At once."""
    phase: Phase
    """`held_out` asks no coach; in `train` the rules score every action."""


def bench_many_episodes(overrides: Sequence[str], settings: Settings) -> BenchReport:
    """Play rounds of 2,000 episodes at once on stub engines.

    Raises:
        ConfigError: An option does not exist, or its value does not.
    """
    from mappa_cli.servers import prefect_server

    own = [each for each in overrides if "." not in each.partition("=")[0]]
    options = _options(own)
    with prefect_server(settings):
        dotted = [each for each in overrides if each not in own]
        return asyncio.run(_measured(options, dotted, settings))


def _options(own: Sequence[str]) -> Options:
    given = bench_options("many-episodes", own, episodes=EPISODES, phase="held_out")
    try:
        options = TypeAdapter(Options).validate_python(given)
    except ValidationError as error:
        raise ConfigError(f"bench many-episodes: {error.errors()[0]['msg']}") from error
    if options.episodes < SAMPLES or options.episodes % SAMPLES:
        raise ConfigError(f"episodes={options.episodes} is no multiple of {SAMPLES}")
    return options


async def _measured(options: Options, overrides: Sequence[str], settings: Settings) -> BenchReport:
    base = load_config(None, ())
    model = str(resolve_model(base.model, settings.models))
    # With the template's own words around it, which a team does not mind.
    tokens = ChatTokenizer(model).render((Message(role="user", content=REPLY),))
    async with _stubs(model, tokens) as urls:
        config = load_config(None, (*_settings(urls, options), *overrides))
        trains = options.phase == "train"
        async with open_services(config, settings, trains=trains) as port:
            rounds = await _played(port, config, options.phase)
    found = figures(options, rounds[1:])
    return BenchReport(bench="many-episodes", figures=found)


def _settings(urls: Sequence[str], options: Options) -> tuple[str, ...]:
    problems = options.episodes // SAMPLES
    return (
        "name=bench",
        f"engine.urls=[{','.join(urls)}]",
        f"rollout.concurrency={options.episodes}",
        "rollout.granularity=rollout",
        "tracking.trace_share=0",
        f"problems.held_out_size={problems}",
        f"evaluation.samples={SAMPLES}",
        f"problems.train_size={problems}",
        f"rollout.problems={problems}",
        f"rollout.episodes_per_problem={SAMPLES}",
        f"rollout.iterations={ROUNDS}",
        # Nothing learns here.
        "learner.deployment=update/none",
    )


@asynccontextmanager
async def _stubs(model: str, tokens: Sequence[int]) -> AsyncGenerator[tuple[str, ...]]:
    async with AsyncExitStack() as stack:
        stubs = [_stub(model, tokens) for _ in range(SERVERS)]
        yield tuple([await stack.enter_async_context(stub) for stub in stubs])


@asynccontextmanager
async def _stub(model: str, tokens: Sequence[int]) -> AsyncGenerator[str]:
    """A stub engine as a process of its own, which costs this one nothing."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mappa_cli.benches.engine_stub"),
        *("--model", model, "--latency", str(LATENCY_SECONDS)),
        *("--tokens", *map(str, tokens)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.kill()
        await process.wait()


async def _played(port: Services, config: TrainConfig, phase: Phase) -> list[Round]:
    """Play rounds, as evaluations after 1, 2, ... updates of the same problems or as iterations."""
    stored = await asyncio.to_thread(stored_run, port, config, None)
    run = await asyncio.to_thread(prepare_run, port, stored, config)
    with use(replace(port, sandbox=with_methods(port.sandbox, run=_ran))):
        numbers = range(1, ROUNDS + 1)
        return [await _round(port, run.id, phase, number, config) for number in numbers]


async def _round(
    port: Services, run_id: UUID, phase: Phase, number: int, config: TrainConfig
) -> Round:
    # Prefect reads its environment when it is imported.
    from flows.rollout import rollout

    started, core = time.perf_counter(), time.process_time()
    async with _highest_memory() as highest:
        await rollout(run_id, phase, number, 0, config)
    seconds, core_seconds = time.perf_counter() - started, time.process_time() - core
    counted = await asyncio.to_thread(
        port.store.figures.get_iteration_figures, run_id, phase, number
    )
    return Round(
        requests=sum(agent.actions for agent in counted.agents),
        failed=counted.failed,
        unscored=sum(agent.unscored for agent in counted.agents) if phase == "train" else 0,
        seconds=seconds,
        core_seconds=core_seconds,
        peak_bytes=highest[0],
    )


async def _ran(code: str, workspace: Path | None, limits: Limits) -> ToolResult:  # noqa: ARG001
    """Answer a program without running it."""
    return ToolResult(
        code=code,
        status=ToolStatus.OK,
        exit_code=0,
        stdout="84\n",
        stderr="",
        stdout_omitted_bytes=0,
        stderr_omitted_bytes=0,
        seconds=0.0,
        cpu_seconds=0.0,
        peak_memory_bytes=0,
        tier="none",
    )


@asynccontextmanager
async def _highest_memory() -> AsyncGenerator[list[int]]:
    """Fill in, at the end of the block, the most memory that this process had in it."""
    highest = [_resident_bytes()]

    async def look() -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            highest[0] = max(highest[0], _resident_bytes())

    looking = asyncio.create_task(look())
    try:
        yield highest
    finally:
        looking.cancel()


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def figures(options: Options, rounds: Sequence[Round]) -> tuple[Figure, ...]:
    """Compare what rounds took with the aims; that of a core is without a coach."""
    requests = sum(each.requests for each in rounds)
    core_seconds = sum(each.core_seconds for each in rounds)
    seconds = sum(each.seconds for each in rounds)
    grown = rounds[-1].peak_bytes / rounds[0].peak_bytes
    name, share = "a core for 100 requests/s", 100 * core_seconds / requests
    cost = aimed(name, share, "cores", at_most=AIM_SHARE)
    if options.phase == "train":
        cost = Figure(name=name, value=share, unit="cores")
    return (
        Figure(name="episodes at once", value=options.episodes, unit="episodes"),
        Figure(name="requests", value=requests, unit="requests"),
        Figure(name="episodes that failed", value=sum(each.failed for each in rounds), unit=""),
        Figure(name="without a score", value=sum(each.unscored for each in rounds), unit="actions"),
        Figure(name="rate reached", value=requests / seconds, unit="requests/s"),
        cost,
        Figure(name="highest memory", value=rounds[-1].peak_bytes / 2**20, unit="MiB"),
        aimed("the same over the first round's", grown, "ratio", at_most=AIM_MEMORY),
    )
