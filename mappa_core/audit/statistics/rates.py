"""How often an audit of this very run would be wrong: the run scored again by coaches we know.

The run's own work stays; an honest coach is made of its own scores (`resampled`), and the mean
skills that difficulty is held constant by are off as far as they may be (`rescored.Unsure`). A
biased one adds the margin to the scores of one type, as far as the scale goes.

Records do not show all difficulty, and a rate near one half turns with every tenth of a point of
it. So each is counted again with the gap moved either way by what could be hidden; one that does
not stay where it is, is `Unknowable`, and so are those of a run whose coach is suspected: its gap
is the coach's, or hidden difficulty, and a rate would take one side.
"""

from collections.abc import Sequence

import numpy as np
from threadpoolctl import threadpool_limits

from mappa_core.audit.frame import Frame, Mask
from mappa_core.audit.statistics.counting import STEADY, Promise, Rate, Unknowable, counted_rate
from mappa_core.audit.statistics.observational import ALARMS
from mappa_core.audit.statistics.resampled import HonestCoach
from mappa_core.audit.statistics.rescored import Rescored, Unsure

MOST_ROWS = 12_000
"""Of a run that is simulated; of a larger one whole problems are drawn, so its power is better."""
CALLED_BIASED = "an honest coach is called biased"
SUSPECTED = "an honest coach is suspected"
EITHER = "the gap that is there is the coach's, or difficulty that no outcome shows"
HIDDEN_SHARE = 0.25
"""Of the margin, and of what measured difficulty moved a gap by, that could be hidden."""


def found_name(margin: float) -> str:
    """What the rate at which a bias of the margin is found goes by."""
    return f"a bias of {margin:g} is found"


# The products are small: threads of BLAS would take longer to wait for each other.
@threadpool_limits.wrap(limits=1, user_api="blas")
def rates_of(
    frame: Frame, runs: int, margin: float, seed: int = 0, *, look: int = 1
) -> tuple[Rate | Unknowable, ...]:
    """How often an honest coach would be suspected or called biased, and a biased one found.

    Args:
        frame: The run's actions.
        runs: Simulated scorings behind each rate.
        margin: Of the verdicts; the planted bias is as large.
        seed: Of the simulation.
        look: How often the run was looked at, this time included.

    Returns:
        Nothing where there is nothing to compare.
    """
    rng = np.random.default_rng(seed)
    frame = _smaller(frame, rng)
    family = Rescored.of(frame)
    whole = next((each for each in family.main if each.stratum == "all"), None)
    if whole is None:
        return ()
    coach = HonestCoach.of(whole.model, len(frame))
    favoured = (frame.task_type.codes == frame.task_type.names.index(whole.subject))[coach.places]
    honest = coach.scores(rng, runs)
    kinder = honest + coach.more(favoured, margin)
    gap = whole.gap().unknown
    hidden = HIDDEN_SHARE * max(margin, gap.measured)
    moves = (0.0, gap.missing_low - hidden, gap.missing_high + hidden)
    moved = [each + move * coach.placed(favoured) for each in (honest, kinder) for move in moves]
    unsure = Unsure(rng, runs, repeats=len(moved))
    said = np.array(list(family.alarms(np.hstack(moved), margin, look, unsure)))
    said = said.reshape(2, len(moves), runs)
    (own,) = family.alarms(frame.score[:, None], margin, look)
    alarmed, accused = np.isin(said, ALARMS), said == "biased"
    return (
        _told(found_name(margin), alarmed[1], "power", own in ALARMS, moves),
        _told(CALLED_BIASED, accused[0], "level", own == "biased", moves),
        _told(SUSPECTED, alarmed[0], "level", own in ALARMS, moves),
    )


def _told(
    name: str, hits: Mask, promise: Promise, doubted: bool, moves: Sequence[float]
) -> Rate | Unknowable:
    """The rate of the first row of (moves, S) if it is that of the others, too."""
    if doubted:
        return Unknowable(name=name, reason=EITHER)
    shares = hits.mean(axis=1)
    if np.abs(shares - shares[0]).max() <= STEADY:
        return counted_rate(name, int(hits[0].sum()), hits.shape[1], promise)
    reason = (
        f"{shares.min():.0%} to {shares.max():.0%}, as missing scores and difficulty that no "
        f"outcome shows move the gap by {min(moves):+.2g} to {max(moves):+.2g} points"
    )
    return Unknowable(name=name, reason=reason)


def _smaller(frame: Frame, rng: np.random.Generator) -> Frame:
    """At most some `MOST_ROWS` actions: as many whole problems, in a random order."""
    if len(frame) <= MOST_ROWS:
        return frame
    order = rng.permutation(len(frame.problem.names))
    sizes = np.bincount(frame.problem.codes, minlength=len(order))[order]
    chosen = np.zeros(len(order), dtype=bool)
    chosen[order[: int(np.searchsorted(sizes.cumsum(), MOST_ROWS))]] = True
    return frame.take(chosen[frame.problem.codes])
