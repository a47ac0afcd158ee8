"""Plays toy teams so small that all their episodes can be listed, and exact gradients computed.

A team is a graph of moments: at each, one agent chooses action 0 or 1, which decides its reward and
the next moment, or that there is none. The learner's policy is a table, pi(1) = sigmoid(logit) at
each moment, so that grad log pi(a) = a - pi(1). What is exact here shares no code with `credit`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Generator, Tensor

LEARNER = "learner"
"""The agent whose gradient is taken; all others only decide what comes next."""
PENALTY = 0.5
"""Off the reward of a truncated action, where those are penalised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One agent about to act; pairs are of action 0 and action 1."""

    agent: str = LEARNER
    logit: float = 0.0
    """Of action 1."""
    rewards: tuple[float, float] = (0.0, 0.0)
    leads: tuple[int | None, int | None] = (None, None)
    """The moment that comes next; None where the episode ends."""
    scored: tuple[float, float] = (1.0, 1.0)
    """Probability that the coach gives a score."""
    truncated: tuple[bool, bool] = (False, False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """Moments, and where the episodes of each kind of problem begin."""

    name: str
    moments: tuple[Moment, ...]
    starts: tuple[int, ...]
    truncated: Literal["keep", "mask", "penalise"] = "keep"

    def rewards(self) -> Tensor:
        """What each action earns; (M, 2)."""
        penalty = PENALTY if self.truncated == "penalise" else 0.0
        rewards = torch.tensor([m.rewards for m in self.moments], dtype=torch.float64)
        return rewards - penalty * torch.tensor([m.truncated for m in self.moments])

    def counted(self) -> Tensor:
        """Probability that an action counts; (M, 2)."""
        scored = torch.tensor([m.scored for m in self.moments], dtype=torch.float64)
        masked = torch.tensor([m.truncated for m in self.moments]) & (self.truncated == "mask")
        return scored.masked_fill(masked, 0.0)

    def logits(self) -> Tensor:
        """Of action 1; (M,)."""
        return torch.tensor([m.logit for m in self.moments], dtype=torch.float64)

    def learns(self) -> Tensor:
        """Which moments are the learner's; (M,)."""
        return torch.tensor([m.agent == LEARNER for m in self.moments])

    def all_counted(self) -> "Team":
        """The same team with nothing left out."""
        moments = tuple(replace(m, scored=(1.0, 1.0)) for m in self.moments)
        return replace(self, moments=moments, truncated="keep")


Path = tuple[tuple[int, int], ...]
"""One episode: moments and actions, in order."""


def episodes(team: Team, logits: Tensor) -> Iterator[tuple[Tensor, Path]]:
    """Yield every possible episode with its probability, over all kinds of problems."""

    def onwards(at: int | None, likely: Tensor, path: Path) -> Iterator[tuple[Tensor, Path]]:
        if at is None:
            yield likely, path
            return
        one = logits[at].sigmoid()
        for action, chance in ((0, 1 - one), (1, one)):
            yield from onwards(
                team.moments[at].leads[action], likely * chance, (*path, (at, action))
            )

    for start in team.starts:
        yield from onwards(start, logits.new_tensor(1 / len(team.starts)), ())


def exact_gradient(team: Team, discount: float | None) -> Tensor:
    """Compute E[sum_j grad log pi(a_j) R_j] of an episode's counted actions; (M,) float64.

    R_j is the action's reward or, with a discount, its return: the counted rewards from there on.
    """
    logits, learns = team.logits(), team.learns().tolist()
    rewards, counted = team.rewards().tolist(), team.counted().tolist()
    gradient = torch.zeros_like(logits)
    for likely, path in episodes(team, logits):
        own = [step for step in path if learns[step[0]]]
        for j, (moment, action) in enumerate(own):
            later = [] if discount is None else own[j + 1 :]
            value = rewards[moment][action]
            for distance, (at, then) in enumerate(later, start=1):
                value += (discount or 0.0) ** distance * counted[at][then] * rewards[at][then]
            chance = likely * counted[moment][action]
            gradient[moment] += chance * value * (action - logits[moment].sigmoid())
    return gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """Sampled episodes, batch after batch: E rows, as many columns as the learner's most visits."""

    moments: Tensor
    """(E, V) int64; -1 where the learner was not asked so often."""
    actions: Tensor
    """(E, V): 0 or 1."""
    counted: Tensor
    """(E, V) bool: it was asked, and its action counts."""
    rewards: Tensor
    """(E, V); 0 where none counts."""
    batches: int
    problems: int
    """Of a batch."""
    per_problem: int

    def values(self, discount: float | None) -> Tensor:
        """Rewards, or with a discount returns; (E, V)."""
        if discount is None:
            return self.rewards
        values = self.rewards.clone()
        for visit in reversed(range(values.shape[1] - 1)):
            values[:, visit] += discount * values[:, visit + 1]
        return values


def play(team: Team, batches: int, problems: int, per_problem: int, generator: Generator) -> Played:
    """Sample batches of episodes, `per_problem` of each problem; kinds of problems take turns."""
    chances, learns = team.logits().sigmoid(), team.learns()
    leads = torch.tensor([[-1 if to is None else to for to in m.leads] for m in team.moments])
    kinds = torch.arange(problems).repeat_interleave(per_problem).repeat(batches) % len(team.starts)
    at = torch.tensor(team.starts)[kinds]
    visits = torch.zeros_like(at)
    rows = torch.arange(len(at))
    paths = (path for _, path in episodes(team, team.logits()))
    width = max(sum(bool(learns[moment]) for moment, _ in path) for path in paths)
    moments = torch.full((len(at), width), -1)
    actions = torch.zeros((len(at), width), dtype=torch.int64)
    while len(rows):
        here = at[rows]
        drawn = torch.rand(len(rows), generator=generator, dtype=torch.float64)
        chosen = (drawn < chances[here]).long()
        own, mine = rows[learns[here]], learns[here]
        moments[own, visits[own]] = here[mine]
        actions[own, visits[own]] = chosen[mine]
        visits[own] += 1
        at[rows] = leads[here, chosen]
        rows = rows[at[rows] >= 0]
    asked = torch.rand(moments.shape, generator=generator, dtype=torch.float64)
    counted = (moments >= 0) & (asked < team.counted()[moments, actions])
    return Played(
        moments=moments,
        actions=actions,
        counted=counted,
        rewards=team.rewards()[moments, actions].where(counted, torch.tensor(0.0).double()),
        batches=batches,
        problems=problems,
        per_problem=per_problem,
    )


def _causes() -> Team:
    """Action 1 at the first visit raises the score of the second alone (issue 16's toy).

    The first score is a matter of luck.
    """
    moments: list[Moment] = []
    starts: list[int] = []
    for easy in (0.0, 0.2):
        luck = len(moments)
        starts.append(luck)
        moments += [
            Moment(agent="luck", leads=(luck + 1, luck + 2)),
            Moment(rewards=(0.1 + easy, 0.1 + easy), leads=(luck + 3, luck + 4)),
            Moment(rewards=(0.7 + easy, 0.7 + easy), leads=(luck + 3, luck + 4)),
            Moment(logit=0.3, rewards=(easy, 0.2)),
            Moment(logit=-0.2, rewards=(0.8 - easy, 0.9)),
        ]
    return Team(name="causes", moments=tuple(moments), starts=tuple(starts))


def _executor(
    name: str,
    scored: tuple[float, float] = (1.0, 1.0),
    truncated: Literal["keep", "mask", "penalise"] = "keep",
) -> Team:
    """Up to three tries: a tool ends the episode, a careful try (1, a long one) more often.

    After each failure a critic sends the learner on or gives up.
    """
    moments: list[Moment] = []
    starts: list[int] = []
    for hard in (0, 1):
        starts.append(len(moments))
        for visit in range(3):
            i = len(moments)
            onwards = None if visit == 2 else i + 4
            low, high = 0.15 + 0.25 * visit, 0.6 - 0.3 * hard + 0.15 * visit
            moments += [
                Moment(
                    logit=0.4 - 0.5 * visit + 0.3 * hard,
                    rewards=(low, high),
                    leads=(i + 1, i + 2),
                    scored=scored,
                    truncated=(False, visit == 1),
                ),
                Moment(agent="tool", logit=-0.8 - 0.5 * hard, leads=(i + 3, None)),
                Moment(agent="tool", logit=0.9 - hard, leads=(i + 3, None)),
                Moment(agent="critic", logit=0.8, leads=(None, onwards)),
            ]
    return Team(name=name, moments=tuple(moments), starts=tuple(starts), truncated=truncated)


def _debate() -> Team:
    """Up to four turns against an opponent; giving in (1) may end it, holding (0) never does."""
    moments: list[Moment] = []
    starts: list[int] = []
    for hard in (0.0, 1.0):
        starts.append(len(moments))
        for turn in range(4):
            held, gave, firm, soft = range(len(moments), len(moments) + 4)
            to_held, to_gave = (None, None) if turn == 3 else (held + 4, gave + 4)
            moments += [
                Moment(
                    logit=0.3 * turn - 0.4 * mood + 0.2 * hard,
                    rewards=(0.8 - 0.2 * turn - 0.2 * hard, 0.4 - 0.1 * turn + 0.3 * mood),
                    leads=(firm, soft),
                )
                for mood in (0, 1)
            ]
            moments.append(Moment(agent="opponent", logit=0.5 - hard, leads=(to_held, to_gave)))
            moments.append(Moment(agent="opponent", logit=-0.3, leads=(None, to_gave)))
    return Team(name="debate", moments=tuple(moments), starts=tuple(starts))


CAUSES = _causes()
TEAMS: tuple[Team, ...] = (
    CAUSES,
    _executor("executor"),
    _debate(),
    _executor("unscored", scored=(0.7, 0.7)),
    _executor("penalised", truncated="penalise"),
)
"""On these an estimator that compares with other episodes alone has no bias."""
LEFT_OUT: tuple[Team, ...] = (
    _executor("refused", scored=(1.0, 0.5)),
    _executor("masked", truncated="mask"),
)
"""Here what is left out depends on what was written: every estimator is biased."""
