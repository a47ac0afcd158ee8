"""Coach cases for tests."""

from dataclasses import replace

from mappa_core.core.records.episodes import Message
from mappa_core.core.records.scores import CoachCase
from mappa_core.core.records.tools import Artifact
from tests.builders import make_policy, make_run, make_tool_result, make_turn

RUN = make_run()


def make_case(
    text: str = "Multiply 4 by 5.", *, place: str = "text", agent: str = "problem_solver"
) -> CoachCase:
    """A small case with `text` where `place` says: text, code, stdout, stderr, file or earlier."""
    result = make_tool_result()
    file = Artifact(name=text if place == "file" else "a.csv", size_bytes=3, sha256="0b" * 32)
    result = replace(
        result,
        code=text if place == "code" else result.code,
        stdout=text if place == "stdout" else result.stdout,
        stderr=text if place == "stderr" else result.stderr,
        written=(file,),
        stderr_omitted_bytes=0,
    )
    earlier = make_turn(make_policy(RUN, "planner"), text=text if place == "earlier" else "Plan.")
    return CoachCase(
        statement="Ana has 4 boxes with 5 pens each. How many pens has she?",
        agent=agent,
        messages=(
            Message(role="system", content="Plan."),
            Message(role="user", content="What is 1 + 1?"),
            Message(role="assistant", content="Add."),
            Message(role="user", content="Ana has 4 boxes with 5 pens each."),
        ),
        text=text if place in ("text", "code") else "Multiply.",
        tool_result=result,
        earlier=(earlier,),
        task_type="multiplication",
    )
