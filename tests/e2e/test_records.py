"""What a run leaves behind joins up: rows, tracker, registry, Prefect."""

import asyncio
import re
import time
from collections import Counter
from dataclasses import replace
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterName,
    FlowRunFilterParentFlowRunId,
)
from prefect.client.schemas.objects import StateType

from flows.pages import REPORT, key_of
from flows.train import train
from mappa_core.app import recording
from mappa_core.app.config import TrainConfig
from mappa_core.app.config_files import with_overrides
from mappa_core.app.services import Services, use
from mappa_core.audit.config import AuditConfig
from mappa_core.audit.store import AuditStore
from mappa_core.core import ids
from mappa_core.core.records.runs import Run
from mappa_core.core.records.scores import CoachScore
from mappa_core.core.settings import SERVED_PAGES
from mappa_core.store.store import Store
from tests.e2e.artifacts import artifacts_of
from tests.e2e.conftest import MakeServices
from tests.e2e.toy import Caller, Cave
from tests.fakes.tracking import MemoryRegistry, MemoryTracker

FLOWS = {"evaluate_held_out-0": 1, "rollout-0": 1, "evaluate_held_out-1": 1}
TRAINED = Counter({**FLOWS, "update": 1, "register": 1})
PLAYED = Counter(episode=6, coach_score=6, generate=6, execute=6)
TASK_RUNS = {"auto": TRAINED + PLAYED, "action": TRAINED + PLAYED, "rollout": TRAINED}
"""Of an iteration of six episodes, each of one action that calls a tool."""


@pytest.mark.parametrize("granularity", TASK_RUNS)
def test_everything_a_run_did_can_be_read_back(
    store: Store,
    make_services: MakeServices,
    toy_config: TrainConfig,
    granularity: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # However fast this machine plays.
    monkeypatch.setattr(recording, "MOST_SHARE", 1000.0)
    short = {"iterations": 1, "episodes_per_problem": 3, "granularity": granularity}
    rollout, unwatched = toy_config.rollout.model_copy(update=short), AuditConfig(anchors=0)
    config = toy_config.model_copy(update={"rollout": rollout, "audit": unwatched})
    watched = AuditStore(store.database)
    services = replace(
        make_services(config),
        team=Caller(),
        toolbox=Cave(),
        audit=watched,
        dashboard="http://10.0.0.5:8265",
    )

    async def body() -> list[str]:
        await services.engine.start()
        with use(services):
            comparison = await train(config)
        assert comparison.episodes == 4
        (run, *_) = store.runs.list_runs()
        async with get_client() as client:
            wanted = FlowRunFilterId(any_=[UUID(run.prefect_flow_run_id or "")])
            found = await client.read_flow_runs(flow_run_filter=FlowRunFilter(id=wanted))
        return [one.name for one in found]

    assert asyncio.run(body()) == ["train toy"]
    (run, *_) = store.runs.list_runs()
    told = "Prefect records every action from here on" in caplog.text
    assert told == (granularity == "auto")
    assert _task_runs_of(run, TASK_RUNS[granularity]) == TASK_RUNS[granularity]
    _check_pages(run, services)
    figures = store.figures.get_iteration_figures(run.id, "train", 1)
    assert (figures.episodes, figures.failed, figures.agents[0].unscored) == (6, 0, 0)

    update = store.updates.get_update(run.id, "speaker", 1)
    assert update is not None
    assert sum(entry.weight for entry in update.entries) == pytest.approx(1)
    trained = [s for s in store.episodes.list_episodes(run.id) if s.phase == "train"]
    assert len(trained) == 6
    for summary in trained:
        episode = store.episodes.get_episode(str(summary.id))
        (turn,) = episode.turns
        (entry,) = store.scores.scores_of_episode(episode.id)
        action = ids.action_id(episode.id, turn.index)
        assert entry.action_id == action
        assert isinstance(entry.score, CoachScore)
        assert len(turn.action.logprobs) == len(turn.action.token_ids) == 1
        update_of, part = store.updates.updates_of_episode(episode.id)[action]
        assert update_of.id == update.id
        assert part.score_id == entry.id

    ((policy, _),) = store.policies.list_checkpoints(run.id)
    assert policy.id == update.to_policy_id
    assert isinstance(services.tracker, MemoryTracker)
    assert isinstance(services.registry, MemoryRegistry)
    assert services.registry.models() == ("mappa-monologue-speaker",)
    (version,) = services.registry.versions("mappa-monologue-speaker")
    assert (version.run_id, version.agent, version.step) == (run.id, "speaker", policy.step)
    logged = services.tracker.metrics[run.mlflow_run_id or ""]
    assert logged[1, "speaker/score"] == figures.agents[0].mean_score
    assert (1, "held_out/gain") in logged


def _task_runs_of(run: Run, expected: Counter[str]) -> Counter[str]:
    """Task runs of a run's only iteration by the first word of their names.

    They reach the server as events, in their order; waits until none of the `expected` is missing.
    """
    deadline = time.monotonic() + 60
    mine = UUID(run.prefect_flow_run_id or "")
    inside = FlowRunFilter(
        parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[mine]),
        name=FlowRunFilterName(any_=["rollout train 1"]),
    )
    with get_client(sync_client=True) as client:
        (played,) = client.read_flow_runs(flow_run_filter=inside)
        where = FlowRunFilter(id=FlowRunFilterId(any_=[mine, played.id]))
        while True:
            found = client.read_task_runs(flow_run_filter=where)
            names = Counter(
                each.name.split()[0] for each in found if each.state_type == StateType.COMPLETED
            )
            if expected <= names or time.monotonic() > deadline:
                return names
            time.sleep(0.2)


def _check_pages(run: Run, services: Services) -> None:
    """The run's page leads to the report, the audit, MLflow and the next thing to do."""
    found = artifacts_of(run)
    by_id = {str(each.id): each for each in found}
    first, last = (each for each in found if each.key == key_of(run))
    assert "is training" in str(first.data)
    assert "* [Ray](http://10.0.0.5:8265)" in str(first.data)
    told = str(last.data)
    # The toy's answers are never right: nothing changed, and more of it would tell no more.
    assert f"    mappa evaluate {run.name} evaluation.samples=4" in told
    artifacts = re.findall(r"\(/artifacts/artifact/([0-9a-f-]{36})\)", told)
    assert {by_id[artifact].key for artifact in artifacts} == {"audit", "before-and-after"}
    assert isinstance(services.tracker, MemoryTracker)
    assert run.mlflow_run_id is not None
    for file in ("", REPORT):
        assert f"({SERVED_PAGES}/{services.tracker.place(run.mlflow_run_id, file)})" in told
    assert run.name in services.tracker.files[run.mlflow_run_id, REPORT]


def test_the_configured_share_of_the_episodes_is_traced(
    store: Store, make_services: MakeServices, toy_config: TrainConfig
) -> None:
    config = with_overrides(
        toy_config, ["rollout.iterations=1", "tracking.trace_share=0.5", "seed=2"]
    )
    services = make_services(config)

    async def body() -> None:
        await services.engine.start()
        with use(services):
            await train(config)

    asyncio.run(body())
    (run, *_) = store.runs.list_runs()
    episodes = store.episodes.list_episodes(run.id)
    assert isinstance(services.tracker, MemoryTracker)
    traced = len(services.tracker.traces[run.mlflow_run_id or ""])
    # 24 of training and two times 4 held out; which of them follows from their ids.
    assert len(episodes) == 32
    assert 6 <= traced <= 26
