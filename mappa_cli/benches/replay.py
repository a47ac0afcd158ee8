"""Records ready episodes as a training run records its own: by `play_episode` and `score_episode`.

    Team, ActionRunner   turns of a finished episode, one after another
    Coach                its scores, in the order of its actions

What is asked of engine, sandbox and coach is answered at once; all else is training's own code.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mappa_core.coach.scoring import ScorePlan, score_episode
from mappa_core.core.concurrency import together
from mappa_core.core.records.episodes import Action, Episode, Observation, Turn
from mappa_core.core.records.scores import (
    CoachCase,
    CoachIdentity,
    CoachRequest,
    CoachScore,
    ScoreEntry,
    Unscored,
)
from mappa_core.core.records.tools import ToolRequest, ToolResult
from mappa_core.rollout.episode import EpisodeRecords, play_episode
from mappa_core.rollout.teams.base import AgentSpec, Team
from mappa_core.rollout.teams.prompts import PromptSet
from mappa_core.store.store import Store

NO_PROMPTS = PromptSet(name="replay-1", version=1, sha256="0", prompts={})


@dataclass(frozen=True, kw_only=True)
class ReplayedTeam(Team):
    """Takes the turns of a finished episode again; its answer stays that of the episode."""

    prompts: PromptSet = NO_PROMPTS
    name: str = "replay"
    agents: tuple[AgentSpec, ...] = ()
    rules: str | None = None
    rubrics: str = "replay"
    episode: Episode

    def next_observation(self, episode: Episode) -> Observation | None:
        """Show what was seen at this turn."""
        turn = self._turn(len(episode.turns))
        return None if turn is None else turn.observation

    def code_in(self, agent: str, text: str) -> ToolRequest | None:
        """Return the program of the turn with this text, None where it ran none."""
        for turn in self.episode.turns:
            if turn.agent == agent and turn.action.text == text and turn.tool_result is not None:
                return turn.tool_result.code
        return None

    def final_answer(self, episode: Episode) -> str | None:  # noqa: ARG002
        """Return the answer of the finished episode where it was right, none elsewhere."""
        outcome = self.episode.outcome
        return outcome.answer if outcome is not None and outcome.success else None

    def _turn(self, index: int) -> Turn | None:
        return self.episode.turns[index] if index < len(self.episode.turns) else None


@dataclass(frozen=True, slots=True)
class ReplayedActions:
    """Gives the actions of a finished episode and what became of their programs."""

    turns: tuple[Turn, ...]

    async def generate(self, episode: Episode, observation: Observation) -> Action:  # noqa: ARG002
        """Return the action of the next turn."""
        return self.turns[len(episode.turns)].action

    async def execute(self, episode: Episode, request: ToolRequest) -> ToolResult:  # noqa: ARG002
        """Return what the program of the next turn did."""
        result = self.turns[len(episode.turns)].tool_result
        assert result is not None
        return result


class ReplayedCoach:
    """Gives ready scores one after another, with the words that it was asked with."""

    def __init__(self, scores: Sequence[ScoreEntry]) -> None:
        self._identity = scores[0].identity
        self._scores = iter([entry.score for entry in scores])

    @property
    def identity(self) -> CoachIdentity:
        """Which coach gave the scores."""
        return self._identity

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        """Return the next score."""
        request = CoachRequest(system=case.agent, prompt=case.text)
        return replace(next(self._scores), request=request)


async def record(
    store: Store, episodes: Sequence[Episode], scores: Sequence[ScoreEntry], at_once: int
) -> None:
    """Play and score finished episodes again, so many at once; they are in the store afterwards.

    Args:
        store: Has their run, policies and problems.
        episodes: What comes of each, whole.
        scores: Of their actions, in the order of episodes and turns.
        at_once: Episodes in flight, as `rollout.concurrency`.
    """
    places = asyncio.Semaphore(at_once)
    given, records = iter(scores), EpisodeRecords(store)

    async def one(whole: Episode, entries: Sequence[ScoreEntry]) -> None:
        begun = replace(whole, turns=(), stop_reason=None, outcome=None)
        async with places:
            played = await play_episode(
                begun,
                team=ReplayedTeam(episode=whole),
                records=records,
                runner=ReplayedActions(whole.turns),
            )
        await score_episode(played, plan=ScorePlan(coach=ReplayedCoach(entries)), store=store)

    await together(one(each, [next(given) for _ in each.turns]) for each in episodes)
