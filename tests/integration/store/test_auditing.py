"""The audit's side of the store, on the run worked by hand, and who may read what."""

import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import psycopg
import pytest

from mappa_core.app.config import TrainConfig
from mappa_core.audit import sql
from mappa_core.audit.findings import KINDS
from mappa_core.audit.other_coach import Scorer, updates_under
from mappa_core.audit.records import (
    Anchor,
    AnchorScore,
    CorrectedScore,
    Correction,
    CorrectionTerm,
    Finding,
    HumanLabel,
)
from mappa_core.audit.report.text import look_of
from mappa_core.audit.run_audit import audit_run
from mappa_core.audit.store import AuditStore
from mappa_core.core import ids
from mappa_core.core.errors import NotFound, StoreError
from mappa_core.core.records.episodes import Outcome, StopReason
from mappa_core.store.connection import for_psql
from mappa_core.store.store import Store
from mappa_core.train.estimators import ESTIMATORS
from tests.builders import (
    make_episode,
    make_policy,
    make_problem,
    make_run,
    make_score,
    make_turn,
)
from tests.conftest import execute

RUN = make_run()
EPISODE = make_episode(RUN, make_problem())
ACTION = ids.action_id(EPISODE.id, 0)
FINDING = Finding(
    id=ids.content_id("finding", 1),
    run_id=RUN.id,
    kind="task_type",
    subject="addition",
    against="multiplication",
    stratum="all",
    verdict="cannot tell",
    estimate=1.5,
    unit="points",
    low=None,
    high=2.0,
    p_value=0.2,
    margin=0.5,
    actions=3,
    problems=2,
    iteration=None,
    sql="SELECT 1",
    detail={"more_actions": 70, "note": "a \x00 in it"},
)
ANCHOR = Anchor(
    id=ids.content_id("anchor", 1),
    run_id=RUN.id,
    action_id=ACTION,
    episode_id=EPISODE.id,
    turn_index=0,
)
CORRECTION = Correction(
    id=ids.content_id("correction", 1),
    run_id=RUN.id,
    iteration=3,
    coach="rule",
    rubric_sha256="ab" * 32,
    terms=(
        CorrectionTerm(
            task_type="addition", stratum="right", estimate=1.2, points=1.0, verdict="biased"
        ),
    ),
)


@pytest.fixture
def audit(filled_url: str) -> Iterator[AuditStore]:
    opened = AuditStore.open(filled_url)
    yield opened
    opened.close()


def anchor_score(iteration: int, repeat: int, score: float | None) -> AnchorScore:
    return AnchorScore(
        anchor_id=ANCHOR.id,
        iteration=iteration,
        repeat_index=repeat,
        score=score,
        unscored_reason="timeout" if score is None else None,
        coach="rule",
        model_version="1",
        rubric_sha256="ab" * 32,
    )


def test_the_frame_is_the_training_scores(audit: AuditStore) -> None:
    frame = audit.frame(RUN.id)
    assert len(frame) == 4
    assert frame.task_type.names == ("addition", "multiplication")
    by_type = [
        sorted(frame.score[frame.task_type.codes == code].tolist(), key=str) for code in (0, 1)
    ]
    assert by_type[0] == [7.0, 9.0]
    assert np.isnan(by_type[1][1])
    assert frame.success.sum() == 2
    assert frame.tool_used.all()
    assert not frame.tool_failed.any()
    assert np.isnan(frame.advantage).sum() == 1
    assert frame.weight.sum() == pytest.approx(1.0)
    assert set(frame.tokens.tolist()) == {3}
    rows, again = audit.frame_with_ids(RUN.id, 1)
    assert len(set(rows)) == len(again) == 4
    assert len(audit.frame_with_ids(RUN.id, 2)[1]) == 0


def test_a_run_is_found_by_name_id_or_prefix(audit: AuditStore, store: Store) -> None:
    assert audit.run("quickstart-1").id == RUN.id
    assert audit.run(str(RUN.id)[:13]).name == RUN.name
    with pytest.raises(NotFound, match="no run is called"):
        audit.run("nothing")
    store.runs.add_run(make_run("quickstart-10"))
    assert audit.run("quickstart-1").id == RUN.id
    with pytest.raises(NotFound, match="several runs begin with"):
        audit.run("quickstart")


def test_what_advantages_are_relative_to_is_that_of_the_estimator(
    audit: AuditStore, store: Store
) -> None:
    def by_problem(config: dict[str, object]) -> bool:
        run = make_run(json.dumps(config))
        store.runs.add_run(replace(run, config=config))
        return audit.run(str(run.id)).rule.by_problem

    for estimator, row in ESTIMATORS.items():
        config = TrainConfig.model_validate({"algorithm": {"estimator": estimator}})
        assert by_problem(config.model_dump(mode="json")) is (row.compares == "problem")
    older: list[dict[str, object]] = [
        {"algorithm": {"baseline": name}} for name in ("group", "none")
    ]
    assert [by_problem(config) for config in older] == [True, False]
    assert audit.run(RUN.name).baseline is None


def test_repeats_are_ratings(audit: AuditStore) -> None:
    ratings = audit.ratings(RUN.id)
    assert len(ratings.score) == 8
    (scorer,) = ratings.scorer.names
    assert scorer == "rule rules 1, rubric 1"
    table = ratings.table(0)
    assert sorted(table[:, 1].tolist()) == [5.0] * 4
    assert ratings.trainer == 0


def test_findings_come_back_and_an_audit_replaces_its_own(audit: AuditStore) -> None:
    other = replace(FINDING, id=ids.content_id("finding", 2), kind="drift")
    audit.save_findings(RUN.id, ["task_type", "drift"], [FINDING, other])
    assert {finding.id for finding in audit.findings(RUN.id)} == {FINDING.id, other.id}
    assert FINDING in audit.findings(RUN.id)
    audit.save_findings(RUN.id, ["task_type"], [])
    assert audit.findings(RUN.id) == (other,)


def test_anchors_labels_and_corrections_come_back(audit: AuditStore) -> None:
    for _ in range(2):
        audit.add([ANCHOR])
        audit.add([anchor_score(0, 0, 4.0), anchor_score(1, 0, None)])
        audit.add([CORRECTION])
    assert audit.anchors(RUN.id) == (ANCHOR,)
    assert audit.anchor_scores(RUN.id) == (anchor_score(0, 0, 4.0), anchor_score(1, 0, None))
    assert audit.correction(str(CORRECTION.id)) == CORRECTION
    assert audit.correction(RUN.name) == CORRECTION
    with pytest.raises(NotFound, match="--debias"):
        audit.correction("nothing")
    audit.add_labels([HumanLabel(action_id=ACTION, labeller="ann", score=3.0)])
    audit.add_labels([HumanLabel(action_id=ACTION, labeller="ann", score=8.0)])
    labelled = audit.labelled(RUN.id)
    assert np.nansum(labelled.labels) == 8.0
    assert labelled.scores[~np.isnan(labelled.labels)].tolist() == [9.0]


def test_a_corrected_score_keeps_both_numbers(audit: AuditStore, filled_url: str) -> None:
    score_id = make_score(EPISODE, 0, 9.0).id
    audit.add([CORRECTION])
    audit.add(
        [CorrectedScore(score_id=score_id, correction_id=CORRECTION.id, raw=9.0, corrected=8.0)]
    )
    with psycopg.connect(for_psql(filled_url)) as connection:
        row = connection.execute(
            "SELECT action_id, raw, corrected, estimated_up_to FROM audit.corrected_scores"
        ).fetchone()
    assert row == (ACTION, 9.0, 8.0, 3)


def test_a_refused_write_is_our_error(audit: AuditStore) -> None:
    with pytest.raises(StoreError):
        audit.add_labels([HumanLabel(action_id=ACTION, labeller="ann", score=11.0)])


def test_candidates_are_the_scored_actions(audit: AuditStore) -> None:
    found = audit.candidates(RUN.id, 1)
    assert len(found) == 3
    assert all(candidate.agent == "solver" for candidate in found)
    assert audit.trainer(RUN.id) == ("rule", "ab" * 32)


def test_a_whole_audit_needs_the_views_alone(filled_url: str) -> None:
    """Where the tables cannot be read: every read of an audit, and every query a finding names."""
    execute(
        filled_url,
        "REVOKE SELECT ON ALL TABLES IN SCHEMA mappa FROM mappa_auditor",
        "ALTER DATABASE "
        + filled_url.rsplit("/", 1)[1].split("?")[0]
        + " SET role = 'mappa_auditor'",
    )
    audit = AuditStore.open(filled_url)
    audited = audit_run(audit, RUN.name, 0.5, record=False, simulations=0)
    assert audited.result.verdict == "cannot tell"
    with psycopg.connect(for_psql(filled_url)) as connection:
        for finding in audited.result.findings:
            assert connection.execute(finding.sql.encode()).fetchall(), finding
        stored = sql.stored(FINDING.id)
        assert connection.execute(stored.encode()).fetchall() == []
    with pytest.raises(StoreError):
        audit_run(audit, RUN.name, 0.5, record=True, simulations=0)
    audit.close()


def test_an_audit_is_stored_once(audit: AuditStore) -> None:
    audit_run(audit, RUN.name, 0.5, record=True, simulations=0)
    audited = audit_run(audit, RUN.name, 0.5, record=True, simulations=0)
    stored = audit.findings(RUN.id)
    looks = [finding.id for finding in stored if finding.kind == "look"]
    assert len(looks) == 1
    assert {f.id for f in stored} == {f.id for f in audited.result.findings} | {*looks}
    assert {finding.kind for finding in stored} <= {*KINDS, "look"}


def test_a_run_that_grew_is_looked_at_again_and_what_is_not_written_is_not_counted(
    audit: AuditStore, store: Store
) -> None:
    def seen(*, record: bool = True) -> tuple[int, bool]:
        looked = audit_run(audit, RUN.name, 0.5, record=record, simulations=0).seen
        assert ("not counted" in look_of(looked)) == (not record)
        return looked.look, looked.counted

    assert [seen(record=False), seen(), seen(record=False)] == [(1, False), (1, True), (1, False)]
    episode = make_episode(RUN, make_problem(), rollout_index=7)
    store.episodes.open_episode(episode)
    store.episodes.add_turn(episode, make_turn(make_policy(RUN)))
    outcome = Outcome(success=True, answer="5", method="math-verify")
    store.episodes.close_episode(episode.closed(StopReason.ANSWERED, outcome=outcome))
    store.scores.add_scores([make_score(episode, 0, 8.0)])
    # The nights after one that wrote nothing are no later look than it was.
    assert [seen(record=False), seen(record=False), seen()] == [(2, False), (2, False), (2, True)]
    assert seen() == (2, True)


def test_updates_under_another_coach_read_its_scores(audit: AuditStore, store: Store) -> None:
    with pytest.raises(NotFound, match="mappa rescore"):
        updates_under(audit, RUN.name, Scorer(name="other"))
    identity = replace(make_score(EPISODE, 0, 1.0).identity, coach="other")
    scores = [
        make_score(
            make_episode(RUN, make_problem(), rollout_index=i),
            0,
            value,
            identity=identity,
            trained=False,
        )
        for i, value in enumerate((2.0, 8.0))
    ]
    store.scores.add_scores(scores)
    against = updates_under(audit, RUN.name, Scorer(name="other"))
    (update,) = against.updates
    assert against.scorer == "other rules 1, rubric 1"
    # Scores 9 and 7 of one problem would have been 2 and 8; of one problem nothing is shown.
    assert (update.actions, update.flipped, update.differs) == (2, 2, None)
