"""Figures become findings: one shape for all, with a query that has the run in it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from mappa_core.audit import sql
from mappa_core.audit.records import Finding
from mappa_core.audit.statistics.regression import Estimate
from mappa_core.core import ids

Detail = Mapping[str, float | int | str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A finding before it belongs to a run; the fields are those of `audit.records.Finding`."""

    kind: str
    subject: str
    against: str = ""
    stratum: str = "all"
    verdict: str = ""
    estimate: float | None = None
    unit: str = "points"
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    margin: float | None = None
    actions: int = 0
    problems: int = 0
    iteration: int | None = None
    sql: str = ""
    """With `{run}` where the run's id goes."""
    detail: Detail = field(default_factory=dict[str, float | int | str | None])

    def finding(self, run_id: UUID) -> Finding:
        """The finding of one run; numbers that are not finite are absent."""
        number = "" if self.iteration is None else self.iteration
        return Finding(
            id=ids.content_id("finding", run_id, self.kind, self.subject, self.stratum, number),
            run_id=run_id,
            kind=self.kind,
            subject=self.subject,
            against=self.against,
            stratum=self.stratum,
            verdict=self.verdict,
            estimate=finite(self.estimate),
            unit=self.unit,
            low=finite(self.low),
            high=finite(self.high),
            p_value=finite(self.p_value),
            margin=self.margin,
            actions=self.actions,
            problems=self.problems,
            iteration=self.iteration,
            sql=sql.of_run(self.sql, run_id),
            detail={
                key: finite(value) if isinstance(value, float) else value
                for key, value in self.detail.items()
            },
        )


def measured(estimate: Estimate, draft: Draft) -> Draft:
    """The draft with the estimate's value, interval and, unless it has one, p-value."""
    low, high = estimate.interval()
    p_value = estimate.p_value if draft.p_value is None else draft.p_value
    return replace(draft, estimate=estimate.value, low=low, high=high, p_value=p_value)


def finite(value: float | None) -> float | None:
    """The number, or None where it is none."""
    return None if value is None or not math.isfinite(value) else float(value)
