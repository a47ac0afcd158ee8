"""What `audit.stop_on` stops for."""

from collections.abc import Sequence

import pytest

from flows.audit import stops
from mappa_core.audit.config import AuditConfig, StopOn


def watched(*named: StopOn, waived: bool = False) -> AuditConfig:
    return AuditConfig(stop_on=named, waive=("cannot-tell",) if waived else ())


@pytest.mark.parametrize(
    ("named", "stopped", "in_spite"),
    [
        ((), False, False),
        (("coach",), True, False),
        (("rubric", "health"), False, False),
        (("policy",), True, False),
        (("coach", "policy"), True, False),
        (("coach or policy",), True, True),
    ],
)
def test_a_drift_of_unknown_cause_stops_for_all_that_it_may_be_unless_it_is_waived(
    named: Sequence[StopOn], stopped: bool, in_spite: bool
) -> None:
    assert stops("coach or policy", watched(*named)) is stopped
    assert stops("coach or policy", watched(*named, waived=True)) is in_spite
    assert stops("coach", watched(*named)) is ("coach" in named)


def test_problems_that_may_have_changed_stop_where_the_policy_is_named() -> None:
    assert stops("policy or order", watched("policy or order"))
    assert stops("policy or order", watched("policy"))
    assert not stops("policy or order", watched("policy", waived=True))
    assert not stops("policy or order", watched("coach"))


def test_a_waiver_leaves_what_is_known() -> None:
    assert stops("coach", watched("coach", waived=True))


def test_a_person_is_asked_about_a_coach_of_which_nothing_can_be_told() -> None:
    assert AuditConfig().ask_on == ("biased", "suspected", "cannot tell")
