"""What the caller and a supervisor say to each other: one JSON text each way.

request   8 bytes of length, then the text; the socket stays open while the caller cares
reply     the text, then the end of the stream
"""

import json
import socket
import struct
from dataclasses import asdict, dataclass
from typing import TypedDict

from mappa_core.core.records.tools import Artifact, Limits, RejectedFile, ToolResult, ToolStatus

_LENGTH = struct.Struct("!Q")
_MAX_REQUEST_BYTES = 64 * 2**20


class _RequestText(TypedDict):
    code: str
    workspace: str | None
    limits: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One run that is asked for."""

    code: str
    workspace: str | None
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The sandbox itself failed."""

    reason: str


def encode_request(request: Request) -> bytes:
    """The request as it is sent; any `str` survives, lone surrogates included."""
    text = json.dumps(asdict(request)).encode("ascii")
    return _LENGTH.pack(len(text)) + text


def decode_request(text: bytes) -> Request:
    """The request of a JSON text."""
    message: _RequestText = json.loads(text)
    limits = Limits(**message["limits"])  # pyright: ignore[reportArgumentType]
    return Request(code=message["code"], workspace=message["workspace"], limits=limits)


def receive_request(connection: socket.socket) -> Request:
    """Wait for one request.

    Raises:
        EOFError: The caller is gone.
    """
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > _MAX_REQUEST_BYTES:
        raise EOFError
    return decode_request(_exactly(connection, length))


def encode_reply(reply: ToolResult | Failure) -> bytes:
    """The reply as it is sent."""
    return json.dumps(asdict(reply)).encode("ascii")


def decode_reply(text: bytes) -> ToolResult | Failure:
    """The reply that was sent."""
    fields = json.loads(text)
    if "reason" in fields:
        return Failure(**fields)
    fields["status"] = ToolStatus(fields["status"])
    fields["written"] = tuple(Artifact(**file) for file in fields["written"])
    if fields["read"] is not None:
        fields["read"] = tuple(Artifact(**file) for file in fields["read"])
    fields["removed"] = tuple(fields["removed"])
    fields["rejected"] = tuple(RejectedFile(**file) for file in fields["rejected"])
    return ToolResult(**fields)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(min(size - len(data), 2**16))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)
