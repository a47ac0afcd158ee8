"""A bias's share of updates whose credit is a return or a team's: the view, the SQL, the figure."""

from dataclasses import replace

import psycopg
import pytest

from mappa_core.app.config import TrainConfig
from mappa_core.audit import sql
from mappa_core.audit.records import CreditRule
from mappa_core.audit.statistics.updates import update_shares
from mappa_core.audit.store import AuditStore
from mappa_core.core.records.runs import Run
from mappa_core.core.records.scores import Unscored
from mappa_core.core.records.updates import UpdateEntry
from mappa_core.store.connection import for_psql
from mappa_core.store.store import Store
from tests.builders import (
    entry,
    make_episode,
    make_policy,
    make_problem,
    make_run,
    make_score,
    make_turn,
    make_update,
)
from tests.integration.audit.conftest import record

TEAM = ("solver", "verifier", "verifier", "solver")
BIAS = "(2.5 * (task_type = 'regression' AND success)::int)"
RULES = (
    CreditRule(),
    CreditRule(credit="return", discount=0.75),
    CreditRule(credit="team"),
    CreditRule(credit="team", by_problem=False),
)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_sql_of_a_share_gives_the_figure(
    rule: CreditRule, store: Store, database_url: str
) -> None:
    run = played(store, rule)
    audit = AuditStore.open(database_url)
    known = audit.run(run.name)
    assert known.rule == rule
    frame = audit.frame(run.id)
    assert frame.cut_off.sum() == 1
    bias = 2.5 * ((frame.task_type.codes == 1) & (frame.success == 1))
    found = list(update_shares(frame, bias, known.rule))
    audit.close()
    assert {update.agent for update in found} == set(TEAM)
    with psycopg.connect(for_psql(database_url)) as connection:
        connection.execute("SET ROLE mappa_auditor")
        for update in found:
            query = sql.of_run(sql.update_share(update.agent, 1, BIAS, rule), run.id)
            row = connection.execute(query.encode()).fetchone()
            assert row is not None
            share, actions, _ = row
            assert share == pytest.approx(update.share)
            assert actions == update.actions
            assert update.share != 0


def played(store: Store, rule: CreditRule) -> Run:
    """Two problems of three episodes of four turns; one action unscored, one cut off."""
    algorithm = {
        "estimator": "rloo" if rule.by_problem else "reinforce++",
        "credit": rule.credit,
        "discount": rule.discount,
    }
    config = TrainConfig.model_validate({"algorithm": algorithm}).model_dump(mode="json")
    run = replace(make_run(f"credit {rule}"), config=config)
    store.runs.add_run(run)
    policies = {agent: make_policy(run, agent) for agent in TEAM}
    for policy in policies.values():
        store.policies.add_policy_version(policy)
    entries: dict[str, list[UpdateEntry]] = {agent: [] for agent in TEAM}
    for number in range(6):
        problem = make_problem(
            f"{number // 3}", task_type=("classification", "regression")[number // 3]
        )
        store.episodes.add_problems([problem])
        episode = make_episode(run, problem, rollout_index=number % 3)
        turns = [make_turn(policies[agent], turn) for turn, agent in enumerate(TEAM)]
        record(store, episode, turns, success=number % 3 == 1)
        for turn, agent in enumerate(TEAM):
            lost, cut_off = (number, turn) == (1, 2), (number, turn) == (4, 3)
            points = float((number * 7 + turn * 5) % 11)
            score = Unscored(reason="timeout", detail="?") if lost else points
            scored = make_score(episode, turn, score)
            store.scores.add_scores([scored])
            learned = None if lost or cut_off else points / 10 - 0.5
            counted = entry(episode, turn, learned, 0.1)
            reason = "truncated" if cut_off else counted.left_out
            entries[agent].append(replace(counted, score_id=scored.id, left_out=reason))
    for agent in policies:
        store.updates.add_update(*make_update(run, agent, 1, entries[agent]))
    return run
