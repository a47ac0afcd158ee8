from hypothesis import given
from hypothesis import strategies as st

from mappa_core.core.streams import BothEnds


@given(st.lists(st.binary(max_size=40)), st.integers(1, 50))
def test_both_ends_are_kept_however_the_bytes_arrive(chunks: list[bytes], limit: int):
    whole = b"".join(chunks)
    kept = BothEnds(limit)
    for chunk in chunks:
        kept.feed(chunk)
    assert kept.total_bytes == len(whole)
    assert kept.omitted_bytes == max(0, len(whole) - limit)
    head, tail = limit // 2, limit - limit // 2
    if kept.omitted_bytes:
        start, end = whole[:head], whole[-tail:]
        assert kept.text().startswith(start.decode("utf-8", "backslashreplace"))
        assert kept.text().endswith(end.decode("utf-8", "backslashreplace"))
    else:
        assert kept.text() == whole.decode("utf-8", "backslashreplace")


def test_the_gap_is_marked():
    kept = BothEnds(4)
    kept.feed(b"abcdefgh")
    assert kept.text() == "ab\n[... 4 bytes omitted ...]\ngh"
