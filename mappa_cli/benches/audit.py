"""`mappa bench audit`: what `mappa audit` takes, as a person types it, start of Postgres included.

    a run as large as the quickstart's      seconds
    a run of a million actions              seconds, peak memory

Each is a process of its own on a home of its own, which is removed at the end. `actions=20000`
makes the second one shorter.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg

from mappa_cli.benches.report import BenchReport, Figure, aimed
from mappa_cli.benches.scratch import actions_option, scratch_database
from mappa_core.core.errors import OutsideError
from mappa_core.core.settings import Settings
from mappa_core.store.connection import for_psql

SMALL_ACTIONS = 2_000
FEWEST_ACTIONS = 400
BYTES_PER_ACTION = 3_000
"""Asked for on the disk, write-ahead log included."""
PER_EPISODE, ITERATIONS, MOST_PROBLEMS = 4, 50, 4_000
SMALL, LARGE = "small-1", "large-1"
BIASED = 3

# Straight into the tables: making a million records is `bench store`'s business.
FILL = """
SET session_replication_role = replica;
INSERT INTO mappa.run (id, name, team, config, code_version, seed, sandbox_tier, started_at, status)
VALUES (md5('{run}')::uuid, '{run}', 'mathchat', '{{}}', 'x', 1, 'none', now(), 'completed');
INSERT INTO mappa.policy_version (id, run_id, agent, step, base_model)
VALUES (md5('{run} p')::uuid, md5('{run}')::uuid, 'solver', 0, 'm');
INSERT INTO mappa.coach (id, coach, model, model_version, rubric_version, rubric_sha256)
VALUES (md5('coach')::uuid, 'c', 'm', '1', '1', 'aa') ON CONFLICT DO NOTHING;
INSERT INTO mappa.problem (id, dataset, task_type, level, statement, answer)
SELECT md5('{run} problem' || i)::uuid, 'd', (ARRAY['regression', 'classification'])[1 + i % 2], 1,
    '{run} s' || i, 'a'
FROM generate_series(0, {problems} - 1) i;
INSERT INTO mappa.episode (id, run_id, phase, iteration, problem_id, rollout_index, stop_reason)
SELECT md5('{run} episode' || e)::uuid, md5('{run}')::uuid, 'train',
    1 + e::bigint * {iterations} / {episodes}, md5('{run} problem' || e % {problems})::uuid, e,
    'answered'
FROM generate_series(0, {episodes} - 1) e;
INSERT INTO mappa.outcome (episode_id, success, answer, method)
SELECT md5('{run} episode' || e)::uuid, hashint4(e) % 2 = 0, '5', 'math-verify'
FROM generate_series(0, {episodes} - 1) e;
INSERT INTO mappa.action (id, episode_id, turn_index, agent, messages, prompt_token_ids, token_ids,
    logprobs, text, finish_reason, policy_version_id, temperature, seed, started_at, seconds)
SELECT md5('{run} action' || a)::uuid, md5('{run} episode' || a / 4)::uuid, a % 4,
    'agent ' || a % 4, '[]', '{{1,2,3}}', '{{1,2,3}}', '{{-1,-1,-1}}', 'text', 'stop',
    md5('{run} p')::uuid, 1, 1, now(), 1
FROM generate_series(0, 4 * {episodes} - 1) a;
INSERT INTO mappa.coach_score (id, action_id, episode_id, turn_index, coach_id, repeat_index,
    label_visible, trained, score, rationale, seconds)
SELECT md5('{run} score' || a)::uuid, md5('{run} action' || a)::uuid,
    md5('{run} episode' || a / 4)::uuid, a % 4, md5('coach')::uuid, 0, false, true,
    4 + abs(hashint4(a) % 9) / 2.0 + 0.25 * ((a / 4) % {problems} % 2 = 0)::int, 'because', 1
FROM generate_series(0, 4 * {episodes} - 1) a;
SET session_replication_role = DEFAULT;
VACUUM (ANALYZE)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What one `mappa audit` took."""

    seconds: float
    peak_gib: float


def bench_audit(overrides: Sequence[str], settings: Settings) -> BenchReport:
    """Fill a database and audit it as a person would.

    Raises:
        ConfigError: An override other than `actions=NUMBER`.
        DiskFull: The actions do not fit.
        OutsideError: An audit failed.
    """
    actions = actions_option("audit", overrides, FEWEST_ACTIONS)
    with scratch_database(settings, actions * BYTES_PER_ACTION) as database:
        fill(database.url, SMALL, SMALL_ACTIONS)
        fill(database.url, LARGE, actions)
        return BenchReport(bench="audit", figures=tuple(_figures(database.home, actions)))


def fill(url: str, run: str, actions: int) -> None:
    """Put a run of four agents and two task types into a migrated database.

    Regression gets a quarter of a point more: real, and too small to matter.
    """
    episodes = actions // PER_EPISODE
    values = {
        "run": run,
        "episodes": episodes,
        "problems": min(MOST_PROBLEMS, max(episodes // 10, 40)),
        "iterations": ITERATIONS,
    }
    with psycopg.connect(for_psql(url), autocommit=True) as connection:
        for statement in FILL.format(**values).strip().split(";\n"):
            connection.execute(statement.encode())


def audit_process(run: str, settings: dict[str, str]) -> Taken:
    """Time `mappa audit RUN` as a process of its own, with `settings` in its environment.

    Raises:
        OutsideError: It failed.
    """
    command = [sys.executable, "-c", "from mappa_cli.start import command; command()", "audit", run]
    started = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=os.environ | settings
    ) as process:
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, BIASED):
        raise OutsideError(f"the audit failed: {said.decode(errors='replace').strip()[-200:]}")
    return Taken(seconds=time.perf_counter() - started, peak_gib=used.ru_maxrss / 2**20)


def _figures(home: Path, actions: int) -> Iterator[Figure]:
    where = {"MAPPA_HOME": str(home)}
    small = audit_process(SMALL, where)
    yield aimed(f"a run of {SMALL_ACTIONS} actions", small.seconds, "s", at_most=5)
    large = audit_process(LARGE, where)
    yield Figure(name="actions of the large run", value=actions, unit="actions")
    yield aimed("the large run", large.seconds, "s", at_most=60)
    yield aimed("the same, peak memory", large.peak_gib, "GiB", at_most=2)
