"""Anchors of a stored run, scored again by a coach that holds still or does not."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID

import pytest

from mappa_core.audit.config import AuditConfig
from mappa_core.audit.corrections import corrected_actions
from mappa_core.audit.frame import Frame
from mappa_core.audit.statistics.debias import correction, correction_terms
from mappa_core.audit.store import AuditStore
from mappa_core.audit.watch.drifting import DriftState
from mappa_core.audit.watch.monitor import FIRST_SAMPLE, Monitor, Watched
from mappa_core.coach import case
from mappa_core.core.records.episodes import Episode, Turn
from mappa_core.core.records.scores import (
    CoachCase,
    CoachIdentity,
    CoachScore,
    LabelVisibility,
    Unscored,
)
from mappa_core.store.store import Store
from tests.builders import RULE_COACH, make_run

RUN = make_run("biased-1")
CONFIG = AuditConfig(anchors=6, repeats=2)


class Moody:
    """Scores 4, and 7 from `changes_at` on; `rubric` says whether it owns up to it.

    With `only` it does so for that task type, and its replies name another version of its model.
    """

    def __init__(
        self, changes_at: int | None = None, *, rubric: bool = False, only: str = ""
    ) -> None:
        self.changes_at, self.rubric, self.only = changes_at, rubric, only
        self.iteration = self.calls = 0
        self.silent = False
        self.samples: list[tuple[str, str, int]] = []

    @property
    def changed(self) -> bool:
        return self.changes_at is not None and self.iteration >= self.changes_at

    @property
    def identity(self) -> CoachIdentity:
        return (
            replace(RULE_COACH, rubric_sha256="cd" * 32)
            if self.changed and self.rubric
            else (RULE_COACH)
        )

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        self.calls += 1
        assert case.text
        assert case.task_type
        self.samples.append((case.text, case.statement, case.sample))
        if self.silent:
            return Unscored(reason="timeout", detail="30 s")
        kinder = self.changed and self.only in ("", case.task_type)
        version = "2" if self.changed and self.only else "1"
        return CoachScore(value=7.0 if kinder else 4.0, rationale="mood", model_version=version)


@pytest.fixture
def audit(biased_url: str) -> Iterator[AuditStore]:
    opened = AuditStore.open(biased_url)
    yield opened
    opened.close()


def case_of(episode: Episode, turn: Turn, sample: int) -> CoachCase:
    return case.case_of(episode, turn, LabelVisibility.NEVER, sample=sample)


def watch(audit: AuditStore, store: Store, coach: Moody, iterations: int) -> DriftState:
    return watched(audit, store, coach, iterations)[-1].drift


def watched(audit: AuditStore, store: Store, coach: Moody, iterations: int) -> list[Watched]:
    """What was seen after each iteration."""
    found: list[Watched] = []
    monitor = Monitor(
        run_id=RUN.id, config=CONFIG, coach=coach, case_of=case_of, store=store, audit=audit
    )
    for iteration in range(1, iterations + 1):
        coach.iteration = iteration
        found.append(asyncio.run(monitor.watch(iteration)))
    return found


def test_a_coach_that_moves_is_named_with_its_iteration(audit: AuditStore, store: Store) -> None:
    seen = watch(audit, store, Moody(changes_at=4), 6)
    assert (seen.cause, seen.since) == ("coach", 4)
    (finding,) = [f for f in audit.findings(RUN.id) if f.subject == "anchors"]
    assert (finding.kind, finding.verdict, finding.iteration) == ("drift", "coach", 4)
    assert finding.margin is not None
    assert finding.estimate is not None
    assert finding.estimate >= finding.margin


def test_a_coach_that_turns_kinder_to_one_type_is_found_and_its_model_named(
    audit: AuditStore, store: Store
) -> None:
    seen = watch(audit, store, Moody(changes_at=6, only="regression"), 16)
    assert (seen.cause, seen.since, seen.task_types) == ("coach", 6, ("regression",))
    said = "likely cause: the provider's model changed from 1 to 2 at iteration 6"
    assert said in seen.says
    found = {f.subject: f for f in audit.findings(RUN.id) if f.kind in ("drift", "model_change")}
    assert found["anchors, regression"].verdict == "coach"
    assert found["anchors, classification"].verdict == "none"
    assert (found["2"].verdict, found["2"].against, found["2"].iteration) == (
        "likely cause",
        "1",
        6,
    )


def test_a_resumed_watch_sees_what_it_saw_and_raises_nothing_twice(
    audit: AuditStore, store: Store
) -> None:
    first = watched(audit, store, Moody(changes_at=4), 6)
    assert any(alert.kind == "drift" for seen in first for alert in seen.new)
    alerts, drifts = audit.findings(RUN.id, "alert"), audit.findings(RUN.id, "drift")
    # Stopped after iteration 1 of what it reads again, it leaves the finding of all six.
    again = watched(audit, store, Moody(changes_at=4), 1)
    assert audit.findings(RUN.id, "drift") == drifts
    again = watched(audit, store, Moody(changes_at=4), 6)
    assert [seen.alerts for seen in again] == [seen.alerts for seen in first]
    assert not any(seen.new for seen in again)
    assert audit.findings(RUN.id, "alert") == alerts


def test_a_new_rubric_is_named_instead(audit: AuditStore, store: Store) -> None:
    assert watch(audit, store, Moody(changes_at=4, rubric=True), 6).cause == "rubric"


def test_a_coach_that_holds_still_is_asked_once_per_iteration(
    audit: AuditStore, store: Store
) -> None:
    coach = Moody()
    assert watch(audit, store, coach, 4).cause == "none"
    # Six anchors: two baseline scorings and four iterations; what is stored is not asked again.
    assert coach.calls == 6 * (2 + 4)
    watch(audit, store, coach, 4)
    assert coach.calls == 6 * (2 + 4)
    # A coach with a memory answers equal samples of equal cases from it, and would never drift.
    assert min(sample for *_, sample in coach.samples) >= FIRST_SAMPLE
    by_sample = Counter(sample for *_, sample in coach.samples)
    assert list(by_sample.values()) == [6] * (2 + 4)
    kinds = {anchor_kind(anchor.action_id, audit) for anchor in audit.anchors(RUN.id)}
    assert kinds == {"regression", "classification"}


def anchor_kind(action_id: object, audit: AuditStore) -> str:
    (found,) = [c for c in audit.candidates(RUN.id, 1) if c.action_id == action_id]
    return found.task_type


class Counting(AuditStore):
    """Counts how often the whole run is read."""

    whole = 0

    def frame(self, run_id: UUID, iteration: int | None = None) -> Frame:
        self.whole += iteration is None
        return super().frame(run_id, iteration)


def test_an_iteration_reads_its_own_rows_alone(biased_url: str, store: Store) -> None:
    audit = Counting.open(biased_url)
    watch(audit, store, Moody(), 4)
    assert audit.whole == 1
    (read,) = [f for f in audit.findings(RUN.id, "drift") if f.subject == "stream"]
    assert (read.actions, read.problems) == (72, 12)
    audit.close()


def test_a_silent_coach_is_no_drift(audit: AuditStore, store: Store) -> None:
    coach = Moody()
    watch(audit, store, coach, 1)
    coach.silent, coach.iteration = True, 2
    assert watch(audit, store, coach, 3).cause == "none"
    assert {s.unscored_reason for s in audit.anchor_scores(RUN.id) if s.score is None} == {
        "timeout"
    }


def test_corrected_actions_keep_raw_and_new(audit: AuditStore, store: Store) -> None:
    from mappa_core.audit.run_audit import audit_run

    audited = audit_run(audit, "biased-1", 0.5, record=False, simulations=0)
    made = correction(
        correction_terms(audited.result.effects),
        run_id=RUN.id,
        iteration=2,
        coach="rule",
        rubric_sha256="ab" * 32,
    )
    audit.add([made])
    actions = store.scores.list_scored_actions(RUN.id, "solver", 1)
    corrected_actions(made, RUN.id, 1, actions, audit=audit)
    changed = corrected_actions(made, RUN.id, 1, actions, audit=audit)
    rows, frame = audit.frame_with_ids(RUN.id, 1)
    kinds = dict(zip(rows, frame.task_type.codes, strict=True))
    for before, after in zip(actions, changed, strict=True):
        assert before.score is not None
        assert after.score is not None
        taken = 2.0 * (frame.task_type.names[kinds[before.action_id]] == "regression")
        assert before.score - after.score == pytest.approx(taken)
