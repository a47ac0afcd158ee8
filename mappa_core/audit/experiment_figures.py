"""What experiments on stored actions found, as figures."""

from collections.abc import Iterator, Sequence

from mappa_core.audit.records import Figure
from mappa_core.audit.score_figures import measured
from mappa_core.audit.statistics.paired import PairedEffect

UNSEEN = "the coach does not see it"
_TODAY = {"biased": "moved", "equivalent": "as stored", "cannot tell": "cannot tell"}


def experiment_figures(effects: Sequence[PairedEffect]) -> Iterator[Figure]:
    """One figure for every change and stratum."""
    for effect in effects:
        judged = effect.judged
        verdict = (
            _TODAY[judged.verdict] if judged and effect.rule == "as stored" else effect.verdict
        )
        figure = Figure(
            kind="experiment",
            subject=effect.subject,
            against=effect.against,
            stratum=effect.stratum,
            verdict=verdict,
            p_value=None if judged is None else judged.adjusted_p,
            margin=None if judged is None else judged.margin,
            actions=effect.actions,
            problems=effect.problems,
            sql=effect.sql,
            detail={
                "beyond": effect.beyond or None,
                "rule": effect.rule,
                "seen": "" if effect.seen else UNSEEN,
                "missing": effect.missing,
                "deviation": effect.deviation,
                "more_actions": 0 if judged is None else judged.more_actions,
            },
        )
        yield measured(figure, effect.estimate)
