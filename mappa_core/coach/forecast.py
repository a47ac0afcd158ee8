"""What coaching will take, before it is asked: calls, tokens, dollars.

Prompts are built as they will be sent and counted by their characters; replies are expected to
have the configured length. What cannot be known before a run, how much agents write, is assumed
and said: half of their token budget, one turn each, programs that print a line; or it is taken
from the habits of a run that was.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID

from mappa_core.coach.budget import CHARACTERS_PER_TOKEN, Usage, cost, estimated_tokens
from mappa_core.coach.config import CoachModelConfig
from mappa_core.coach.evidence import SOLVING, build_prompt
from mappa_core.coach.rubrics import RubricSet
from mappa_core.core.records.episodes import Action, FinishReason, Observation, Turn
from mappa_core.core.records.scores import CoachCase
from mappa_core.core.records.tools import ToolResult, ToolStatus

FILLED = 0.5
"""Share of its token budget that an agent is assumed to use."""
PRINTED = "The result is 1234.\n"
"""What a program is assumed to print."""
_WORDS = "the plan takes each number of the task and says which one is needed for the next step "


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How the agents and the coach of an earlier run wrote; None where it cannot say."""

    characters: Mapping[str, float] = field(default_factory=dict[str, float])
    """Of an action, by agent."""
    calls_per_episode: float | None = None
    reply_tokens: float | None = None
    """Of a call, thoughts included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is expected."""

    calls: float = 0.0
    prompt_tokens: float = 0.0
    reply_tokens: float = 0.0
    cost_usd: float = 0.0

    @property
    def tokens(self) -> float:
        """All tokens."""
        return self.prompt_tokens + self.reply_tokens

    def times(self, factor: float) -> "Forecast":
        """`factor` times as much."""
        return Forecast(
            calls=self.calls * factor,
            prompt_tokens=self.prompt_tokens * factor,
            reply_tokens=self.reply_tokens * factor,
            cost_usd=self.cost_usd * factor,
        )

    def __add__(self, other: "Forecast") -> "Forecast":
        return Forecast(
            calls=self.calls + other.calls,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            reply_tokens=self.reply_tokens + other.reply_tokens,
            cost_usd=self.cost_usd + other.cost_usd,
        )


def forecast(
    cases: Iterable[CoachCase],
    rubrics: RubricSet,
    config: CoachModelConfig,
    habits: Habits | None = None,
) -> Forecast:
    """What asking about `cases` once each will take, without failures.

    The rubric, the same for all cases of an agent, is taken as cached from its second case on.
    """
    known = None if habits is None else habits.reply_tokens
    thought = (config.thinking_budget or 0) // 2 if known is None else 0
    reply = config.expected_reply_tokens if known is None else round(known)
    total, seen = Forecast(), set[str]()
    for case in cases:
        rubric = rubrics.rubrics.get(case.agent)
        if config.own_solution and case.statement not in seen:
            seen.add(case.statement)
            total += _solving(case, config, reply)
        if rubric is not None:
            prompt = build_prompt(case, rubric, correction=config.correction)
            cached = estimated_tokens(prompt.system) if prompt.system in seen else 0
            seen.add(prompt.system)
            usage = Usage(
                prompt=estimated_tokens(prompt.system, prompt.user),
                cached=cached,
                reply=reply,
                thought=thought,
            )
            total += _one_call(usage, config)
    return total


def _solving(case: CoachCase, config: CoachModelConfig, reply: int) -> Forecast:
    """What the coach's own solution of a task takes; at most as long as its judgements."""
    usage = Usage(prompt=estimated_tokens(SOLVING, case.statement), reply=reply)
    return _one_call(usage, config)


def _one_call(usage: Usage, config: CoachModelConfig) -> Forecast:
    return Forecast(
        calls=1,
        prompt_tokens=usage.prompt,
        reply_tokens=usage.reply + usage.thought,
        cost_usd=cost(usage, config.charged).usd,
    )


def assumed_turn(
    observation: Observation,
    index: int,
    policy: UUID,
    max_tokens: int,
    *,
    runs_code: bool,
    characters: float | None = None,
) -> Turn:
    """A turn as it may turn out: so much written, a program that prints a line.

    Half of `max_tokens` is assumed, or the `characters` that the agent is known to write.
    """
    length = round(max_tokens * CHARACTERS_PER_TOKEN * FILLED if characters is None else characters)
    text = (_WORDS * (length // len(_WORDS) + 1))[:length]
    action = Action(
        prompt_token_ids=(),
        token_ids=(),
        logprobs=(),
        text=text,
        finish_reason=FinishReason.STOP,
        policy_version_id=policy,
        temperature=1.0,
        seed=0,
        started_at=datetime.fromtimestamp(0, UTC),
        seconds=0.0,
    )
    return Turn(
        index=index,
        agent=observation.agent,
        observation=observation,
        action=action,
        tool_result=_printed(text) if runs_code else None,
    )


def _printed(code: str) -> ToolResult:
    return ToolResult(
        code=code,
        status=ToolStatus.OK,
        exit_code=0,
        stdout=PRINTED,
        stderr="",
        stdout_omitted_bytes=0,
        stderr_omitted_bytes=0,
        cpu_seconds=None,
        peak_memory_bytes=None,
        seconds=0.1,
        tier="assumed",
    )


def lines(forecasts: Sequence[tuple[str, Forecast]]) -> Iterator[str]:
    """A forecast for people, one line per coach."""
    for name, expected in forecasts:
        yield (
            f"{name}: about {expected.calls:,.0f} calls, {expected.tokens:,.0f} tokens "
            f"({expected.prompt_tokens:,.0f} prompt, {expected.reply_tokens:,.0f} sampled), "
            f"{expected.cost_usd:,.2f} dollars by the configured prices"
        )
