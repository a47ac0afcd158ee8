"""Which action a person sees next.

Contested ones first tell where coaches go wrong, those of kinds the audit is unsure about tell
which way, and only a random sample may speak for all. They take turns, and every label keeps the
reason its action was shown for.
"""

from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

from mappa_core.audit.records import SAMPLES, Candidate, HumanLabel, Picked


def queue(
    wanted: Mapping[Picked, Sequence[Candidate]],
    known: Mapping[UUID, HumanLabel],
    *,
    only: Picked | None = None,
) -> Iterator[tuple[Candidate, Picked]]:
    """The actions to be shown, one reason after the other; none twice.

    What a random sample draws is yielded although it has a label, where that was given for
    another reason: the sample would otherwise lack the contested actions.

    Args:
        wanted: What could be shown, by reason, most wanted first.
        known: The person's labels by action; what they were shown is left out.
        only: One reason alone; `audit` is never one of several.
    """
    shown: set[tuple[UUID, bool]] = set()
    left: dict[Picked, Iterator[Candidate]] = {
        reason: _fresh(candidates, reason, known, shown)
        for reason, candidates in wanted.items()
        if only == reason or (only is None and reason != "audit")
    }
    while left:
        for reason in tuple(left):
            candidate = next(left[reason], None)
            if candidate is None:
                del left[reason]
            else:
                yield candidate, reason


def _fresh(
    candidates: Sequence[Candidate],
    reason: Picked,
    known: Mapping[UUID, HumanLabel],
    shown: set[tuple[UUID, bool]],
) -> Iterator[Candidate]:
    at_random = reason in SAMPLES
    for candidate in candidates:
        label = known.get(candidate.action_id)
        done = label is not None and (not at_random or label.picked in SAMPLES)
        before = {(candidate.action_id, True), (candidate.action_id, at_random)} & shown
        if not done and not before:
            shown.add((candidate.action_id, at_random))
            yield candidate
