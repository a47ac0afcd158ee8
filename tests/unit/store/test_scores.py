"""Ids of coaches and their scores: what is stored under them must be found again."""

from uuid import UUID

from mappa_core.coach.scoring import score_id
from mappa_core.store.scores import coach_id
from tests.builders import RULE_COACH


def test_ids_do_not_change_between_versions_of_this_code() -> None:
    assert coach_id(RULE_COACH) == UUID("e85af6f2-e33f-5c6b-9b60-a3dcc68d9b99")
    assert score_id(UUID(int=1), RULE_COACH, 0, 0) == UUID("d940be30-62f7-5ed2-9fd2-e06bb7b0a9f9")
