"""What a coach is told of files and measurements, and whom it names when a file is missing."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from mappa_core.coach.case import case_of, facts_of
from mappa_core.coach.config import CoachConfig
from mappa_core.coach.evidence import build_prompt, marker_of
from mappa_core.coach.rubrics import load_rubrics, packaged_rubrics
from mappa_core.core.records.episodes import Outcome, Turn
from mappa_core.core.records.scores import Duty, LabelVisibility
from mappa_core.core.records.tools import ToolStatus
from mappa_core.grading.submissions import GradingKey, grade
from tests.builders import make_episode, make_problem, make_run
from tests.unit.core.test_file_trail import DUTIES, GOOD, turn

MEASURED = Outcome(
    success=True,
    answer="submission.csv",
    method="hidden-labels",
    metric="rmse",
    value=0.4213,
    charged=0.4213,
    skill=0.625,
)


def told(turns: tuple[Turn, ...], outcome: Outcome | None = None) -> dict[str, str]:
    return {fact.name: fact.text for fact in facts_of(turns, DUTIES, outcome)}


def test_files_are_named_with_their_makers():
    facts = told(GOOD)
    assert facts["owed by engineer"] == "x, t"
    assert facts["made before this action and still there"] == (
        "m (by modeler in turn 1), t (by engineer in turn 0), x (by engineer in turn 0)"
    )
    assert facts["read by this action"] == "m (by modeler in turn 1), t (by engineer in turn 0)"
    assert facts["owed by analyst and not there after this action"] == "nothing"
    assert "first to fail its duty" not in facts


def test_what_the_task_brought_is_nobodys():
    assert told((turn(0, "engineer", "xt", "q"),))["read by this action"] == (
        "q (came with the task)"
    )


def test_a_sandbox_that_cannot_know_what_was_read_says_so():
    blind = turn(0, "engineer", "xt")
    assert blind.tool_result is not None
    unknown = replace(blind, tool_result=replace(blind.tool_result, read=None))
    assert told((unknown,))["read by this action"] == "not recorded"


def test_who_failed_is_told_from_who_is_stopped_by_it():
    turns = (turn(0, "engineer", "x"), GOOD[1], turn(2, "analyst", status=ToolStatus.NONZERO))
    facts = told(turns)
    assert facts["first to fail its duty"] == "engineer: it ended its turns without t"
    assert facts["owed by analyst and not there after this action"] == "s"
    # The engineer itself may still have a turn: it is told what lacks, and blamed for nothing yet.
    own = told(turns[:1])
    assert own["owed by engineer and not there after this action"] == "t"
    assert "first to fail its duty" not in own


def test_stale_overwritten_and_removed_files_are_told():
    again = turn(3, "engineer", "x", removed="m", content="2")
    facts = told((*GOOD, again))
    assert facts["overwritten by this action"] == "x (by engineer in turn 0)"
    assert facts["removed by this action"] == "m (by modeler in turn 1)"
    later = told((*GOOD, again, turn(4, "analyst", read="s")))
    assert (
        "s (by analyst in turn 2, stale: m has changed since turn 3)"
        in (later["made before this action and still there"])
    )


def test_measurements_are_evidence_where_the_policy_lets_them():
    name = "the team's submission, measured against hidden labels"
    assert told(GOOD, MEASURED)[name] == (
        "rmse 0.4213; skill 0.625 (0: no better than a constant, 1: perfect)"
    )
    failed = Outcome(
        success=False, answer=None, method="m", metric="rmse", detail="there is no file"
    )
    assert told(GOOD, failed)[name] == "nothing; there is no file"
    assert name not in told(GOOD)


AGENTS = {"engineer": "data_engineer", "modeler": "modeler", "analyst": "analyst"}


def test_the_prompt_of_a_dsbench_case_names_the_culprit_and_the_metric_only_when_it_may():
    duties = tuple(Duty(agent=AGENTS[duty.agent], files=duty.files) for duty in DUTIES)
    turns = (turn(0, "engineer", "x"), GOOD[1], turn(2, "analyst", status=ToolStatus.NONZERO))
    renamed = tuple(replace(one, agent=AGENTS[one.agent]) for one in turns)
    episode = make_episode(make_run(), make_problem(task_type="regression"))
    played = replace(episode, turns=renamed, outcome=replace(MEASURED, success=False))
    rubric = load_rubrics("dsbench", CoachConfig().rubric).rubrics["analyst"]

    def prompt(visibility: LabelVisibility) -> str:
        case = case_of(played, renamed[2], visibility, duties=duties)
        return build_prompt(case, rubric).user

    hidden, open_ = prompt(LabelVisibility.NEVER), prompt(LabelVisibility.OUTCOME_ONLY)
    culprit = "first to fail its duty: data_engineer: it ended its turns without t"
    assert culprit in hidden
    assert culprit in open_
    assert "rmse" not in hidden
    assert "rmse 0.4213" in open_


def test_names_of_files_that_were_read_or_removed_are_part_of_the_marker():
    episode = make_episode(make_run(), make_problem())

    def marker(one: Turn) -> str:
        played = replace(episode, turns=(one,))
        return marker_of(case_of(played, one, LabelVisibility.NEVER, duties=DUTIES))

    first = turn(0, "engineer", "xt", "q")
    assert marker(first) != marker(turn(0, "engineer", "xt", "r"))
    assert marker(first) != marker(turn(0, "engineer", "xt", "q", "z"))


SUBMITTED: Mapping[str, tuple[tuple[str, bytes], ...]] = {
    "classification": (
        ("accuracy", b"id,y\n1,a\n2,b\n3,b\n"),
        ("log_loss", b"id,y\n1,0\n2,1\n3,1\n"),
    ),
    "regression": (("smape", b"id,y\n1,1\n2,3\n3,9\n"),),
    "extraction": (("jaccard", b"id,y\n1,so good\n2,bad\n3,fine\n"),),
}
"""By kind of task: what one is measured by, and what is handed in, which is also what is right."""
CAPPED = sorted(
    {
        (*packaged, kind)
        for packaged in packaged_rubrics()
        for rubric in load_rubrics(*packaged).rubrics.values()
        for kind, rules in rubric.task_types.items()
        if rules.metric is not None
    }
)


@pytest.mark.parametrize(
    ("team", "name", "kind", "metric", "labels"),
    [(*capped, *submitted) for capped in CAPPED for submitted in SUBMITTED[capped[2]]],
)
def test_every_figure_that_a_packaged_cap_names_is_in_the_evidence(
    team: str, name: str, kind: str, metric: str, labels: bytes
):
    """Whatever metric a task is scored by."""
    key = GradingKey(metric=metric, id_column="id", targets=("y",), labels_sha256="0")
    facts = told(GOOD, grade(labels, labels, key))
    shown = facts["the same submission in figures that all tasks of its kind have"]
    rubrics = load_rubrics(team, name).rubrics.values()
    named = {rubric.task_types[kind].metric for rubric in rubrics} - {None}
    assert named
    assert not [figure for figure in named if f"{figure} " not in shown]
    assert not any("figures" in name for name in told(GOOD, grade(None, labels, key)))


def test_the_set_that_caps_all_kinds_of_work_is_among_those():
    assert {kind for team, name, kind in CAPPED if (team, name) == ("dsbench", "paper-2")} == {
        *SUBMITTED
    }
