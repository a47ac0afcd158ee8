"""What a coach is told about every case, and the name of that in what it stores.

A model that is asked in other words, or samples its judgement otherwise, is another scorer, though
its rubric is the same: `scorer_rubric` names and hashes the two together.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import replace

from mappa_core.coach.attempts import RequestTemplate, SolvingTemplate
from mappa_core.coach.config import CoachModelConfig
from mappa_core.coach.evidence import system_text
from mappa_core.coach.rubrics import Band, Criterion, Rubric, RubricSet, Step, TaskType
from mappa_core.core.records.episodes import Message, Outcome
from mappa_core.core.records.scores import CoachCase, Fact
from mappa_core.core.records.tools import ToolResult, ToolStatus

SAMPLED = ("temperature", "thinking_budget", "reasoning_effort")
"""Keys of the configuration that a judgement depends on, beside the words."""
DIGITS = 8
"""Of its hash that tell one way of asking from another, beside the rubric's name."""

_RUBRIC = Rubric(
    version=1,
    agent="agent",
    role="To answer.",
    considers=("The answer.",),
    criteria=(Criterion(name="right", description="It is."),),
    bands=(Band(lowest=0, highest=10, means="any"),),
    task_types={"sum": TaskType(metric="accuracy", scale=(Step(bound=0.5, cap=5),), otherwise=1)},
)
_RESULT = ToolResult(
    code="print(3)",
    status=ToolStatus.OK,
    exit_code=0,
    stdout="3\n",
    stderr="",
    stdout_omitted_bytes=0,
    stderr_omitted_bytes=0,
    seconds=0.1,
    cpu_seconds=None,
    peak_memory_bytes=None,
    tier="",
)
_STATEMENT = "What is the sum of 1 and 1? Give it in a box, without a word beside it."
_CASE = CoachCase(
    statement=_STATEMENT,
    agent="agent",
    messages=(
        Message(role="system", content="Add."),
        Message(role="user", content=rf"{_STATEMENT} Answer in \boxed{{}}."),
    ),
    text=r"\boxed{3}",
    tool_result=_RESULT,
    earlier=(),
    task_type="sum",
    facts=(Fact(name="accuracy", text="0.5"),),
    outcome=Outcome(success=False, answer="3", method="math-verify"),
    expected_answer="2",
)
"""An example: what is said beside its texts is said of other cases, too."""


def told(rubric: Rubric, config: CoachModelConfig) -> str:
    """The message before each case of an agent."""
    return system_text(
        rubric,
        correction=config.correction,
        brief=config.server.rationale_characters,
        own_solution=config.own_solution,
    )


def scorer_rubric(rubrics: RubricSet, config: CoachModelConfig) -> tuple[str, str]:
    """Name and hash of a rubric set and the way of asking by it."""
    asked = way_of_asking(config)
    both = hashlib.sha256(f"{rubrics.sha256} {asked}".encode()).hexdigest()
    return f"{rubrics.name}+{asked[:DIGITS]}", both


def way_of_asking(config: CoachModelConfig) -> str:
    """A hash of all that a coach is told beside rubric and case, and of how it samples."""
    said = (*map(str, (getattr(config, name) for name in SAMPLED)), *_words(config))
    return hashlib.sha256("\0".join(said).encode()).hexdigest()


def _words(config: CoachModelConfig) -> Iterator[str]:
    solved = replace(_CASE, own_solution="1 + 1 = 2") if config.own_solution else _CASE
    for case in (
        solved,
        replace(solved, text="I wait.", tool_result=None),
        replace(solved, text="", tool_result=replace(_RESULT, stdout="")),
    ):
        request = RequestTemplate(case, told(_RUBRIC, config), config).request("it was cut")
        yield from (request.system, request.prompt)
    if config.own_solution:
        planning = replace(solved, messages=(), text="Plan: 3 - 2", tool_result=None)
        judging = RequestTemplate(planning, told(_RUBRIC, config), config).request("")
        for request in (judging, SolvingTemplate(solved.statement, config).request("")):
            yield from (request.system, request.prompt)
