"""Since when: which of an experiment's gaps are dated, and of which actions."""

import numpy as np
import pytest

from mappa_core.audit.policy_figures import onset_figures
from mappa_core.audit.statistics.paired import experiment_effects
from tests.unit.audit.experiment_worlds import Told, make_experiment
from tests.unit.audit.frames import make_frame


def for_all(told: np.ndarray, agent: np.ndarray, success: np.ndarray) -> np.ndarray:
    return 2.0 * (told == 0)


def for_right(told: np.ndarray, agent: np.ndarray, success: np.ndarray) -> np.ndarray:
    return 2.0 * ((told == 0) & (success == 1))


def crossed(told: np.ndarray, agent: np.ndarray, success: np.ndarray) -> np.ndarray:
    """Nothing for any agent, and nothing for any outcome."""
    return np.where(agent == success, 2.0, -2.0) * (told == 0)


@pytest.mark.parametrize(
    ("favour", "dated"),
    [
        (for_all, {"all"}),
        (for_right, {"all"}),
        (crossed, {"one, right", "one, wrong", "two, right", "two, wrong"}),
    ],
)
def test_a_part_is_dated_where_no_whole_that_holds_it_is(favour: Told, dated: set[str]) -> None:
    rng = np.random.default_rng(1)
    # As many right as wrong of each agent, or some of it is left in the wholes.
    asked = make_experiment(rng, favour, actions=400, noise=0.3, level=7.0, agents=("one", "two"))
    rows = asked.change.codes == asked.change.names.index("as it was")
    frame = make_frame(
        list(asked.stored[rows]),
        task_type=[asked.task_type.names[code] for code in asked.task_type.codes[rows]],
        agent=[asked.agent.names[code] for code in asked.agent.codes[rows]],
        problem=[asked.problem.names[code] for code in asked.problem.codes[rows]],
        iteration=[int(each) for each in rng.integers(1, 5, int(rows.sum()))],
        success=list(asked.success[rows]),
    )
    found = {f.stratum: f for f in onset_figures(frame, (), experiment_effects(asked))}
    assert set(found) == dated
    one = (frame.agent.codes == 0) & (frame.success == 1)
    assert "one, right" not in found or found["one, right"].actions == one.sum()
