"""The smallest thing that can be trained through the whole path: one agent, a token at a time."""

import string
from dataclasses import dataclass, replace
from pathlib import Path

from mappa_core.app.config import TrainConfig
from mappa_core.app.progress import LogProgress
from mappa_core.app.services import Services
from mappa_core.coach.protocols import Coach
from mappa_core.core import ids
from mappa_core.core.records.episodes import Episode, Message, Observation, Problem
from mappa_core.core.records.scores import CoachCase, CoachIdentity, CoachScore, Unscored
from mappa_core.core.records.tools import Limits, RefusedCall, Tool, ToolCall, ToolResult
from mappa_core.models.tokenizer import ChatTokenizer
from mappa_core.rollout.actions import refusal
from mappa_core.rollout.engines.transformers.engine import TransformersEngine
from mappa_core.rollout.teams.base import AgentSpec, Team
from mappa_core.rollout.teams.prompts import PromptSet
from mappa_core.store.store import Store
from mappa_core.train.learners.torch_learner import TorchLearner
from tests.fakes.acting import NoPython
from tests.fakes.tracking import MemoryRegistry, MemoryTracker

SPEAKER = AgentSpec(name="speaker", title="Speaker", max_turns=1, sees=())
NO_PROMPTS = PromptSet(name="none-1", version=1, sha256="0", prompts={})


@dataclass(frozen=True, kw_only=True)
class Monologue(Team):
    """A team, of one unless a test says otherwise, in which each speaks once."""

    prompts: PromptSet = NO_PROMPTS
    name: str = "monologue"
    agents: tuple[AgentSpec, ...] = (SPEAKER,)
    rules: str | None = None
    rubrics: str = "monologue"

    def next_observation(self, episode: Episode) -> Observation | None:
        if len(episode.turns) == len(self.agents):
            return None
        message = Message(role="user", content=episode.problem.statement)
        return Observation(agent=self.agents[len(episode.turns)].name, messages=(message,))

    def final_answer(self, episode: Episode) -> str | None:
        return episode.turns[-1].action.text if episode.turns else None


ECHO = Tool(server="cave", name="echo", description="", schema={})


class Caller(Monologue):
    """Whatever its agent says is a call."""

    def code_in(self, agent: str, text: str) -> ToolCall:
        return ToolCall(text=text, tool=ECHO, arguments={"said": text})


class Cave:
    """A toolbox that says a call again."""

    tools = (ECHO,)

    async def call(self, call: ToolCall, limits: Limits) -> ToolResult:
        refused = refusal(RefusedCall(text=call.text, reason=""))
        return replace(refused, stdout=f"{call.arguments['said']}!", tier=f"mcp:{call.tool.server}")


class Cues:
    """Problems that are single letters."""

    def train(self) -> tuple[Problem, ...]:
        return tuple(_cue(letter) for letter in "ab")

    def held_out(self) -> tuple[Problem, ...]:
        return tuple(_cue(letter) for letter in "wxyz")


def _cue(letter: str) -> Problem:
    return Problem(
        id=ids.problem_id(letter),
        dataset="cues",
        task_type="cue",
        level=1,
        statement=letter,
        answer=letter,
    )


@dataclass
class AlphabetCoach:
    """Ten points times the share of letters, or of what is not a letter."""

    letters: bool = True

    @property
    def identity(self) -> CoachIdentity:
        return CoachIdentity(
            coach="letters", model="m", model_version="1", rubric_version="1", rubric_sha256="0"
        )

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        share = letter_share(case.text)
        value = 10 * (share if self.letters else 1 - share)
        return CoachScore(value=value, rationale="letters are counted")


def letter_share(text: str) -> float:
    return sum(c in string.ascii_letters for c in text) / len(text) if text else 0.0


def toy_services(
    config: TrainConfig,
    store: Store,
    model: Path,
    checkpoints: Path,
    coach: Coach | None = None,
) -> Services:
    """Everything a toy run needs."""
    tokenizer = ChatTokenizer(model)
    return Services(
        team=Monologue(),
        model=str(model),
        problems=Cues(),
        tokenizer=tokenizer,
        engine=TransformersEngine(model, config.engine, tokenizer.end_token_ids),
        sandbox=NoPython(),
        coach=coach or AlphabetCoach(),
        learner=TorchLearner(model, checkpoints, config.learner, threads=1),
        store=store,
        tracker=MemoryTracker(),
        registry=MemoryRegistry(),
        progress=LogProgress(),
    )
