"""Every Python string has a storable form, and comes back from it."""

import json
import math

from hypothesis import example, given
from hypothesis import strategies as st

from mappa_core.store.text import escape, escape_json, unescape, unescape_json

ANY_TEXT = st.text(st.characters(exclude_categories=()))
ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | ANY_TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner),
    max_leaves=10,
)


@given(ANY_TEXT)
@example("\x00")
@example("␛0000")
@example("\ud83d\ude00")
def test_text_comes_back_and_its_stored_form_is_valid(text: str) -> None:
    stored = escape(text)
    stored.encode("utf-8")
    assert "\x00" not in stored
    assert unescape(stored) == text


def test_the_stored_form_is_readable() -> None:
    assert escape("a\x00b\udc80c␛") == "a␛0000b␛DC80c␛241B"
    assert escape("plain é 😀\n") == "plain é 😀\n"


@given(ANY_JSON)
def test_json_comes_back_and_its_stored_form_is_valid(value: object) -> None:
    stored = escape_json(value)
    json.dumps(stored, ensure_ascii=False, allow_nan=False).encode("utf-8")
    assert unescape_json(stored) == value


def test_numbers_that_json_lacks_are_stored_by_name() -> None:
    stored = escape_json({"loss": math.nan, "kl": -math.inf, "norm": 1.0})
    assert stored == {"loss": "nan", "kl": "-inf", "norm": 1.0}
    assert math.isnan(float(stored["loss"]))
