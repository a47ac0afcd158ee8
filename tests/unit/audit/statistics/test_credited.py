"""What actions were credited with, against the advantages that training gives them."""

from dataclasses import replace

import numpy as np
import pytest

from mappa_core.audit.frame import Factor, Frame
from mappa_core.audit.records import CreditRule
from mappa_core.audit.statistics.credited import credited, visits
from mappa_core.audit.statistics.updates import flips_beyond, other_updates, update_shares
from mappa_core.core.ids import content_id, problem_id
from mappa_core.core.records.scores import ScoredAction
from mappa_core.train.config import AlgorithmConfig
from mappa_core.train.credit import assign_credit
from tests.unit.audit.frames import make_frame

NAN = float("nan")
TEAM = CreditRule(credit="team")
RULES = (CreditRule(), CreditRule(credit="return", discount=0.6), TEAM)


def test_credits_by_hand() -> None:
    """One episode: solver 8, executor 4, executor cut off, solver 2, verifier unscored."""
    frame = make_frame(
        [8, 4, 9, 2, NAN],
        agent=["solver", "executor", "executor", "solver", "verifier"],
        episode=[7] * 5,
        turn=[0, 1, 2, 3, 4],
        cut_off=[False, False, True, False, False],
    )
    assert visits(frame).tolist() == [0, 0, 1, 1, 0]
    assert credited(frame, frame.score, CreditRule()).tolist()[:4] == [8, 4, 9, 2]
    returns = credited(frame, frame.score, CreditRule(credit="return", discount=0.5))
    assert returns.tolist()[:2] == [9, 4]
    assert credited(frame, frame.score, TEAM).tolist()[:4] == pytest.approx([14 / 3, 3, 2, 2])
    # A coach that says nothing of the last action says nothing of those before it either.
    silent = credited(frame, np.array([1.0, 1.0, 1.0, NAN, NAN]), TEAM)
    assert np.isnan(silent[:4]).all()


@pytest.mark.parametrize("estimator", ["rloo", "reinforce++-baseline", "dr-grpo", "reinforce++"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.credit)
def test_a_coach_that_is_all_bias_made_the_whole_of_every_update(
    rule: CreditRule, estimator: str
) -> None:
    rule = replace(rule, by_problem=estimator != "reinforce++")
    frame = trained(rule, estimator)
    for update in update_shares(frame, frame.score, rule):
        # A batch baseline leaves out the own episode: here, up to three actions of a batch.
        assert update.share == pytest.approx(1.0, abs=1e-6 if rule.by_problem else 0.01)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.credit)
def test_the_same_scores_would_have_made_the_same_update(rule: CreditRule) -> None:
    frame = trained(rule, "rloo")
    turned = 12 - frame.score
    for update in other_updates(frame, frame.score, frame.score, rule):
        assert (update.flipped, update.cosine) == (0, pytest.approx(1.0))
    for update in other_updates(frame, turned, frame.score, rule):
        assert update.cosine == pytest.approx(-1.0)
    beyond = flips_beyond(frame, turned, frame.score, rule)
    assert beyond is not None
    assert beyond.value > 0.9


def test_scores_of_others_are_part_of_a_teams_update() -> None:
    """A bias for the verifier alone made part of what the solver learned."""
    frame = trained(TEAM, "rloo")
    verifier = frame.agent.names.index("verifier")
    bias = np.where(frame.agent.codes == verifier, frame.score, 0.0)
    shares = {update.agent: update.share for update in update_shares(frame, bias, TEAM)}
    assert shares["verifier"] > 0.9
    assert 0.05 < shares["solver"] < 0.95
    alone = {update.agent: update.share for update in update_shares(frame, bias, CreditRule())}
    assert alone["solver"] == 0.0


def trained(rule: CreditRule, estimator: str) -> Frame:
    """Six problems of four episodes of one to three rounds, with the advantages they trained by."""
    rng = np.random.default_rng(5)
    actions = [
        ScoredAction(
            action_id=content_id("action", episode, turn),
            agent=("solver", "verifier")[turn % 2],
            episode_id=content_id("episode", episode),
            problem_id=problem_id(str(episode // 4)),
            rollout_index=episode % 4,
            turn_index=turn,
            policy_step=0,
            prompt_token_ids=(1,),
            token_ids=(2, 3),
            logprobs=(-1.0, -1.0),
            truncated=False,
            score=float(rng.integers(0, 21) / 2),
        )
        for episode in range(24)
        # All episodes of a problem are as long: an action without a peer is compared with others.
        for turn in range(2 * (1 + episode // 4 % 3))
    ]
    algorithm = AlgorithmConfig.model_validate(
        {"estimator": estimator, "credit": rule.credit, "discount": rule.discount}
    )
    advantages: dict[object, float] = {}
    for agent in ("solver", "verifier"):
        own = [action for action in actions if action.agent == agent]
        for entry in assign_credit(own, algorithm, team=actions).entries:
            assert entry.advantage is not None
            advantages[entry.action_id] = entry.advantage
    numbers = {action.episode_id: number for number, action in enumerate(actions)}
    frame = make_frame(
        [action.score or 0.0 for action in actions],
        agent=[action.agent for action in actions],
        episode=[numbers[action.episode_id] for action in actions],
        turn=[action.turn_index for action in actions],
        advantage=[advantages[action.action_id] for action in actions],
    )
    return replace(frame, problem=Factor.of([str(action.problem_id) for action in actions]))
