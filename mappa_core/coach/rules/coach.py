"""The rule coach: scores from the evidence alone, without a network."""

import time
from dataclasses import replace

from mappa_core.coach.rules import load_rules, rules_sha256
from mappa_core.core.records.scores import CoachCase, CoachIdentity, CoachScore, Unscored


class RuleCoach:
    """Scores by a set of rules; the same case always gets the same score."""

    def __init__(self, rules: str | None) -> None:
        """Score by the set that a team names.

        Raises:
            ConfigError: There is no such set.
        """
        self._rules = load_rules(rules)
        version = f"rules-{self._rules.version}"
        self._identity = CoachIdentity(
            coach="rule",
            model="rules",
            model_version=version,
            rubric_version=version,
            rubric_sha256=rules_sha256(rules),
        )

    @property
    def identity(self) -> CoachIdentity:
        """Which rules score."""
        return self._identity

    def reads(self, case: CoachCase) -> object:
        """The task's words and what was done; no label of the task, no truth, no prompt."""
        return replace(
            case,
            task_type="",
            messages=(),
            facts=(),
            outcome=None,
            expected_answer=None,
            sample=0,
        )

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        """Give points and observations; an agent without rules is left unscored."""
        started = time.perf_counter()
        judge = self._rules.judge_of(case.agent)
        judgement = judge(case) if judge is not None else None
        seconds = time.perf_counter() - started
        if judgement is None:
            return Unscored(
                reason="refused", detail=f"no rules for agent {case.agent}", seconds=seconds
            )
        return CoachScore(
            value=float(judgement.points), rationale=judgement.rationale, seconds=seconds
        )
