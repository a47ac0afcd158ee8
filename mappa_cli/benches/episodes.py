"""Real-looking episodes in any number, for `mappa bench store`.

Every action has its own ids and positions; its words and tokens come from a pool, so that making
records costs little against storing them.
"""

import random
from array import array
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from mappa_core.coach.scoring import score_id
from mappa_core.core import ids
from mappa_core.core.records.episodes import (
    Action,
    Episode,
    FinishReason,
    Message,
    Observation,
    Outcome,
    PolicyVersion,
    Problem,
    StopReason,
    Turn,
)
from mappa_core.core.records.runs import Run
from mappa_core.core.records.scores import CoachIdentity, CoachScore, ScoreEntry
from mappa_core.core.records.tools import ToolResult, ToolStatus
from mappa_core.rollout.episode import new_episode
from mappa_core.store.store import Store

AGENTS = ("problem_solver", "code_executor", "code_executor", "verifier")
TASK_TYPES = ("addition", "subtraction", "multiplication", "division")
PROBLEMS = 400
EPISODES_PER_ITERATION = 512
POOL = 512
COACH = CoachIdentity(
    coach="gemini",
    model="a-model",
    model_version="a-model-001",
    rubric_version="mathchat-1",
    rubric_sha256="5e" * 32,
)
WORDS = (
    "the agent reads what is asked and computes a total before it checks units",
    "the program prints a result that matches the claim, exit code zero",
    "but the final answer is not boxed, therefore points are taken away.",
    "Step 2 shows its work clearly: 12 * 7 = 84, remainder 5;",
)
Batch = tuple[list[Episode], list[ScoreEntry]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRun:
    """A run that is in the store, and its policies by agent."""

    run: Run
    policies: dict[str, PolicyVersion]


class Material:
    """A pool of actions, problems and rationales."""

    def __init__(self) -> None:
        self._random = random.Random(1)  # noqa: S311
        self._problems = [self._problem(number) for number in range(PROBLEMS)]
        self._turns = [self._turn(AGENTS[number % len(AGENTS)]) for number in range(POOL)]
        self._rationales = [self._text(200, 800) for _ in range(POOL)]

    def open_run(self, store: Store, name: str) -> BenchRun:
        """A new run in the store, with its base policies and problems."""
        run = Run(
            id=ids.content_id("run", name),
            name=name,
            team="mathchat",
            config={},
            code_version="bench",
            seed=1,
            sandbox_tier="none",
            started_at=datetime.now(UTC),
        )
        policies = {agent: _base(run, agent) for agent in dict.fromkeys(AGENTS)}
        store.runs.add_run(run)
        store.episodes.add_problems(self._problems)
        for policy in policies.values():
            store.policies.add_policy_version(policy)
        return BenchRun(run=run, policies=policies)

    def episodes(self, run: BenchRun, first: int, count: int) -> Batch:
        """Episodes `first` to `first + count` of a run, four turns each, with their scores."""
        episodes = [self._episode(run, number) for number in range(first, first + count)]
        return episodes, [
            self._score(episode, turn) for episode in episodes for turn in episode.turns
        ]

    def _episode(self, run: BenchRun, number: int) -> Episode:
        iteration, position = divmod(number, EPISODES_PER_ITERATION)
        rollout_index, which = divmod(position, len(self._problems))
        problem = self._problems[which]
        start = number * len(AGENTS)
        return replace(
            new_episode(run.run.id, "train", iteration + 1, problem, rollout_index),
            turns=tuple(
                self._taken(run, index, self._turns[(start + index) % POOL])
                for index in range(len(AGENTS))
            ),
            stop_reason=StopReason.ANSWERED,
            outcome=Outcome(success=number % 3 == 0, answer="84", method="math-verify"),
        )

    def _taken(self, run: BenchRun, index: int, turn: Turn) -> Turn:
        policy = run.policies[turn.agent]
        return replace(turn, index=index, action=replace(turn.action, policy_version_id=policy.id))

    def _score(self, episode: Episode, turn: Turn) -> ScoreEntry:
        action_id = ids.action_id(episode.id, turn.index)
        number = action_id.int
        return ScoreEntry(
            id=score_id(action_id, COACH, 0, 0),
            episode_id=episode.id,
            turn_index=turn.index,
            identity=COACH,
            repeat_index=0,
            label_visible=False,
            trained=True,
            score=CoachScore(value=number % 101 / 10, rationale=self._rationales[number % POOL]),
        )

    def _problem(self, number: int) -> Problem:
        statement = f"Problem {number}: {self._text(100, 300)}"
        return Problem(
            id=ids.problem_id(statement),
            dataset="bench",
            task_type=TASK_TYPES[number % len(TASK_TYPES)],
            level=1,
            statement=statement,
            answer="84",
        )

    def _turn(self, agent: str) -> Turn:
        sampled = self._random.randint(64, 512)
        messages = (
            Message(role="system", content=self._text(200, 400)),
            Message(role="user", content=self._text(100, 300)),
        )
        logprobs = array("f", (-self._random.expovariate(2.0) for _ in range(sampled)))
        return Turn(
            index=0,
            agent=agent,
            observation=Observation(agent=agent, messages=messages),
            action=Action(
                prompt_token_ids=self._tokens(self._random.randint(64, 256)),
                token_ids=self._tokens(sampled),
                logprobs=tuple(logprobs),
                text=self._text(3 * sampled, 5 * sampled),
                finish_reason=FinishReason.STOP,
                policy_version_id=ids.content_id("bench"),
                temperature=1.0,
                seed=7,
                started_at=datetime.now(UTC),
                seconds=1.5,
            ),
            tool_result=self._tool_result() if agent == "code_executor" else None,
        )

    def _tool_result(self) -> ToolResult:
        return ToolResult(
            code=self._text(100, 400),
            status=ToolStatus.OK,
            exit_code=0,
            stdout=self._text(10, 200),
            stderr="",
            stdout_omitted_bytes=0,
            stderr_omitted_bytes=0,
            seconds=0.1,
            cpu_seconds=0.05,
            peak_memory_bytes=9_000_000,
            tier="none",
        )

    def _tokens(self, count: int) -> tuple[int, ...]:
        """Ids as frequent as words are: a few often, most seldom (Zipf)."""
        return tuple(int(49_152 ** self._random.random()) for _ in range(count))

    def _text(self, shortest: int, longest: int) -> str:
        length = self._random.randint(shortest, longest)
        return " ".join(self._random.choices(WORDS, k=length // 40 + 1))[:length]


def _base(run: Run, agent: str) -> PolicyVersion:
    # Not `train.update.base_policy`: torch would count as a writer's memory.
    return PolicyVersion(
        id=ids.policy_version_id(run.id, agent, 0),
        run_id=run.id,
        agent=agent,
        step=0,
        base_model="bench",
        adapter_uri=None,
    )
