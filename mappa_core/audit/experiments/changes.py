"""What an experiment asks about a stored action: the case as it was, and with one thing changed.

The cases go to the coach that trained (`asking`); here they are made. The words of the task, and
what the agent saw and did, stay as they were: a task type is the label that the coach is told.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from mappa_core.audit.probes.features import PADDING
from mappa_core.audit.records import Change
from mappa_core.coach.case import case_of
from mappa_core.coach.opening import ProbeCoaches
from mappa_core.coach.protocols import Coach, ReadingCoach
from mappa_core.core import ids
from mappa_core.core.records.episodes import Episode, Outcome, Turn
from mappa_core.core.records.scores import CoachCase, Duty, LabelVisibility

PLAIN_SAMPLE = 2_000
"""Of every scoring but the repeat, whose sample is the next: none is a training score's."""
MOST_TYPES = 3
"""Other task types that one action is called by."""
_BLOCK = re.compile(r"(```.*?(?:```|\Z))", re.DOTALL)
_KEPT = re.compile(r"\d|\\boxed|```")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One scoring that is wanted of a stored action."""

    change: Change
    put: str = ""
    """In the place of what was changed."""
    case: CoachCase
    coach: Coach
    unseen: bool = False
    """Whether the change does not reach the coach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Makes the questions about a run's actions."""

    coaches: ProbeCoaches
    """As the run configured them."""
    task_types: tuple[str, ...]
    """Of the run."""
    visibility: Mapping[str, LabelVisibility] = field(default_factory=dict[str, LabelVisibility])
    """What the coach knew of the truth, by agent."""
    duties: tuple[Duty, ...] = ()

    def questions(self, episode: Episode, turn: Turn) -> tuple[Question, ...]:
        """Everything that is asked about one action, the plain scoring first."""
        plain = self._case(episode, turn, self._visibility(turn))
        asked = (
            Question(change="as it was", case=plain, coach=self.coaches.coach),
            Question(change="again", case=_again(plain), coach=self.coaches.coach),
        )
        changed = (
            replace(question, unseen=self._is_unseen(question, plain))
            for question in self._changed(episode, turn, plain)
        )
        return (*asked, *changed)

    def _changed(self, episode: Episode, turn: Turn, plain: CoachCase) -> Iterator[Question]:
        coach = self.coaches.coach
        for name in self._other_types(episode, turn):
            called = replace(plain, task_type=name)
            yield Question(change="task type", put=name, case=called, coach=coach)
        yield from self._under_other_names(plain)
        padded = replace(plain, text=plain.text + PADDING)
        yield Question(change="padded", case=padded, coach=coach)
        if (text := trimmed(plain.text)) != plain.text:
            yield Question(change="trimmed", case=replace(plain, text=text), coach=coach)
        yield from self._told(episode, turn)

    def _under_other_names(self, plain: CoachCase) -> Iterator[Question]:
        """Without a rubric there is no order to turn, and the agent's name picks the rules."""
        turned, renamed = self.coaches.reversed, self.coaches.renamed
        name = self.coaches.names.get(plain.agent, plain.agent)
        yield Question(
            change="rubric order",
            case=plain,
            coach=turned or self.coaches.coach,
        )
        yield Question(
            change="agent name",
            put=name if renamed else "",
            case=replace(plain, agent=name) if renamed else plain,
            coach=renamed or self.coaches.coach,
        )

    def _told(self, episode: Episode, turn: Turn) -> Iterator[Question]:
        """Nothing, right and wrong, whatever it was; what was measured would give it away."""
        coach, outcome = self.coaches.coach, episode.outcome
        hidden = self._case(episode, turn, LabelVisibility.NEVER)
        yield Question(change="outcome hidden", case=hidden, coach=coach)
        if outcome is None:
            return
        told: tuple[tuple[Change, bool], ...] = (("told right", True), ("told wrong", False))
        for change, success in told:
            other = replace(episode, outcome=_said(outcome, success=success))
            case = self._case(other, turn, LabelVisibility.OUTCOME_ONLY)
            yield Question(change=change, case=case, coach=coach)

    def _is_unseen(self, question: Question, plain: CoachCase) -> bool:
        """Whether the coach reads the same as without the change."""
        asked, usual = question.coach, self.coaches.coach
        if not isinstance(asked, ReadingCoach) or not isinstance(usual, ReadingCoach):
            return asked is usual and question.case == plain
        return asked.reads(question.case) == usual.reads(plain)

    def _other_types(self, episode: Episode, turn: Turn) -> tuple[str, ...]:
        """At most three of the run's other types, drawn for each action."""
        action, own = ids.action_id(episode.id, turn.index), episode.problem.task_type
        others = [name for name in self.task_types if name != own]
        others.sort(key=lambda name: ids.derive_seed("task type", action, name))
        return tuple(others[:MOST_TYPES])

    def _visibility(self, turn: Turn) -> LabelVisibility:
        return self.visibility.get(turn.agent, LabelVisibility.NEVER)

    def _case(self, episode: Episode, turn: Turn, visibility: LabelVisibility) -> CoachCase:
        return case_of(episode, turn, visibility, sample=PLAIN_SAMPLE, duties=self.duties)


def trimmed(text: str) -> str:
    """The text without the prose lines that hold no number and no box; programs stay whole."""
    parts = [
        part if part.startswith("```") else _trimmed_prose(part) for part in _BLOCK.split(text)
    ]
    return "\n".join(part for part in parts if part)


def _trimmed_prose(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if _KEPT.search(line))


def _again(plain: CoachCase) -> CoachCase:
    return replace(plain, sample=PLAIN_SAMPLE + 1)


def _said(outcome: Outcome, *, success: bool) -> Outcome:
    return Outcome(success=success, answer=outcome.answer, method=outcome.method)
