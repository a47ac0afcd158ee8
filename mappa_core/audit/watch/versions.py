"""When the model behind the coach changed, as its replies said: evidence about a drift."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mappa_core.audit.records import AnchorScore, VersionCount


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChange:
    """An iteration whose scores are by another version of the coach's model than those before."""

    iteration: int
    before: str
    after: str
    likely_cause: bool = False
    """Whether a drift, that the coach may be behind, set in at this iteration or near it."""

    @property
    def says(self) -> str:
        """The change in words."""
        return (
            f"the provider's model changed from {self.before} to {self.after} "
            f"at iteration {self.iteration}"
        )


def model_changes(
    anchors: Sequence[AnchorScore], counts: Sequence[VersionCount] = ()
) -> tuple[ModelChange, ...]:
    """Every change that the anchors' scores or those that trained show, by iteration.

    An iteration's version is the one behind most of its scores.
    """
    found = {change.iteration: change for change in _changes(_of_anchors(anchors))}
    found |= {change.iteration: change for change in _changes(_of_training(counts))}
    return tuple(found[iteration] for iteration in sorted(found))


def _of_anchors(scores: Sequence[AnchorScore]) -> Mapping[int, Counter[str]]:
    versions: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for score in scores:
        # One that did not come has the name that was asked for, not the one that would answer.
        if score.score is not None:
            versions[score.iteration][score.model_version] += 1
    return versions


def _of_training(counts: Sequence[VersionCount]) -> Mapping[int, Counter[str]]:
    versions: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for row in counts:
        versions[row.iteration][row.model_version] += row.actions
    return versions


def _changes(versions: Mapping[int, Counter[str]]) -> Iterator[ModelChange]:
    before: str | None = None
    for iteration in sorted(versions):
        counts = versions[iteration]
        # Of equally many the name that comes first, so that the order of rows does not matter.
        after = min(counts, key=lambda version: (-counts[version], version))
        if before is not None and after != before:
            yield ModelChange(iteration=iteration, before=before, after=after)
        before = after
