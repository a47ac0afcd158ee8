"""What lies in a workspace, whose it is, whether it still stands, and whose file is missing."""

from dataclasses import replace

from mappa_core.core.file_trail import files_after, missing_files, who_failed
from mappa_core.core.records.episodes import Turn
from mappa_core.core.records.scores import Duty
from mappa_core.core.records.tools import Artifact, ToolStatus
from tests.builders import make_policy, make_run, make_tool_result, make_turn

RUN = make_run()
DUTIES = (
    Duty(agent="engineer", files=("x", "t")),
    Duty(agent="modeler", files=("m",)),
    Duty(agent="analyst", files=("s",)),
)


def file(name: str, content: str = "1") -> Artifact:
    return Artifact(name=name, size_bytes=1, sha256=f"{name}{content}")


def turn(
    index: int,
    agent: str,
    written: str = "",
    read: str = "",
    removed: str = "",
    *,
    content: str = "1",
    status: ToolStatus = ToolStatus.OK,
    contents: dict[str, str] | None = None,
) -> Turn:
    result = replace(
        make_tool_result(status),
        written=tuple(file(name, content) for name in written),
        read=tuple(file(name, (contents or {}).get(name, "1")) for name in read),
        removed=tuple(removed),
    )
    return make_turn(make_policy(RUN, agent), index, tool_result=result)


GOOD = (turn(0, "engineer", "xt"), turn(1, "modeler", "m", "x"), turn(2, "analyst", "s", "mt"))


def test_files_are_their_writers():
    files = files_after(GOOD)
    assert {name: (f.agent, f.turn) for name, f in files.items()} == {
        "x": ("engineer", 0),
        "t": ("engineer", 0),
        "m": ("modeler", 1),
        "s": ("analyst", 2),
    }
    assert not any(f.stale for f in files.values())
    assert dict(files["s"].made_from) == {"m": "m1", "t": "t1"}


def test_a_turn_without_a_program_changes_nothing():
    talk = make_turn(make_policy(RUN, "analyst"), 3)
    assert files_after((*GOOD, talk)) == files_after(GOOD)


def test_what_was_made_from_something_that_changed_is_stale():
    again = turn(3, "modeler", "m", "x", content="2")
    files = files_after((*GOOD, again))
    assert files["m"].stale is None
    assert files["s"].stale == "m has changed since turn 3"
    gone = files_after((*GOOD, turn(3, "modeler", removed="m")))
    assert "m" not in gone
    assert gone["s"].stale == "m has changed since turn 3"


def test_the_same_content_again_changes_nothing():
    files = files_after((*GOOD, turn(3, "modeler", "m", "x")))
    assert files["s"].stale is None


def test_a_failed_program_ages_what_it_should_have_written_and_a_good_one_does_not():
    failed = turn(3, "analyst", status=ToolStatus.NONZERO)
    assert files_after((*GOOD, failed))["s"].stale == (
        "the program of turn 4 failed before writing it"
    )
    assert files_after((*GOOD, failed))["m"].stale is None
    assert files_after((*GOOD, turn(3, "analyst")))["s"].stale is None
    mended = (*GOOD, failed, turn(4, "analyst", "s"))
    assert files_after(mended)["s"].stale is None


def test_the_first_agent_without_its_files_has_failed():
    assert who_failed(DUTIES, GOOD) is None
    forgetful = (turn(0, "engineer", "x"), *GOOD[1:2])
    failing = who_failed(DUTIES, forgetful)
    assert failing is not None
    assert (failing.agent, failing.missing) == ("engineer", ("t",))
    assert who_failed(DUTIES, GOOD[:2]) is None
    assert who_failed(DUTIES, ()) is None


def test_a_file_made_too_late_or_by_another_clears_no_agent():
    late = (turn(0, "engineer", "x"), turn(1, "modeler", "mt"))
    failing = who_failed(DUTIES, late)
    assert failing is not None
    assert failing.agent == "engineer"


def test_who_destroys_a_file_of_another_is_not_covered_by_it():
    vandal = (*GOOD[:1], turn(1, "modeler", "m", "x", "t"))
    assert missing_files(DUTIES[0], vandal) == ("t",)
    assert who_failed(DUTIES, vandal) is None  # the engineer had left it when it was due
