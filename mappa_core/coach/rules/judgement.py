"""What the rules make of an action."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Gives points and the observations they rest on."""

    points: float
    """In [0, 10]."""
    observations: tuple[str, ...]

    @property
    def rationale(self) -> str:
        """The observations as one paragraph."""
        return " ".join(f"{text[0].upper()}{text[1:]}." for text in self.observations)
