"""MathChat on the published AIME and AMC problems under a coach that is a language model."""

import json
import os
import sys
from pathlib import Path

import pytest

from mappa_core.core.records.runs import RunStatus
from mappa_core.core.records.scores import CoachScore
from mappa_core.core.settings import Settings
from mappa_core.store.opening import opened_store
from tests.e2e.person import type_in

DATA = Path(os.environ.get("MAPPA_PROBLEM_FILES") or Path(__file__).parents[3] / "shared" / "data")
COACH = "MAPPA_TEST_COACH"
SMALL = (
    "name=competition",
    "problems.train_size=60",
    "problems.held_out_size=4",
    "rollout.iterations=2",
    "rollout.problems=4",
    "rollout.max_tokens=64",
    "engine.max_model_length=3072",
    "engine.kv_cache_gib=0.25",
    "learner.micro_batch_tokens=512",
    "coach.backend=local",
    # A small model may fail: what is tested is that its mark is said and its scores are used.
    "coach.exam=advise",
    "coach.max_output_tokens=400",
    "coach.attempt_seconds=300",
    "coach.deadline_seconds=1800",
    "coach.server.rationale_characters=200",
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(5400),
    pytest.mark.skipif(
        not (DATA / "aime_2025.json").exists(),
        reason="MAPPA_PROBLEM_FILES names no folder with the published problems",
    ),
    pytest.mark.skipif(
        COACH not in os.environ, reason=f"{COACH} names no folder with a model as coach"
    ),
]


def test_competition_problems_are_played_scored_learnt_from_audited_and_reported(
    open_folder: Path, real_model: Path
) -> None:
    coach = os.environ[COACH]
    home = open_folder / "competition"
    trained = type_in(
        home,
        "train",
        "--config",
        "configs/mathchat.yaml",
        f"model={real_model}",
        f"coach.model={coach}",
        f"problems.train_files=[{DATA}/AIME_1983_2024.json]",
        f"problems.held_out_files=[{DATA}/aime_2025.json,{DATA}/amc_eval_32.json]",
        *SMALL,
        timeout=5000,
    )
    sys.stdout.write(f"{trained.seconds / 60:.1f} minutes, {trained.peak_gib:.1f} GiB at most\n")
    assert "Traceback" not in trained.printed + trained.told
    assert "pairs of work in their known order" in trained.printed + trained.told
    with opened_store(Settings.model_validate({"MAPPA_HOME": home})) as store:
        (run,) = store.runs.list_runs()
        assert run.status is RunStatus.COMPLETED
        summaries = store.episodes.list_episodes(run.id)
        scored = [entry for one in summaries for entry in store.scores.scores_of_episode(one.id)]
    played = [one for one in summaries if one.phase == "train"]
    assert len(played) == 2 * 4 * 2
    for iteration in (1, 2):
        drawn = [one for one in played if one.iteration == iteration]
        assert {one.attributes["difficulty"] for one in drawn} == {"early", "middle", "late"}
    held_out = {one.attributes["contest"] for one in summaries if one.phase == "held_out"}
    assert held_out == {"aime", "amc"}
    # The coach's own scores, for nearly all that was written.
    assert sum(isinstance(entry.score, CoachScore) for entry in scored) >= 0.9 * len(scored)
    assert {entry.identity.model for entry in scored} == {coach}
    measured = json.loads(
        type_in(home, "evaluate", run.name, "--gain", "30", "--json", timeout=900).printed
    )
    assert set(measured["by_contest"]) == {"aime", "amc"}
    assert set(measured["power"]) == {"all", "aime", "amc"}
    audited = json.loads(type_in(home, "audit", run.name, "--json", timeout=900).printed)
    assert audited["run"] == run.name
    assert audited["findings"]
    page = home / "report.html"
    type_in(home, "report", run.name, "--to", str(page), timeout=900)
    table = page.read_text().partition("Held-out problems by contest")[2].partition("</table>")[0]
    assert "<td>aime" in table
    assert "<td>amc" in table
