"""How a coach is watched while it teaches."""

from typing import Literal, cast

from pydantic import Field, model_validator

from mappa_core.core.section import Fraction, Section

StopOn = Literal[
    "coach",
    "rubric",
    "policy",
    "coach or policy",
    "policy or order",
    "health",
    "divergence",
    "unscored",
]
"""What an audit may stop a run for."""
AskOn = Literal["biased", "suspected", "cannot tell"]
"""Verdicts that a person may be asked about."""
Waived = Literal["cannot-tell"]
"""Objections of the watch that may be waived by name."""


class AuditConfig(Section):
    """How the coach is watched while it teaches."""

    anchors: int = Field(
        default=20,
        ge=0,
        description="Actions scored again every iteration, spread over agents and task types; 0 "
        "for no watch.",
    )
    repeats: int = Field(
        default=3, ge=2, description="Scorings of each anchor that say what its score is."
    )
    stop_on: tuple[StopOn, ...] = Field(
        default=(),
        description="Stop the run when coach, rubric or policy has drifted, or may have: where it "
        "cannot be told which of two things did (coach or policy; policy or order, of problems), "
        "either name stops, unless audit.waive says otherwise; or on an alert "
        "about score health, divergence or unscored actions; a resumed run may change it.",
    )
    waive: tuple[Waived, ...] = Field(
        default=(),
        description="cannot-tell: a drift of which it cannot be told what drifted does not stop "
        "the run, unless audit.stop_on has its whole name; a resumed run may change it.",
    )
    ask_every: int = Field(
        default=0,
        ge=0,
        description="Audit the run after so many iterations and, if the verdict is one of "
        "audit.ask_on, pause it until a person says on its page to go on, experiment, debias or "
        "stop; 0 never asks.",
    )
    ask_on: tuple[AskOn, ...] = Field(
        default=("biased", "suspected", "cannot tell"),
        min_length=1,
        description="Verdicts that a person is asked about; without 'cannot tell', which most "
        "short runs have, training goes on while nothing is known.",
    )
    ask_hours: float = Field(
        default=24.0,
        gt=0,
        allow_inf_nan=False,
        description="How long that person has; then the run stops, and can be resumed.",
    )
    most_at_mode: Fraction = Field(
        default=0.95, description="Share of an agent's scores at one value that raises an alert."
    )
    most_at_ceiling: Fraction = Field(
        default=0.9, description="Share of an agent's scores at 10 that raises an alert."
    )
    least_entropy_bits: float = Field(
        default=0.3,
        ge=0,
        description="Entropy of an agent's scores below which an alert is raised.",
    )
    most_unparsed: Fraction = Field(
        default=0.05, description="Share of unreadable replies that raises an alert."
    )
    unscored_points: float = Field(
        default=1.0,
        gt=0,
        description="Points by which missing scores could bias a task type that raise an alert.",
    )
    correction: str = Field(
        default="",
        description="Take a bias off before scores teach: a correction's id, or the name of the "
        "run it was estimated on (`mappa audit RUN --debias`).",
    )

    @model_validator(mode="before")
    @classmethod
    def _of_an_earlier_version(cls, values: object) -> object:
        """Drop the limit of the divergence, which was in a unit that it has no more."""
        if not isinstance(values, dict):
            return values
        kept = cast(dict[str, object], values).items()
        return {key: value for key, value in kept if key != "divergence"}
