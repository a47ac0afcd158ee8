"""Which action a person sees next.

Contested ones first tell where coaches go wrong, those of kinds the audit is unsure about tell
which way, and only a random sample may speak for all. They take turns, and every label keeps the
reason its action was shown for.
"""

from collections.abc import Iterator, Mapping
from uuid import UUID

from mappa_core.audit.records import Candidate, HumanLabel, Picked, ToLabel

ORDER: tuple[Picked, ...] = ("contested", "unsure", "random")


def queue(
    wanted: ToLabel, known: Mapping[UUID, HumanLabel], *, only: Picked | None = None
) -> Iterator[tuple[Candidate, Picked]]:
    """The actions to be shown, one reason after the other; none twice.

    What the random sample draws is yielded although it has a label, where that was given for
    another reason: the sample would otherwise lack the contested actions.

    Args:
        wanted: What could be shown.
        known: The person's labels by action; what they were shown is left out.
        only: One reason alone.
    """
    lists: dict[Picked, tuple[Candidate, ...]] = {
        "contested": wanted.contested,
        "unsure": wanted.unsure,
        "random": wanted.at_random,
    }
    left: dict[Picked, Iterator[Candidate]] = {
        reason: iter(lists[reason]) for reason in ORDER if only in (None, reason)
    }
    shown: set[tuple[UUID, bool]] = set()
    while left:
        for reason in tuple(left):
            candidate = _next(left[reason], reason, known, shown)
            if candidate is None:
                del left[reason]
            else:
                yield candidate, reason


def _next(
    candidates: Iterator[Candidate],
    reason: Picked,
    known: Mapping[UUID, HumanLabel],
    shown: set[tuple[UUID, bool]],
) -> Candidate | None:
    for candidate in candidates:
        label, at_random = known.get(candidate.action_id), reason == "random"
        done = label is not None and (not at_random or label.picked == "random")
        before = {(candidate.action_id, True), (candidate.action_id, at_random)} & shown
        if not done and not before:
            shown.add((candidate.action_id, at_random))
            return candidate
    return None
