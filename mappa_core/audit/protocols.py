"""What audits read and write."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from mappa_core.audit.frame import Frame
from mappa_core.audit.opinions import Opinions
from mappa_core.audit.records import (
    Anchor,
    AnchorScore,
    AuditedRun,
    Candidate,
    CorrectedScore,
    Correction,
    Finding,
    HumanLabel,
    ToLabel,
)

if TYPE_CHECKING:
    from mappa_core.audit.agreement import LabelledScores


class AuditStore(Protocol):
    """What audits read, from the views of the schema `audit` alone, and what they write.

    All methods raise `StoreError` where Postgres is unreachable, refuses or is full.
    """

    def run(self, name_or_id: str) -> AuditedRun:
        """One run by name, id or unambiguous prefix of either.

        Raises:
            NotFound: None matches, or several do.
        """
        ...

    def frame(self, run_id: UUID) -> Frame:
        """A run's training actions with the score that trained them."""
        ...

    def iteration_frame(
        self, run_id: UUID, iteration: int | None = None
    ) -> tuple[tuple[UUID, ...], Frame]:
        """The same of one iteration (None: of all), with the action of each row."""
        ...

    def opinions(self, run_id: UUID) -> Opinions:
        """Every score of the run's actions that have several."""
        ...

    def labelled(self, run_id: UUID) -> "LabelledScores":
        """People's labels beside the coach's scores."""
        ...

    def to_label(self, run_id: UUID, limit: int) -> ToLabel:
        """What a person could look at, each list in an order that never changes by itself."""
        ...

    def labels(self, run_id: UUID, labeller: str) -> tuple[HumanLabel, ...]:
        """One person's labels of a run, oldest first."""
        ...

    def add_labels(self, labels: Sequence[HumanLabel]) -> None:
        """Add people's scores; a labeller's later score of an action replaces the earlier."""
        ...

    def save_findings(self, run_id: UUID, kinds: Sequence[str], found: Sequence[Finding]) -> None:
        """Replace the run's findings of these kinds, all or none."""
        ...

    def add_findings(self, found: Sequence[Finding]) -> None:
        """Add findings that are not there yet."""
        ...

    def findings(self, run_id: UUID, kind: str | None = None) -> tuple[Finding, ...]:
        """What was found about a run, of one kind or of all."""
        ...

    def add_anchors(self, anchors: Sequence[Anchor]) -> None:
        """Add anchors that are not there yet."""
        ...

    def candidates(self, run_id: UUID, iteration: int) -> tuple[Candidate, ...]:
        """The scored actions of one training iteration, in a fixed order."""
        ...

    def anchors(self, run_id: UUID) -> tuple[Anchor, ...]:
        """A run's anchors, in a fixed order."""
        ...

    def add_anchor_scores(self, scores: Sequence[AnchorScore]) -> None:
        """Add scores of anchors that are not there yet."""
        ...

    def anchor_scores(self, run_id: UUID) -> tuple[AnchorScore, ...]:
        """All scores of a run's anchors, by iteration, anchor and repeat."""
        ...

    def trainer(self, run_id: UUID) -> tuple[str, str]:
        """The coach and the hash of the rubric behind most of a run's training scores.

        Raises:
            NotFound: Nothing was scored.
        """
        ...

    def add_correction(self, correction: Correction) -> None:
        """Add a correction; a repeat changes nothing."""
        ...

    def correction(self, id_or_run: str) -> Correction:
        """A correction by its id, or the latest one estimated on a run.

        Raises:
            NotFound: There is none.
        """
        ...

    def add_corrected(self, scores: Sequence[CorrectedScore]) -> None:
        """Write down what a correction made of scores; a repeat changes nothing."""
        ...

    def close(self) -> None:
        """Give connections back; safe to call twice."""
        ...
