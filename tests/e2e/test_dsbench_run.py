"""The data-science team on the bundled tables, from `mappa train` to the report, on real parts."""

import json
import sys
from pathlib import Path

import pytest

from mappa_core.core.records.runs import RunStatus
from mappa_core.core.settings import Settings
from mappa_core.store.opening import opened_store
from tests.e2e.person import type_in

AGENTS = {"data_engineer", "modeler", "analyst"}
SMALLER = (
    "problems.held_out_size=2",
    "rollout.problems=2",
    "rollout.max_tokens=96",
    "engine.max_model_length=3072",
    "engine.kv_cache_gib=0.25",
    "learner.micro_batch_tokens=512",
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def test_the_team_trains_to_the_very_end(open_folder: Path, real_model: Path) -> None:
    """Half of the preset's episodes; prints what a person would want to know before the start."""
    home = open_folder / "dsbench"
    preset = ("--config", "configs/dsbench.yaml", f"model={real_model}")
    trained = type_in(home, "train", *preset, *SMALLER, timeout=3300)
    sys.stdout.write(f"{trained.seconds / 60:.1f} minutes, {trained.peak_gib:.1f} GiB at most\n")
    assert "Traceback" not in trained.printed + trained.told
    with opened_store(Settings.model_validate({"MAPPA_HOME": home})) as store:
        (run,) = store.runs.list_runs()
        assert run.status is RunStatus.COMPLETED
        episodes = store.episodes.list_episodes(run.id)
        policies = store.policies.list_policy_versions(run.id)
    # Two held-out tasks before and after; two tasks twice in each of two iterations.
    assert sorted((one.phase, one.iteration) for one in episodes) == [
        *[("held_out", 0)] * 2,
        *[("held_out", 2)] * 2,
        *[("train", 1)] * 4,
        *[("train", 2)] * 4,
    ]
    assert not any(one.failed for one in episodes)
    assert {one.task_type for one in episodes} == {"classification", "regression"}
    assert {(one.agent, one.step) for one in policies} == {
        (agent, step) for agent in AGENTS for step in (0, 1, 2)
    }
    measured = json.loads(type_in(home, "evaluate", run.name, "--json", timeout=900).printed)
    assert {(each["task_type"]) for each in measured["fair"]} == {"classification", "regression"}
    page = home / "report.html"
    type_in(home, "report", run.name, "--to", str(page), timeout=900)
    assert run.name in page.read_text()
