"""Context caches as Gemini and Vertex AI keep them: made, named in requests, ended by time."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mappa_cli.provider_stub.dialects import Body

CONTEXT_GONE = "CachedContent not found (or permission denied)"
LEAST_TOKENS = 256
"""Less is refused as too small; the real ones ask for 1,024 or more."""
CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One cache."""

    name: str
    model: str
    system: Body
    text: str
    ends_at: float

    @property
    def tokens(self) -> int:
        """What it is billed for."""
        return len(self.text) // CHARACTERS_PER_TOKEN

    def as_json(self) -> Body:
        """The resource, as it comes back."""
        return {
            "name": self.name,
            "model": self.model,
            "usageMetadata": {"totalTokenCount": self.tokens},
        }


@dataclass(slots=True)
class Contexts:
    """The caches that stand."""

    now: Callable[[], float] = time.monotonic
    standing: dict[str, Context] = field(default_factory=dict[str, Context])
    _made: int = 0

    def keep(self, body: Body, path: str) -> Context | None:
        """Make a cache, or None where its text is too short."""
        system: Body = body.get("systemInstruction") or body["system_instruction"]
        text = "".join(part["text"] for part in system["parts"])
        if len(text) < LEAST_TOKENS * CHARACTERS_PER_TOKEN:
            return None
        self._made += 1
        made = Context(
            # /v1beta/cachedContents is answered by cachedContents/1, Vertex by projects/...
            name=f"{path.strip('/').partition('/')[2]}/{self._made}",
            model=body["model"],
            system=system,
            text=text,
            ends_at=self.now() + float(str(body["ttl"]).removesuffix("s")),
        )
        self.standing[made.name] = made
        return made

    def find(self, name: str) -> Context | None:
        """A cache that has not ended."""
        found = self.standing.get(name)
        return found if found and self.now() < found.ends_at else None

    def drop(self, path: str) -> bool:
        """Delete a cache; False where there is none."""
        return self.standing.pop(path.strip("/").partition("/")[2], None) is not None


def context_named_in(body: Mapping[str, object]) -> str | None:
    """The cache a request for content names."""
    name = body.get("cachedContent", body.get("cached_content"))
    return None if name is None else str(name)
