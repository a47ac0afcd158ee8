"""The last step of a run is one at which the whole team can play."""

import pytest

from mappa_core.evaluate.steps import last_step
from tests.builders import make_policy, make_run

RUN = make_run("steps")


@pytest.mark.parametrize(
    ("solver", "verifier", "expected"),
    [
        ([0, 1, 2], [0, 1, 2], 2),
        ([0, 1, 2], [0, 1], 1),
        ([0, 1, 2], [0], 0),
        ([0, 1, 2], [0, 2], 2),
        ([0, 1, 3], [0, 1, 2], 1),
        ([], [], 0),
    ],
)
def test_every_agent_has_a_policy_at_the_last_step(
    solver: list[int], verifier: list[int], expected: int
) -> None:
    policies = [make_policy(RUN, "solver", step) for step in solver]
    policies += [make_policy(RUN, "verifier", step) for step in verifier]
    assert last_step(policies) == expected
