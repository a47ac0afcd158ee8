"""The rule coach behind the coach port; its rubric is its own source, by hash."""

import hashlib
import time
from importlib.resources import files

from mappa_core.coach.rules import mathchat as rules
from mappa_core.core.records.scores import CoachCase, CoachIdentity, CoachScore, Unscored


class RuleCoach:
    """Scores by `coach.rules.mathchat`; the same case always gets the same score."""

    def __init__(self) -> None:
        self._identity = CoachIdentity(
            coach="rule",
            model="rules",
            model_version=rules.VERSION,
            rubric_version=rules.VERSION,
            rubric_sha256=_rubric_sha256(),
        )

    @property
    def identity(self) -> CoachIdentity:
        """Who scores, with which rules."""
        return self._identity

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        """Points and observations; an agent without rules is left unscored."""
        started = time.perf_counter()
        judgement = rules.judge(case)
        seconds = time.perf_counter() - started
        if judgement is None:
            return Unscored(
                reason="refused", detail=f"no rules for agent {case.agent}", seconds=seconds
            )
        return CoachScore(
            value=float(judgement.points), rationale=judgement.rationale, seconds=seconds
        )


def _rubric_sha256() -> str:
    room = files("mappa_core.coach.rules")
    names = ("mathchat.py", "stories.py", "pipeline.py")
    sources = [(room / name).read_bytes() for name in names]
    return hashlib.sha256(b"\0".join(sources)).hexdigest()
