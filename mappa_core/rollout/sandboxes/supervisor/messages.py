"""What a caller and a supervisor say to each other: one JSON text each way.

request   8 bytes of length, then the text; the connection stays open while the caller waits
reply     the text, then the end of the stream

Elsewhere than here the request comes with the workspace's files, and the reply takes some back: by
the names below, in the folder of a SandboxFusion server or in one more message of a container.
"""

import json
from dataclasses import asdict, dataclass

from mappa_core.core.errors import SandboxError
from mappa_core.core.records.tools import Artifact, Limits, RejectedFile, ToolResult, ToolStatus

LENGTH_BYTES = 8
FOLDER = ".mappa"
SOURCE, REQUEST = f"{FOLDER}/source.zip", f"{FOLDER}/request.json"
REPLY, CONTENTS = f"{FOLDER}/reply.json", f"{FOLDER}/contents"
WORKSPACE = "workspace"
HOME = "/mappa"
"""Where a container keeps all that it is sent."""
READY = b"ready\n"
"""What a container says before it is sent anything."""
SIGNAL_BASE = 128
"""Exit codes above this say which signal ended the supervisor, as a shell's do."""
SEAL = "mappa reply "
"""What the last line says before the digest of the reply, so that a cut-off answer shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A program to run."""

    code: str
    workspace: str | None
    """The folder as the supervisor can open it."""
    limits: Limits
    packages: bool = False
    """Whether a supervisor elsewhere shows the packages of its Python; a fork server knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why the sandbox itself failed."""

    reason: str


def with_length(data: bytes) -> bytes:
    """`data` behind its length."""
    return len(data).to_bytes(LENGTH_BYTES) + data


def encode(message: Request | ToolResult | Failure) -> bytes:
    """The message as a JSON text; any `str` survives, lone surrogates included."""
    return json.dumps(asdict(message)).encode("ascii")


def decode_request(text: bytes) -> Request:
    """The request of a JSON text."""
    fields = json.loads(text)
    return Request(**fields | {"limits": Limits(**fields["limits"])})


def decode_reply(text: bytes) -> ToolResult | Failure:
    """The reply of a supervisor that can be trusted; `remote` checks those that cannot."""
    fields = json.loads(text)
    if "reason" in fields:
        return Failure(**fields)
    read = fields["read"]
    fields["status"] = ToolStatus(fields["status"])
    fields["written"] = tuple(Artifact(**file) for file in fields["written"])
    fields["read"] = None if read is None else tuple(Artifact(**file) for file in read)
    fields["removed"] = tuple(fields["removed"])
    fields["rejected"] = tuple(RejectedFile(**file) for file in fields["rejected"])
    return ToolResult(**fields)


def result_of(reply: ToolResult | Failure, backend: str) -> ToolResult:
    """The result in a reply of the sandbox `backend`.

    Raises:
        SandboxError: The reply is a failure.
    """
    if isinstance(reply, Failure):
        raise SandboxError(f"{backend}: {reply.reason}; see docs/security.md")
    return reply
