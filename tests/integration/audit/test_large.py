"""A million actions in under a minute and two gigabytes."""

import subprocess
import sys

import pytest

from tests.conftest import execute

ACTIONS = 1_000_000

FILL = """
SET session_replication_role = replica;
INSERT INTO mappa.run VALUES (md5('run')::uuid, 'large-1', 'mathchat', '{}', 'x', 1, 'none',
    now(), 'completed');
INSERT INTO mappa.policy_version VALUES (md5('p')::uuid, md5('run')::uuid, 'solver', 0, 'm', NULL);
INSERT INTO mappa.problem
SELECT md5('problem' || i)::uuid, 'd', (ARRAY['regression', 'classification'])[1 + i % 2], 1,
    's' || i, 'a'
FROM generate_series(0, 3999) i;
INSERT INTO mappa.episode (id, run_id, phase, iteration, problem_id, rollout_index, stop_reason)
SELECT md5('episode' || e)::uuid, md5('run')::uuid, 'train', 1 + e / 5000,
    md5('problem' || e % 4000)::uuid, e, 'answered'
FROM generate_series(0, 249999) e;
INSERT INTO mappa.outcome
SELECT md5('episode' || e)::uuid, hashint4(e) % 2 = 0, '5', 'math-verify'
FROM generate_series(0, 249999) e;
INSERT INTO mappa.action
SELECT md5('action' || a)::uuid, md5('episode' || a / 4)::uuid, a % 4, 'agent ' || a % 4, '[]',
    '{1,2,3}', '{1,2,3}', '{-1,-1,-1}', 'text', 'stop', md5('p')::uuid, 1, 1, now(), 1
FROM generate_series(0, 999999) a;
INSERT INTO mappa.coach_score (id, action_id, coach, model, model_version, rubric_version,
    rubric_sha256, repeat_index, label_visible, trained, score, rationale, seconds)
SELECT md5('score' || a)::uuid, md5('action' || a)::uuid, 'c', 'm', '1', '1', 'aa', 0, false, true,
    4 + abs(hashint4(a) % 9) / 2.0 + 0.25 * ((a / 4) % 4000 % 2 = 0)::int, 'because', 1
FROM generate_series(0, 999999) a;
SET session_replication_role = DEFAULT;
ANALYZE;
"""

AUDIT = """
import resource, time
from flows.audit_run import audit_stored
from mappa_core.adapters.store.auditing import PostgresAudit
started = time.perf_counter()
audit = PostgresAudit.open({url!r})
audited = audit_stored(audit, "large-1", 0.5, record=True, simulations=60)
seconds = time.perf_counter() - started
(overall, *_) = audited.result.effects
gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(overall.actions, overall.judged.verdict, overall.judged.estimate.value, seconds, gib)
audit.close()
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_million_actions(database_url: str) -> None:
    execute(database_url, *FILL.strip().split(";\n"))
    ran = subprocess.run(
        [sys.executable, "-c", AUDIT.format(url=database_url)],
        capture_output=True,
        text=True,
        check=True,
    )
    print(ran.stdout)  # noqa: T201
    actions, *_, value, seconds, gib = ran.stdout.split()
    assert int(actions) == ACTIONS
    # A quarter of a point for regression: real, and too small to matter.
    assert float(value) == pytest.approx(0.25, abs=0.05)
    assert "equivalent" in ran.stdout
    assert float(seconds) < 60
    assert float(gib) < 2
