"""One team on the held-out problems: what it came to, with the failures beside every mean.

    success     share of episodes that succeeded
    pass@k      chance that one of k samples of a problem succeeds
    majority    share of problems whose most frequent answer is right; where answers can be compared
    skill       mean over problems of the mean skill of their episodes; where tasks are measured

Each is a mean over problems, which are what its 95 % interval takes as drawn (`intervals`).
Every episode counts in every mean: one that failed outside or handed in nothing that can be
measured is no success and has skill 0.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from uuid import UUID

import numpy as np

from mappa_core.core.records.runs import AgentFigures, EpisodeSummary
from mappa_core.evaluate.intervals import share_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The held-out episodes of one policy step."""

    step: int
    """Updates the policies had had."""
    problems: int
    episodes: int
    failed: int
    """Episodes that something outside ended."""
    invalid: int
    """Episodes that handed in nothing that could be measured."""
    success: float
    pass_at: Mapping[int, float]
    """By k, for 1, 2, 4, ... and all samples."""
    majority: float | None
    skill: float | None
    intervals: Mapping[str, tuple[float, float]]
    """95 %, of each mean by its name: `success`, `pass@2`, ..."""
    agents: tuple[AgentFigures, ...]

    def metrics(self) -> dict[str, float]:
        """For the tracker and for scripts."""
        named: dict[str, float | None] = {
            "held_out/episodes": float(self.episodes),
            "held_out/failed": float(self.failed),
            "held_out/invalid": float(self.invalid),
            "held_out/success": self.success,
            "held_out/majority": self.majority,
            "held_out/skill": self.skill,
        }
        named |= {f"held_out/pass_at_{k}": value for k, value in self.pass_at.items()}
        for name, (low, high) in self.intervals.items():
            key = f"held_out/{name.replace('@', '_at_')}"
            named |= {f"{key}_low": low, f"{key}_high": high}
        for agent in self.agents:
            named |= {f"{agent.agent}/held_out/{k}": v for k, v in _rates(self, agent).items()}
        return {name: value for name, value in named.items() if value is not None}

    def table(self) -> list[dict[str, str | float]]:
        """For people: each mean with what it is over and what failed in it."""
        means: dict[str, tuple[str, float | None]] = {
            "success": ("success", self.success),
            **{f"pass@{k}": (f"pass@{k}", v) for k, v in self.pass_at.items() if k > 1},
            "majority": ("majority vote", self.majority),
            "skill": ("skill (fair mean)", self.skill),
        }
        beside: dict[str, str | float] = {
            "problems": self.problems,
            "episodes": self.episodes,
            "failed": self.failed,
            "invalid": self.invalid,
        }
        return [
            {
                "figure": title,
                "mean": round(value, 4),
                "95 % interval": "{:.3f} to {:.3f}".format(*self.intervals[name]),
                **beside,
            }
            for name, (title, value) in means.items()
            if value is not None
        ]

    def agents_table(self) -> list[dict[str, str | float]]:
        """For people: what each agent does, whether it succeeds or not."""
        return [{"agent": agent.agent, **_rates(self, agent)} for agent in self.agents]


def report(step: int, episodes: Sequence[EpisodeSummary], agents: Sequence[AgentFigures]) -> Report:
    """Sum up the episodes of one policy step.

    Args:
        step: Updates the policies had had.
        episodes: All of them, each problem's in the order they were drawn.
        agents: What their agents did.

    Raises:
        ValueError: There are no episodes.
    """
    if not episodes:
        raise ValueError("no held-out episode has been played")
    by_problem, means = _by_problem(episodes), _means(episodes)
    overall = {name: _mean(values) for name, values in means.items()}
    return Report(
        step=step,
        problems=len(by_problem),
        episodes=len(episodes),
        failed=sum(one.failed for one in episodes),
        invalid=sum(one.invalid for one in episodes),
        success=overall["success"],
        pass_at={int(name[5:]): value for name, value in overall.items() if "@" in name},
        majority=overall.get("majority"),
        skill=overall.get("skill"),
        intervals={name: share_interval(np.array(values)) for name, values in means.items()},
        agents=tuple(agents),
    )


def _means(episodes: Sequence[EpisodeSummary]) -> Mapping[str, Sequence[float]]:
    """By figure, what each problem came to."""
    successes, skills = successes_of(episodes), skills_of(episodes)
    fewest = min(map(len, successes.values()))
    elected = _elected(_by_problem(episodes))
    return {
        "success": [_mean(drawn) for drawn in successes.values()],
        **{
            f"pass@{k}": [_of_problem(samples, k) for samples in successes.values()]
            for k in _powers_up_to(fewest)
        },
        **({"majority": elected} if elected else {}),
        **({"skill": [_mean(values) for values in skills.values()]} if skills else {}),
    }


def pass_at_k(outcomes: Mapping[UUID, Sequence[bool]], k: int) -> float:
    """The chance that one of k samples of a problem is right, in [0, 1].

    pass@k = mean over problems of 1 - C(n - c, k) / C(n, k)

    for n samples of which c are right (Chen et al. 2021, arXiv 2107.03374, equation 1): unbiased.
    Taking the best of the first k samples instead would be unbiased too, but noisier;
    1 - (1 - c/n)^k is biased.

    Args:
        outcomes: Success of each problem's samples.
        k: Samples a user would draw.

    Raises:
        ValueError: There is no problem, or one has fewer than `k` samples.
    """
    if k < 1 or not outcomes or min(map(len, outcomes.values())) < k:
        raise ValueError(f"pass@{k} needs at least {max(k, 1)} samples of every problem")
    return sum(_of_problem(samples, k) for samples in outcomes.values()) / len(outcomes)


def _of_problem(samples: Sequence[bool], k: int) -> float:
    total, wrong = len(samples), len(samples) - sum(samples)
    return 1 - comb(wrong, k) / comb(total, k)


def majority(answers: Sequence[str | None]) -> str | None:
    """The most frequent answer; None where no sample answered. The earliest wins a tie.

    Args:
        answers: Of one problem's samples, in order; None for a sample without an answer.
    """
    given = Counter(answer for answer in answers if answer is not None)
    return given.most_common(1)[0][0] if given else None


def skills_of(episodes: Sequence[EpisodeSummary]) -> Mapping[UUID, Sequence[float]]:
    """Skill of each problem's episodes, 0 for failures; empty where nothing is measured."""
    if not any(one.metric for one in episodes):
        return {}
    return {
        id_: [one.skill or 0.0 for one in drawn] for id_, drawn in _by_problem(episodes).items()
    }


def successes_of(episodes: Sequence[EpisodeSummary]) -> Mapping[UUID, Sequence[bool]]:
    """Success of each problem's episodes."""
    return {
        id_: [bool(one.success) for one in drawn] for id_, drawn in _by_problem(episodes).items()
    }


def _by_problem(episodes: Sequence[EpisodeSummary]) -> Mapping[UUID, list[EpisodeSummary]]:
    grouped: dict[UUID, list[EpisodeSummary]] = defaultdict(list)
    for one in episodes:
        grouped[one.problem_id].append(one)
    return grouped


def _elected(by_problem: Mapping[UUID, Sequence[EpisodeSummary]]) -> Sequence[float]:
    """Whether each vote is right; empty where files are handed in, of which no two are the same."""
    if any(one.metric for drawn in by_problem.values() for one in drawn):
        return ()
    return [_elects_right(drawn) for drawn in by_problem.values()]


def _elects_right(drawn: Sequence[EpisodeSummary]) -> float:
    elected = majority([one.answer for one in drawn])
    return float(any(one.success for one in drawn if one.answer == elected))


def _rates(told: Report, agent: AgentFigures) -> dict[str, float]:
    return {
        "actions_per_episode": agent.actions / told.episodes,
        "tool_calls_per_action": agent.tool_calls / agent.actions,
        "tokens_per_action": agent.tokens / agent.actions,
    }


def _powers_up_to(most: int) -> list[int]:
    powers = [2**n for n in range(most.bit_length()) if 2**n <= most]
    return sorted({*powers, most} - {0})


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
