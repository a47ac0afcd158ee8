"""A team before and after training on the same held-out problems: as a whole and by stratum.

A stratum is all problems of one task type, or of one value of an attribute that problems have:
`contest` sets AIME beside AMC, `year` the old beside the new.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mappa_core.core.errors import ConfigError
from mappa_core.core.records.runs import EpisodeSummary
from mappa_core.evaluate.comparison import Comparison, compare
from mappa_core.evaluate.fair import FairFigure, fair_figures
from mappa_core.evaluate.report import Report, report, skills_of, successes_of

ALWAYS = ("task_type", "contest")
"""Strata that every evaluation is broken down by, where there are several."""
UNKNOWN = "unknown"
"""The stratum of problems that do not have the attribute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """What was measured of one policy step."""

    report: Report
    episodes: Sequence[EpisodeSummary]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratum:
    """One kind of held-out problems, measured by itself."""

    before: Report
    """Without the agents' figures, as `after`."""
    after: Report
    success: Comparison

    @property
    def samples(self) -> int:
        """Episodes of each problem on each side."""
        return self.after.episodes // self.after.problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A team before and after training, on the same held-out problems with the same seeds."""

    run: str
    """Under this name the episodes are in the store."""
    before: Report
    after: Report
    success: Comparison
    skill: Comparison | None
    """Where tasks are measured and not only right or wrong."""
    strata: Mapping[str, Mapping[str, Stratum]]
    """By `task_type` or an attribute, then by its values; only what has several values."""
    fair: tuple[FairFigure, ...]
    """The paper's Fair metrics; empty where nothing is measured."""

    def metrics(self) -> dict[str, float]:
        """For the tracker and for scripts."""
        found = {**self.after.metrics(), **self.success.metrics()}
        if self.skill is not None:
            found |= self.skill.metrics("held_out/skill")
        for figure in self.fair:
            found |= figure.comparison.metrics(f"held_out/fair/{figure.task_type}/{figure.name}")
        return found


def evaluation(
    run: str,
    before: HeldOut,
    after: HeldOut,
    *,
    resamples: int,
    seed: int,
    by: Collection[str] = (),
) -> Evaluation:
    """Compare two policy steps of one run on the same held-out problems, paired.

    Args:
        run: Its name.
        before: The earlier step.
        after: The later one.
        resamples: Bootstrap resamples.
        seed: Of the resampling.
        by: Attributes to break the comparison down by, beside task type and contest.

    Raises:
        ConfigError: No problem has such an attribute.
        ValueError: They were measured on different problems.
    """
    skills = skills_of(before.episodes), skills_of(after.episodes)
    _check_known(by, after.episodes)
    strata = {
        name: _strata(name, before, after, resamples=resamples, seed=seed)
        for name in dict.fromkeys([*ALWAYS, *by])
    }
    return Evaluation(
        run=run,
        before=before.report,
        after=after.report,
        success=compare(
            successes_of(before.episodes),
            successes_of(after.episodes),
            resamples=resamples,
            seed=seed,
        ),
        skill=compare(*skills, resamples=resamples, seed=seed) if all(skills) else None,
        strata={name: found for name, found in strata.items() if len(found) > 1},
        fair=fair_figures(before.episodes, after.episodes, resamples=resamples, seed=seed),
    )


def _check_known(by: Collection[str], episodes: Sequence[EpisodeSummary]) -> None:
    known = {"task_type", *(name for one in episodes for name in one.attributes)}
    for name in by:
        if name not in known:
            raise ConfigError(
                f"no held-out problem has a {name}: they have {', '.join(sorted(known))}"
            )


def _strata(
    by: str, before: HeldOut, after: HeldOut, *, resamples: int, seed: int
) -> Mapping[str, Stratum]:
    earlier, later = _grouped(by, before.episodes), _grouped(by, after.episodes)
    return {
        value: Stratum(
            before=report(before.report.step, earlier.get(value, ()), ()),
            after=report(after.report.step, played, ()),
            success=compare(
                successes_of(earlier.get(value, ())),
                successes_of(played),
                resamples=resamples,
                seed=seed,
            ),
        )
        for value, played in later.items()
    }


def _grouped(by: str, episodes: Sequence[EpisodeSummary]) -> Mapping[str, Sequence[EpisodeSummary]]:
    """The episodes by what `by` is of their problem, in the order of its values."""

    def value(one: EpisodeSummary) -> str | int:
        return one.task_type if by == "task_type" else one.attributes.get(by, UNKNOWN)

    # Whole numbers in their own order, before words.
    values = sorted({value(one) for one in episodes}, key=lambda v: (isinstance(v, str), v))
    return {str(each): [one for one in episodes if value(one) == each] for each in values}
