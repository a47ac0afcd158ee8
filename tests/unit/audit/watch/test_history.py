"""Reading a run iteration by iteration gives what reading it whole gives."""

import numpy as np
import pytest

from mappa_core.audit.config import AuditConfig
from mappa_core.audit.frame import Frame
from mappa_core.audit.statistics.regression import cluster_sums, contrast, fit
from mappa_core.audit.statistics.simulation import World, simulate
from mappa_core.audit.watch.alerts import Alert, alerts
from mappa_core.audit.watch.anchors import NO_ANCHORS
from mappa_core.audit.watch.drifting import drift_state
from mappa_core.audit.watch.history import RunningSums
from tests.unit.audit.frames import make_frame

NAN = float("nan")


def read_in_steps(frame: Frame) -> RunningSums:
    first, *later = (frame.take(frame.iteration == i) for i in np.unique(frame.iteration))
    seen = RunningSums.of(first)
    for rows in later:
        seen = seen.extended(rows)
    return seen


def found_in(sums: RunningSums) -> list[list[float]]:
    return [found.bets.e_values.tolist() for found in sums.divergences()]


def test_in_steps_is_as_whole() -> None:
    frame = simulate(World(problems=40), np.random.default_rng(0))
    # Problems come back, as in training.
    frame.iteration[:] = np.arange(len(frame)) % 5 + 1
    steps, whole = read_in_steps(frame), RunningSums.of(frame)
    found = list(steps.divergences())
    assert len(found) == 6
    for one in found:
        own = frame.agent.codes == frame.agent.names.index(one.agent)
        rows = frame.take(
            own & (frame.task_type.codes == frame.task_type.names.index(one.task_type))
        )
        assert (one.actions, one.problems) == (len(rows), rows.problem_count)
        time, ones = rows.iteration.astype(float), np.ones(len(rows))
        for found, value, beside in (
            (one.estimate, rows.success, rows.score),
            (one.score, rows.score, rows.success),
        ):
            columns = np.column_stack([ones, beside, time])
            sums = cluster_sums(columns, value, rows.problem.codes)
            expected = contrast(fit(sums), np.array([0.0, 0.0, 4.0]))
            assert found.value == pytest.approx(expected.value)
            assert found.standard_error == pytest.approx(expected.standard_error)
    for one, other in zip(found_in(steps), found_in(whole), strict=True):
        assert one == pytest.approx(other)
    assert steps.stream.iterations == whole.stream.iterations == (1, 2, 3, 4, 5)
    assert steps.stream.problems == whole.stream.problems
    for one, other in zip(steps.stream.rounds, whole.stream.rounds, strict=True):
        assert one == pytest.approx(other)


def raised(frame: Frame, config: AuditConfig | None = None) -> dict[str, Alert]:
    seen = RunningSums.of(frame)
    last = int(frame.iteration.max())
    found = alerts(
        frame.take(frame.iteration == last),
        last,
        seen,
        drift_state(seen.stream, NO_ANCHORS),
        config or AuditConfig(),
    )
    return {f"{alert.kind} {alert.unit}": alert for alert in found}


def test_a_healthy_iteration_raises_nothing() -> None:
    frame = simulate(World(problems=40, iterations=1), np.random.default_rng(0))
    assert raised(frame) == {}


def test_scores_that_cannot_teach_raise_alerts() -> None:
    found = raised(make_frame([10.0] * 10))
    assert set(found) == {
        "health share at the mode",
        "health share at the ceiling",
        "health bits of entropy",
    }
    assert (
        found["health share at the ceiling"].what == "solver: 100% of its scores are 10 (limit 0.9)"
    )
    assert {alert.stop for alert in found.values()} == {"health"}
    lenient = AuditConfig(most_at_mode=1.0, most_at_ceiling=1.0, least_entropy_bits=0.0)
    assert raised(make_frame([10.0] * 10), lenient) == {}


def test_replies_nobody_can_read_raise_an_alert() -> None:
    scores = [float(score) for score in range(9)]
    frame = make_frame([*scores, NAN], unparsed=[False] * 9 + [True])
    assert raised(frame)["health share unparsed"].estimate == pytest.approx(0.1)
    lenient = AuditConfig(most_unparsed=0.1)
    assert "health share unparsed" not in raised(frame, lenient)


def test_what_is_missing_raises_an_alert_where_it_could_matter() -> None:
    kinds = ["a"] * 10 + ["b"] * 10
    scores = [float(score) for score in range(10)] * 2
    frame, name = (
        make_frame([NAN, NAN, *scores[2:]], task_type=kinds),
        "unscored points of possible bias",
    )
    alert = raised(frame)[name]
    # Two of ten missing scores, 0 or 10 each: the mean of 5.5 could be 4.4 or 6.4.
    assert alert.estimate == pytest.approx(1.1)
    assert alert.subject == "a"
    assert name not in raised(frame, AuditConfig(unscored_points=1.2))


def test_scores_that_rise_alone_raise_an_alert() -> None:
    """From the 11th of 20 iterations on, wrong work gets what right work got."""
    rows = [(number, iteration) for iteration in range(1, 21) for number in range(16)]
    right = [number % 4 > (1 if iteration <= 10 else 2) for number, iteration in rows]
    kind = [2.0 * (iteration > 10) for _, iteration in rows]
    frame = make_frame(
        [4.0 + 2 * won + more for won, more in zip(right, kind, strict=True)],
        problem=[str(number) for number, _ in rows],
        iteration=[iteration for _, iteration in rows],
        success=[float(won) for won in right],
    )
    alert = raised(frame)["divergence largest e-value"]
    assert alert.since == 11
    assert alert.estimate > alert.limit == 20
    said = "solver's scores on a rise where success does not, since iteration 11: +"
    assert alert.what.startswith(said)
    assert alert.what.endswith("(false in at most 5% of runs)")
    # As far as they go, the first ten say nothing.
    assert "divergence largest e-value" not in raised(frame.take(frame.iteration <= 10))
