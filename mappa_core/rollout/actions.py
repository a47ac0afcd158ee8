"""The actions of an episode: sampled from an engine, and what they ask for done.

observation ──▶ Engine ──▶ Action        a thought at its limit is closed, and sampling goes on
program ──▶ Sandbox ──┐
call    ──▶ Toolbox ──┼─▶ ToolResult     the files stay as they are where no program ran
refused ──────────────┘
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mappa_core.core import ids
from mappa_core.core.concurrency import in_thread
from mappa_core.core.errors import ToolServerError
from mappa_core.core.records.episodes import (
    Action,
    Completion,
    Episode,
    FinishReason,
    GenerationRequest,
    Given,
    Observation,
    Phase,
    PolicyVersion,
    Sampling,
)
from mappa_core.core.records.tools import (
    Limits,
    RefusedCall,
    ToolCall,
    ToolRequest,
    ToolResult,
    ToolStatus,
)
from mappa_core.core.text import continued, ends_in_thought, open_thoughts
from mappa_core.rollout.config import RolloutConfig, SandboxConfig
from mappa_core.rollout.episode_files import EpisodeFiles
from mappa_core.rollout.protocols import Engine, Sandbox, Toolbox

if TYPE_CHECKING:
    from mappa_core.models.tokenizer import ChatTokenizer

REFUSED = "mcp"
"""The tier of a call that reached no server."""

SharedLimit = Literal["mappa-engine", "mappa-sandbox"]
"""What several runs may share a limit on: actions being sampled, programs and tools running."""


def _unlimited(limit: SharedLimit) -> AbstractAsyncContextManager[None]:  # noqa: ARG001
    return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRunner:
    """Does what actions ask for: runs programs and calls tools."""

    sandbox: Sandbox
    limits: Limits
    toolbox: Toolbox | None = None
    """None where no agent has tools beyond Python."""
    files: EpisodeFiles | None = None
    """None where the team works without files."""
    limited: Callable[[SharedLimit], AbstractAsyncContextManager[None]] = _unlimited
    """Holds a place within a limit that this process shares with others."""

    async def execute(self, episode: Episode, request: ToolRequest) -> ToolResult:
        """Do what an episode's next turn asks for; see `ActionRunner`."""
        async with self.limited("mappa-sandbox"):
            if self.files is None:
                return await self._result(request, None)
            folder = await in_thread(self.files.open, episode)
            result = await self._result(request, folder)
            await in_thread(self.files.keep, episode, folder)
            return result

    async def _result(self, request: ToolRequest, folder: Path | None) -> ToolResult:
        match request:
            case str():
                return await self.sandbox.run(request, folder, self.limits)
            case RefusedCall():
                return refusal(request)
            case ToolCall():
                if self.toolbox is None:
                    raise ToolServerError(f"no server {request.tool.server} is open")
                return await self.toolbox.call(request, self.limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectRunner(ToolRunner):
    """Runs actions on the services that this process has open; an `ActionRunner`."""

    engine: Engine
    tokenizer: "ChatTokenizer"
    policies: Mapping[str, PolicyVersion]
    """By agent."""
    sampling: Sampling
    seed: int
    """Of the run."""
    agent_tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    """Sampled tokens per action, at most, of agents that have a limit of their own."""
    thought_tokens: int | None = None
    """After so many sampled tokens an open thought is closed; None for never."""
    agent_thought_tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    """The same of agents that have a limit of their own."""
    longest: int = 2**31
    """Tokens of a prompt and its answer, at most."""
    served: Callable[[str], Awaitable[None]] | None = None
    """Returns when an agent's policy is loaded; None where all are."""

    async def generate(self, episode: Episode, observation: Observation) -> Action:
        """Sample the next action of an episode; see `ActionRunner`."""
        policy, seed = self.policies[observation.agent], generation_seed(self.seed, episode)
        tokens = self.agent_tokens.get(observation.agent, self.sampling.max_tokens)
        sampling = replace(self.sampling, max_tokens=tokens)
        if self.served is not None:
            await self.served(observation.agent)
        async with self.limited("mappa-engine"):
            prompt = self.tokenizer.render(observation.messages)
            thought = self.tokenizer.opened_thought(observation.messages)
            started_at = datetime.now(UTC)
            request = GenerationRequest(
                policy=policy,
                prompt_token_ids=prompt,
                sampling=sampling,
                seed=seed,
                problem_id=episode.problem.id,
            )
            limit = self.agent_thought_tokens.get(observation.agent, self.thought_tokens)
            completion, given = await self._completed(request, thought, limit)
        text = continued(thought, self.tokenizer.decode(completion.token_ids))
        return Action(
            prompt_token_ids=prompt,
            token_ids=completion.token_ids,
            logprobs=completion.logprobs,
            text=text,
            finish_reason=reason_of(completion.finish_reason, text),
            policy_version_id=policy.id,
            temperature=sampling.temperature,
            seed=seed,
            started_at=started_at,
            seconds=completion.seconds,
            given=given,
        )

    async def _completed(
        self, request: GenerationRequest, thought: str, limit: int | None
    ) -> tuple[Completion, Given]:
        """Sample in one go, or, where thoughts have a limit, up to it and on from there."""
        most = request.sampling.max_tokens
        if limit is None or limit >= most:
            return await self.engine.generate(request), None
        begun = await self.engine.generate(_at_most(request, limit))
        if begun.finish_reason is not FinishReason.LENGTH or len(begun.token_ids) < limit:
            return begun, None
        text = continued(thought, self.tokenizer.decode(begun.token_ids))
        closing = self.tokenizer.close_of_thought() * open_thoughts(text)
        before = (*begun.token_ids, *closing)
        prompt = (*request.prompt_token_ids, *before)
        if len(before) >= most or len(prompt) >= self.longest:
            return begun, None
        seed = ids.derive_seed(request.seed, "after the thought")
        rest = replace(request, prompt_token_ids=prompt, seed=seed)
        answer = await self.engine.generate(_at_most(rest, most - len(before)))
        return _joined(begun, closing, answer), (limit, len(before)) if closing else None


def _at_most(request: GenerationRequest, tokens: int) -> GenerationRequest:
    return replace(request, sampling=replace(request.sampling, max_tokens=tokens))


def _joined(begun: Completion, closing: tuple[int, ...], answer: Completion) -> Completion:
    """One completion of a thought, the end that it was given, and what follows."""
    return Completion(
        token_ids=(*begun.token_ids, *closing, *answer.token_ids),
        # What is given is certain.
        logprobs=(*begun.logprobs, *(0.0,) * len(closing), *answer.logprobs),
        finish_reason=answer.finish_reason,
        seconds=begun.seconds + answer.seconds,
    )


def reason_of(reason: FinishReason, text: str) -> FinishReason:
    """Say why sampling stopped; `text` is the reply with the thought that its prompt opened."""
    cut = reason is FinishReason.LENGTH and ends_in_thought(text)
    return FinishReason.LENGTH_IN_THOUGHT if cut else reason


def sampling_of(config: RolloutConfig, phase: Phase, held_out_temperature: float) -> Sampling:
    """Say how tokens are drawn: hotter to explore, cooler to measure."""
    if phase == "train":
        temperature, top_p = config.temperature, config.top_p
    else:
        temperature, top_p = held_out_temperature, 1.0
    return Sampling(temperature=temperature, top_p=top_p, max_tokens=config.max_tokens)


def generation_seed(seed: int, episode: Episode) -> int:
    """Derive the seed of an episode's next action.

    Held-out episodes keep theirs over the iterations, so before and after differ by the
    weights alone.
    """
    iteration = episode.iteration if episode.phase == "train" else 0
    return ids.derive_seed(
        seed,
        episode.phase,
        iteration,
        episode.problem.id,
        episode.rollout_index,
        len(episode.turns),
    )


def limits_of(config: SandboxConfig) -> Limits:
    """Give the bounds of a run or a call as the configuration sets them."""
    return Limits(
        wall_seconds=config.wall_seconds,
        cpu_seconds=config.cpu_seconds,
        memory_bytes=config.memory_mib * 2**20,
        processes=config.processes,
        workspace_bytes=config.workspace_mib * 2**20,
        file_bytes=config.file_mib * 2**20,
        output_bytes=config.output_kib * 2**10,
    )


def refusal(call: RefusedCall) -> ToolResult:
    """Make the result of a call that cannot be made: why not."""
    return ToolResult(
        code=call.text,
        status=ToolStatus.NONZERO,
        exit_code=1,
        stdout="",
        stderr=call.reason,
        stdout_omitted_bytes=0,
        stderr_omitted_bytes=0,
        cpu_seconds=None,
        peak_memory_bytes=None,
        seconds=0.0,
        tier=REFUSED,
        read=(),
    )
