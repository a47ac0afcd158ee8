"""Keeps both ends of an output that may be very long."""


class BothEnds:
    """Keeps the first and the last half of `limit_bytes`, and counts what went by between."""

    def __init__(self, limit_bytes: int) -> None:
        self._head_bytes = limit_bytes // 2
        self._tail_bytes = limit_bytes - self._head_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self.total_bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes."""
        self.total_bytes += len(chunk)
        room = self._head_bytes - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        del self._tail[: -self._tail_bytes]

    @property
    def omitted_bytes(self) -> int:
        """How many bytes of the middle are gone."""
        return self.total_bytes - len(self._head) - len(self._tail)

    def text(self) -> str:
        r"""What was kept, as UTF-8; other bytes read `\xNN`, a line marks what is missing."""
        if not self.omitted_bytes:
            return _readable(self._head + self._tail)
        mark = f"\n[... {self.omitted_bytes} bytes omitted ...]\n"
        return _readable(self._head) + mark + _readable(self._tail)


def _readable(data: bytearray) -> str:
    return data.decode("utf-8", "backslashreplace")
