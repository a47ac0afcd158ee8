"""A number and its noun go together."""

import pytest

from mappa_core.core.counting import counted


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (12_345, "12,345 rows")]
)
def test_one_is_not_many(number: int, said: str) -> None:
    assert counted(number, "row") == said
