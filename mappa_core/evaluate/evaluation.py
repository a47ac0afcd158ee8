"""A team before and after training: two policy steps on held-out problems, compared."""

from collections.abc import Sequence
from dataclasses import dataclass

from mappa_core.core.records.runs import EpisodeSummary
from mappa_core.evaluate.comparison import Comparison, compare
from mappa_core.evaluate.report import Report, skills_of, successes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """What was measured of one policy step."""

    report: Report
    episodes: Sequence[EpisodeSummary]


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

    def metrics(self) -> dict[str, float]:
        """For the tracker and for scripts."""
        found = {**self.after.metrics(), **self.success.metrics()}
        if self.skill is not None:
            found |= self.skill.metrics("held_out/skill")
        return found


def evaluation(
    run: str, before: HeldOut, after: HeldOut, *, resamples: int, seed: int
) -> Evaluation:
    """Compare two policy steps of one run on the same held-out problems, paired.

    Args:
        run: Its name.
        before: The earlier step.
        after: The later one.
        resamples: Bootstrap resamples.
        seed: Of the resampling.

    Raises:
        ValueError: They were measured on different problems.
    """
    skills = skills_of(before.episodes), skills_of(after.episodes)
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
    )
