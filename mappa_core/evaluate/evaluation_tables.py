"""What a team can do by kind of problem, as rows of text: terminal and run page show the same."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mappa_core.evaluate.evaluation import Evaluation, Stratum
from mappa_core.evaluate.fair import FairFigure

_FAIR_NAMES = {
    "accuracy": "accuracy",
    "f1": "F1",
    "rmse_percent_of_range": "RMSE, % of range (lower is better)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KindTable:
    """Before and after, a row for each kind of problem."""

    title: str
    columns: tuple[str, ...]
    numbers: tuple[str, ...]
    """Those of `columns` that hold numbers."""
    rows: tuple[tuple[str, ...], ...]
    """Cells, as many as there are columns."""


def kind_tables(found: Evaluation) -> Iterator[KindTable]:
    """Give one for each way in which problems differ in kind, then the Fair metrics, if any."""
    for by, strata in found.strata.items():
        yield _strata_table(by.replace("_", " "), strata)
    if found.fair:
        yield _fair_table(found.fair)


def _strata_table(by: str, strata: Mapping[str, Stratum]) -> KindTable:
    """Before and after of each stratum, with what can be said of it alone."""
    after = ("any right", "majority")
    numbers = ("problems", "episodes", "before", "after", *after, "gain, points", "95 % interval")
    return KindTable(
        title=f"held-out problems by {by}",
        columns=(by, *numbers, ""),
        numbers=numbers,
        rows=tuple(
            (
                name,
                str(each.after.problems),
                str(each.after.episodes),
                f"{each.success.before:.1%}",
                f"{each.success.after:.1%}",
                f"{each.after.pass_at[max(each.after.pass_at)]:.1%}",
                "" if each.after.majority is None else f"{each.after.majority:.1%}",
                f"{100 * each.success.difference:+.1f}",
                f"{100 * each.success.low:+.1f} to {100 * each.success.high:+.1f}",
                each.success.verdict,
            )
            for name, each in strata.items()
        ),
    )


def _fair_table(figures: Sequence[FairFigure]) -> KindTable:
    """The paper's table: every episode counts, a failure as much as a constant prediction."""
    numbers = ("tasks", "charged", "before", "after", "change", "95 % interval")
    return KindTable(
        title="Fair metrics: a failed episode is charged a constant prediction's value",
        columns=("task type", "figure", *numbers, ""),
        numbers=numbers,
        rows=tuple(
            (
                each.task_type,
                _FAIR_NAMES[each.name],
                str(each.comparison.problems),
                f"{each.charged[0]}, {each.charged[1]} of {each.comparison.episodes}",
                f"{each.comparison.before:.3f}",
                f"{each.comparison.after:.3f}",
                f"{each.comparison.difference:+.3f}",
                f"{each.comparison.low:+.3f} to {each.comparison.high:+.3f}",
                each.verdict,
            )
            for each in figures
        ),
    )
