"""What a run's figures are made with, beside its configuration."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

Parts: TypeAlias = Mapping[str, str]
"""Versions and fingerprints by name, e.g. `libraries.torch` and `2.13.0`."""
NOT_RECORDED = "not recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What a run's figures are made with from one moment on."""

    since: str
    """In ISO 8601, UTC."""
    parts: Parts
    """Empty where a run of an earlier version did not record them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One part that is not the same in two provenances."""

    name: str
    before: str
    after: str

    def __str__(self) -> str:
        """The difference as people read it."""
        return f"{self.name}: {self.before} -> {self.after}"


def part_differences(before: Parts, after: Parts) -> tuple[Difference, ...]:
    """The parts in which two provenances differ, by name; one that is missing is not recorded."""
    one, other = (
        {name: parts.get(name, NOT_RECORDED) for name in sorted({*before, *after})}
        for parts in (before, after)
    )
    return tuple(
        Difference(name=name, before=one[name], after=other[name])
        for name in one
        if one[name] != other[name]
    )


def run_differences(
    one: Sequence[Provenance] | None, other: Sequence[Provenance] | None
) -> tuple[Difference, ...]:
    """The parts in which two runs differ; of one that was resumed, all that it was made with.

    None is a run that recorded nothing, which differs from one that did in a single line.
    """
    if one is None or other is None:
        before, after = (NOT_RECORDED if each is None else "recorded" for each in (one, other))
        whole = Difference(name="everything", before=before, after=after)
        return () if before == after else (whole,)
    return part_differences(_in_turn(one), _in_turn(other))


def resumed_otherwise(run: Sequence[Provenance] | None) -> tuple[str, ...]:
    """What changed while a run was made, a line for each time that it went on."""
    return tuple(_changes(run or ()))


def _changes(run: Sequence[Provenance]) -> Iterator[str]:
    for earlier, later in pairwise(run):
        if not earlier.parts:
            yield f"from {later.since} on it is recorded what the run is made with"
            continue
        changed = ", ".join(map(str, part_differences(earlier.parts, later.parts)))
        yield f"from {later.since} on: {changed}"


def _in_turn(run: Sequence[Provenance]) -> Parts:
    """Every value that each part has had, in turn."""
    names = {name for each in run for name in each.parts}
    return {name: _values(name, run) for name in names}


def _values(name: str, run: Sequence[Provenance]) -> str:
    values = [each.parts.get(name, NOT_RECORDED) for each in run]
    new = [value for before, value in pairwise(values) if value != before]
    return ", then ".join([values[0], *new])
