"""Identity as a function of content: the same thing gets the same id, in any process.

Seeds are derived the same way, from everything that should change them and nothing else:
two runs with one configuration and one seed draw with the same random numbers.
"""

import hashlib
from collections.abc import Sequence
from typing import TypeAlias
from uuid import UUID, uuid5

NAMESPACE = UUID("6d617070-6100-5000-8000-636f61636865")


Part: TypeAlias = "str | int | UUID | tuple[Part, ...] | None"
"""What identity is made of; a record is given field by field, for its `repr` may change."""


def content_id(kind: str, *parts: Part) -> UUID:
    """The uuid5 of `kind` and `parts`; injective in the parts' text.

    `kind` is what is named, e.g. `episode`; it keeps equal parts of different kinds apart.

    Raises:
        TypeError: A part has no canonical text, e.g. a float or a record.
    """
    return uuid5(NAMESPACE, _encoded((kind, *parts)).decode("latin-1"))


def _encoded(parts: Sequence[Part]) -> bytes:
    return _joined(parts).encode("utf-8", "surrogatepass")


def _joined(parts: Sequence[Part]) -> str:
    # Each part is preceded by its length, so ("a", "bc") and ("ab", "c") differ.
    return "".join(f"{len(text)}:{text};" for text in map(_text, parts))


def _text(part: Part) -> str:
    """The canonical text of a part; what is stored under it must be found again."""
    match part:
        case None | str() | int() | UUID():
            return str(part)
        case tuple():
            return f"({_joined(part)})"
    raise TypeError(f"no part of an id: {part!r}")


def fingerprint(*parts: Part) -> str:
    """16 hexadecimal digits that differ where `parts` do; for people who compare two runs.

    Raises:
        TypeError: A part has no canonical text, e.g. a float or a record.
    """
    return hashlib.sha256(_encoded(parts)).hexdigest()[:16]


def problem_id(statement: str) -> UUID:
    """A problem is its words, white space and case aside."""
    return content_id("problem", " ".join(statement.split()).casefold())


def episode_id(run_id: UUID, phase: str, iteration: int, problem: UUID, rollout: int) -> UUID:
    """One attempt of one run's team at one problem."""
    return content_id("episode", run_id, phase, iteration, problem, rollout)


def action_id(episode: UUID, turn_index: int) -> UUID:
    """The one action of one turn."""
    return content_id("action", episode, turn_index)


def policy_version_id(run_id: UUID, agent: str, step: int) -> UUID:
    """The weights of one agent after `step` updates."""
    return content_id("policy_version", run_id, agent, step)


def update_id(run_id: UUID, agent: str, iteration: int) -> UUID:
    """One learning step of one agent."""
    return content_id("update", run_id, agent, iteration)


SEEDS = 2**31
"""How many seeds there are."""


def derive_seed(*parts: Part) -> int:
    """A seed in [0, `SEEDS`) that depends on every part and on nothing else."""
    digest = hashlib.blake2b(_encoded(parts), digest_size=4).digest()
    return int.from_bytes(digest, "big") % SEEDS
