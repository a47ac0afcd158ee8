"""What the coach's own repeats, other coaches and people say of its scores, as drafts."""

from collections.abc import Iterator

from mappa_core.audit import sql
from mappa_core.audit.opinions import Opinions
from mappa_core.audit.statistics.agreement import (
    Agreement,
    LabelledScores,
    agreement,
    corrected_mean,
)
from mappa_core.audit.statistics.reliability import noise
from mappa_core.audit.writing import Draft


def other_findings(opinions: Opinions, labelled: LabelledScores) -> Iterator[Draft]:
    """A finding for each of them whose scores there are."""
    trainer = opinions.trainer
    if trainer is not None:
        yield from _repeats(opinions, trainer)
        for code in opinions.scorer.present():
            if code != trainer:
                yield from _second(opinions, trainer, code)
    yield from _people(labelled)


def _repeats(opinions: Opinions, trainer: int) -> Iterator[Draft]:
    found = noise(opinions.table(trainer))
    if found is not None:
        name = opinions.scorer.names[trainer]
        yield Draft(
            kind="noise",
            subject=name,
            estimate=found.within_deviation,
            unit="points within an action",
            actions=found.actions,
            sql=sql.repeats(name),
            detail={
                "reliability": found.reliability,
                "reliability_low": found.low,
                "reliability_high": found.high,
                "flips": found.flips,
                "repeats": found.repeats,
            },
        )


def _second(opinions: Opinions, trainer: int, code: int) -> Iterator[Draft]:
    agreed = agreement(opinions.means(trainer), opinions.means(code))
    if agreed is not None:
        first, second = opinions.scorer.names[trainer], opinions.scorer.names[code]
        yield _agreed("second_coach", second, agreed, sql.second(first, second), against=first)


def _people(labelled: LabelledScores) -> Iterator[Draft]:
    """Whether people agree, and what they would have said on average."""
    agreed = agreement(labelled.scores, labelled.labels)
    if agreed is not None:
        yield _agreed("people", "the coach and people", agreed, sql.LABELS)
    people = corrected_mean(labelled)
    if people is not None:
        yield Draft(
            kind="people",
            subject="mean score people would give",
            estimate=people.value,
            unit="points",
            low=people.low,
            high=people.high,
            actions=people.labels,
            sql=sql.PEOPLES_MEAN,
            detail={"trust": people.trust},
        )


def _agreed(kind: str, subject: str, found: Agreement, query: str, against: str = "") -> Draft:
    return Draft(
        kind=kind,
        subject=subject,
        against=against,
        estimate=found.alpha,
        unit="Krippendorff's alpha",
        low=found.low,
        high=found.high,
        actions=found.actions,
        sql=query,
        detail={"kappa": found.kappa, "difference": found.difference},
    )
