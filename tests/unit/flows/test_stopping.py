"""What `audit.stop_on` stops for."""

from collections.abc import Sequence

import pytest

from flows.audit import stops
from mappa_core.audit.config import StopOn


@pytest.mark.parametrize(
    ("named", "stopped"),
    [
        ((), False),
        (("coach",), False),
        (("coach", "rubric"), False),
        (("coach", "policy"), True),
        (("coach or policy",), True),
    ],
)
def test_a_drift_of_unknown_cause_stops_where_it_or_both_are_named(
    named: Sequence[StopOn], stopped: bool
) -> None:
    assert stops("coach or policy", named) is stopped
    assert stops("coach", named) is ("coach" in named)


def test_problems_that_may_have_changed_stop_by_that_name_alone() -> None:
    assert stops("policy or order", ("policy or order",))
    assert not stops("policy or order", ("coach", "policy"))
