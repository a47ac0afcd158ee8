"""The seam to a provider: one request, one reply, or an error that says whether it can pass."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mappa_core.coach.budget import Usage
from mappa_core.core.records.scores import UnscoredReason

LONGEST_DETAIL = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderReply:
    """What a model answered."""

    text: str
    """Without thoughts; perhaps cut off."""
    usage: Usage | None
    """None where the provider does not say."""
    model_version: str
    cut: bool = False
    """Whether it ended at its limit of tokens."""


class ProviderError(Exception):
    """A call that gave no reply. `str(error)` is one line without secrets."""

    def __init__(self, reason: UnscoredReason, detail: str, *, usage: Usage | None = None) -> None:
        super().__init__(detail)
        self.reason: UnscoredReason = reason
        self.usage = usage or Usage()
        """What it took all the same, where the provider says so."""


class Passing(ProviderError):
    """Trying again may help: overload, a lost connection, too slow an answer."""

    def __init__(
        self,
        reason: UnscoredReason,
        detail: str,
        *,
        retry_after_seconds: float | None = None,
        usage: Usage | None = None,
    ) -> None:
        super().__init__(reason, detail, usage=usage)
        self.retry_after_seconds = retry_after_seconds


class Final(ProviderError):
    """Trying again at once cannot help: wrong key, unknown model, blocked content."""


class Provider(Protocol):
    """Asks a model."""

    async def ask(self, system: str, user: str, *, seed: int, judges: bool = True) -> ProviderReply:
        """Send one request, without any retry; one that `judges` is held to a judgement's form.

        Raises:
            ProviderError: There is no reply.
        """
        ...

    async def close(self) -> None:
        """Give connections back."""
        ...


@runtime_checkable
class ServedProvider(Protocol):
    """Asks a model on a server of its own; a `Provider` may be one."""

    async def start(self, systems: Iterable[str]) -> None:
        """Bring the server up, unless it is, and let it read the beginnings of all requests.

        Raises:
            EngineError: It does not start; the message names its log.
        """
        ...


def status_error(
    status: int, detail: str, retry_after_seconds: float | None = None
) -> ProviderError:
    """The error of an HTTP status; `detail` is what the provider said, secrets hidden."""
    said = f"HTTP {status}: {detail}"
    if status == 429:
        return Passing("rate_limited", said, retry_after_seconds=retry_after_seconds)
    if status in (408, 409) or status >= 500:
        return Passing("error", said, retry_after_seconds=retry_after_seconds)
    return Final("refused", said)


def safe(text: str, *secrets: str) -> str:
    """`text` in one short line, without `secrets`."""
    line = " ".join(text.split())
    for secret in secrets:
        if secret:
            line = line.replace(secret, "***")
    return line[:LONGEST_DETAIL]


def retry_after(header: str | None) -> float | None:
    """Seconds of a `Retry-After` header; a date or nonsense is None."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        return None
    return seconds if 0 <= seconds < 86_400 else None
