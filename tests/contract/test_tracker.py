"""What `ports.Tracker` and `ports.ModelRegistry` promise, on MLflow and on the fakes."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from mappa_core.core.errors import TrackerError
from mappa_core.core.records.episodes import Episode, Outcome, StopReason
from mappa_core.core.records.runs import Run, RunStatus
from mappa_core.tracking.mlflow.registry import MlflowRegistry
from mappa_core.tracking.mlflow.tracker import MlflowTracker
from mappa_core.tracking.opening import WithCurves
from mappa_core.tracking.protocols import ModelRegistry, Tracker
from mappa_core.tracking.tensorboard import TensorBoardCurves
from tests.adapter_files import write_adapter
from tests.builders import (
    make_episode,
    make_policy,
    make_problem,
    make_run,
    make_score,
    make_tool_result,
    make_turn,
)
from tests.fakes.tracking import MemoryRegistry, MemoryTracker


@pytest.fixture(scope="module")
def mlflow_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


@pytest.fixture(params=["mlflow", "memory", "memory and tensorboard"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def tracker(kind: str, mlflow_uri: str, tmp_path: Path) -> Iterator[Tracker]:
    if kind == "mlflow":
        yield MlflowTracker(mlflow_uri, tmp_path)
    elif kind == "memory":
        yield MemoryTracker()
    else:
        opened: list[TensorBoardCurves] = []

        def curves(run: Run) -> TensorBoardCurves:
            opened.append(TensorBoardCurves(tmp_path / "tensorboard", run))
            return opened[-1]

        yield WithCurves(MemoryTracker(), [curves])
        for each in opened:
            each.close(RunStatus.COMPLETED)


@pytest.fixture
def registry(kind: str, mlflow_uri: str) -> ModelRegistry:
    return MlflowRegistry(mlflow_uri) if kind == "mlflow" else MemoryRegistry()


def test_a_run_started_twice_is_one_run_and_another_is_another(tracker: Tracker) -> None:
    first, other = make_run("start-1"), make_run("start-2")
    assert tracker.start(first) == tracker.start(first)
    assert tracker.start(first) != tracker.start(other)


def test_everything_can_be_said_about_a_run_that_was_started(tracker: Tracker) -> None:
    tracker_run_id = tracker.start(make_run("say"))
    tracker.log(tracker_run_id, 1, {"solver/mean_score": 5.0, "kl_base": math.nan})
    tracker.log(tracker_run_id, 2, {})
    for status in RunStatus:
        tracker.end(tracker_run_id, status)


def test_a_text_is_kept_with_its_run_and_has_a_place(tracker: Tracker) -> None:
    tracker_run_id = tracker.start(make_run("attached"))
    for text in ("<p>early", "<p>late"):
        tracker.attach(tracker_run_id, "report.html", text)
    place = tracker.place(tracker_run_id)
    assert tracker_run_id in place
    file = tracker.place(tracker_run_id, "report.html")
    assert file.startswith(place)
    assert file.endswith("/report.html")


@pytest.mark.parametrize("call", ["log", "end", "attach", "place"])
def test_a_run_that_was_never_started_is_a_tracker_error(tracker: Tracker, call: str) -> None:
    tracker.start(make_run("known"))
    says = {
        "log": lambda: tracker.log("0" * 32, 1, {"loss": 0.5}),
        "end": lambda: tracker.end("0" * 32, RunStatus.COMPLETED),
        "attach": lambda: tracker.attach("0" * 32, "report.html", "<p>"),
        "place": lambda: tracker.place("0" * 32),
    }
    with pytest.raises(TrackerError) as raised:
        says[call]()
    assert "\n" not in str(raised.value)


def test_versions_count_up_and_a_checkpoint_keeps_its_own(
    tracker: Tracker, registry: ModelRegistry, tmp_path: Path, kind: str
) -> None:
    run = make_run("register")
    tracker_run_id = tracker.start(run)
    policies = [make_policy(run, "solver", step) for step in (1, 2)]
    checkpoints = [write_adapter(tmp_path, policy) for policy in policies]

    def register(index: int, name: str = "mappa-mathchat-solver") -> str:
        return registry.register(
            name,
            policies[index],
            checkpoints[index],
            tracker_run_id=tracker_run_id,
            tags={"mappa.iteration": str(index + 1)},
            alias="candidate",
        )

    assert [register(0), register(1), register(0)] == ["1", "2", "1"]
    assert register(1, "mappa-mathchat-other") == "1"


def test_episodes_are_traced_once_and_counted(tracker: Tracker) -> None:
    run = make_run("traced")
    tracker_run_id = tracker.start(run)
    other = tracker.start(make_run("not traced"))
    for rollout_index in (0, 1):
        episode = played(run, rollout_index)
        for _ in range(2):
            tracker.trace(tracker_run_id, episode, [make_score(episode, 0, 7.5)])
    assert tracker.traced(tracker_run_id, "train", 1) == 2
    assert tracker.traced(tracker_run_id, "train", 2) == 0
    assert tracker.traced(tracker_run_id, "held_out", 1) == 0
    assert tracker.traced(other, "train", 1) == 0


def played(run: Run, rollout_index: int) -> Episode:
    episode = make_episode(run, make_problem(), rollout_index=rollout_index)
    turn = make_turn(make_policy(run), text="\x00 \ud800 é", tool_result=make_tool_result())
    outcome = Outcome(success=True, answer="5", method="math-verify")
    return episode.with_turn(turn).closed(StopReason.ANSWERED, outcome=outcome)


def test_versions_are_listed_in_order_and_an_alias_moves_both_ways(
    tracker: Tracker, registry: ModelRegistry, tmp_path: Path
) -> None:
    run = make_run("listed")
    tracker_run_id = tracker.start(run)
    name = "mappa-listed-solver"
    assert registry.versions(name) == ()
    for step in (1, 2):
        policy = make_policy(run, "solver", step)
        registry.register(
            name,
            policy,
            write_adapter(tmp_path, policy),
            tracker_run_id=tracker_run_id,
            tags={},
            alias="candidate",
        )
    assert name in registry.models()
    registry.point(name, "champion", "2", {"why": "better"})
    registry.point(name, "champion", "1", {"why": "back"})
    first, second = registry.versions(name)
    assert (first.name, first.version, first.run_id, first.agent, first.step) == (
        name,
        "1",
        run.id,
        "solver",
        1,
    )
    assert (first.aliases, second.aliases) == (("champion",), ("candidate",))
    assert (first.tags["why"], second.tags["why"]) == ("back", "better")
    with pytest.raises(TrackerError):
        registry.point(name, "champion", "9", {})
