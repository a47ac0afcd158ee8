"""What the audit of a run's coach has against promoting what it trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from mappa_core.core.errors import ConfigError
from mappa_core.core.records.runs import Run

Waiver: TypeAlias = Literal["cannot-tell"]
"""The objections that may be waived by name; what else speaks against a promotion is overridden."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoachAudit:
    """What an audit of the moment says of the candidate's coach."""

    verdict: str
    biased_for: tuple[str, ...]
    """Task types."""
    needed: str = ""
    """What it would take to tell, in words, where it cannot."""


def waivers(names: Sequence[str]) -> frozenset[Waiver]:
    """The objections that are called so.

    Raises:
        ConfigError: An objection cannot be waived, or there is none of that name.
    """
    known: dict[str, Waiver] = {name: name for name in get_args(Waiver)}
    if strange := [name for name in names if name not in known]:
        raise ConfigError(
            f"--waive {strange[0]}: {', '.join(known)} may be waived; what else speaks against a "
            'promotion takes --override "why"'
        )
    return frozenset(known[name] for name in names)


def audit_objections(run: Run, audit: CoachAudit | None) -> Sequence[str]:
    """What an audit that tells has against a promotion, or that there was none."""
    if audit is None:
        return (f"the coach of {run.name} was not audited: `mappa audit {run.name}`",)
    if audit.verdict == "suspected":
        return (
            f"the audit suspects its coach: ask it by `mappa audit {run.name} --experiment 200`",
        )
    if audit.verdict != "biased":
        return ()
    return (f"the audit says that its coach is biased for {', '.join(audit.biased_for)}",)


def undecided(run: Run, audit: CoachAudit | None) -> Mapping[Waiver, str]:
    """What may be waived: that an audit cannot tell, which is no acquittal."""
    if audit is None or audit.verdict != "cannot tell":
        return {}
    needed = audit.needed or f"`mappa audit {run.name}`"
    return {
        "cannot-tell": "the audit cannot tell whether its coach is biased, which would take "
        f"{needed} (`--waive cannot-tell` promotes without)"
    }
