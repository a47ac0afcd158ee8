"""Every engine keeps the promise of `Engine`: ids in, ids and their log-probs out."""

import asyncio
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
import torch
from peft import PeftModel
from transformers import AutoTokenizer

from mappa_core.core.errors import EngineError
from mappa_core.core.ids import content_id
from mappa_core.core.records.episodes import (
    Action,
    Completion,
    FinishReason,
    GenerationRequest,
    Message,
    Observation,
    PolicyVersion,
    Sampling,
    chosen,
)
from mappa_core.core.records.scores import ScoredAction
from mappa_core.models.serving.server import ForkedServers
from mappa_core.models.tokenizer import ChatTokenizer
from mappa_core.models.weights import load_base
from mappa_core.rollout.actions import DirectRunner, limits_of
from mappa_core.rollout.config import EngineConfig, SandboxConfig
from mappa_core.rollout.engines.base import EngineSetup
from mappa_core.rollout.engines.transformers.engine import TransformersEngine
from mappa_core.rollout.engines.transformers.vllm_stub import Flags, VllmStub, free_port
from mappa_core.rollout.engines.vllm.endpoints_engine import EndpointsEngine
from mappa_core.rollout.engines.vllm.engine import VllmEngine
from mappa_core.rollout.engines.vllm.fork_server import kept, open_fork_server
from mappa_core.rollout.protocols import Engine
from mappa_core.train.config import LearnerConfig
from mappa_core.train.learners.torch_learner import TorchLearner
from tests.builders import make_episode, make_policy, make_problem, make_run
from tests.fakes.acting import NoPython
from tests.tiny_model import save_adapter, save_tiny_model

CONFIG = EngineConfig(device="cpu", dtype="float32", max_model_length=512, kv_cache_gib=0.5)
AGENTS = ("solver", "verifier")
TEMPLATES = Path(__file__).parents[1] / "unit/models/chat_templates"
QUESTION = (
    Message(role="user", content="What is 2 + 2?"),
    Message(role="assistant", content="4"),
    Message(role="user", content="What is 7 + 5?"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A started engine that serves step 0 to both agents, and what the tests ask of it."""

    name: str
    engine: Engine
    model: Path
    tokenizer: ChatTokenizer
    adapter: Path
    runner: asyncio.Runner

    def policy(self, agent: str = "solver", step: int = 0) -> PolicyVersion:
        adapter = str(self.adapter) if step else None
        return replace(make_policy(make_run(), agent, step), adapter_uri=adapter)

    def request(
        self,
        policy: PolicyVersion | None = None,
        *,
        seed: int = 1,
        temperature: float = 1.0,
        max_tokens: int = 16,
    ) -> GenerationRequest:
        return GenerationRequest(
            policy=policy or self.policy(),
            prompt_token_ids=self.tokenizer.render(QUESTION),
            sampling=Sampling(temperature=temperature, top_p=1.0, max_tokens=max_tokens),
            seed=seed,
        )

    def generate(self, *requests: GenerationRequest) -> list[Completion]:
        async def together() -> list[Completion]:
            return await asyncio.gather(*map(self.engine.generate, requests))

        return self.runner.run(together())

    def load(self, policy: PolicyVersion) -> None:
        self.runner.run(self.engine.load(policy))


def transformers_engine(model: Path, ends: tuple[int, ...], directory: Path) -> Engine:
    return TransformersEngine(model, CONFIG, ends)


def vllm_engine(model: Path, ends: tuple[int, ...], directory: Path) -> Engine:
    setup = EngineSetup(
        config=CONFIG,
        model=model,
        agents=AGENTS,
        end_token_ids=ends,
        work_directory=directory / "work",
        log_directory=directory / "logs",
    )
    return VllmEngine(setup, ForkedServers(open_fork_server(CONFIG, setup.log_directory)))


class OnEndpoints(EndpointsEngine):
    """Starts two servers in its own event loop first, and stops them last."""

    def __init__(self, setup: EngineSetup, servers: Sequence[VllmStub]) -> None:
        super().__init__(setup)
        self._stubs = servers

    async def start(self) -> None:
        for server in self._stubs:
            await server.start()
        await super().start()

    async def close(self) -> None:
        await super().close()
        for server in self._stubs:
            await server.kill()


def endpoints_engine(model: Path, ends: tuple[int, ...], directory: Path) -> Engine:
    flags = Flags(model=model, max_model_len=CONFIG.max_model_length, end_token_ids=ends)
    servers = [VllmStub(flags, free_port()) for _ in range(2)]
    setup = EngineSetup(
        config=CONFIG.model_copy(update={"urls": tuple(server.url for server in servers)}),
        model=model,
        agents=AGENTS,
        end_token_ids=ends,
        work_directory=directory / "work",
        log_directory=directory / "logs",
        lora_rank=8,
    )
    return OnEndpoints(setup, servers)


ENGINES: Mapping[str, Callable[[Path, tuple[int, ...], Path], Engine]] = {
    "transformers-tiny": transformers_engine,
    "transformers": transformers_engine,
    "vllm": vllm_engine,
    "endpoints-tiny": endpoints_engine,
}


@pytest.fixture(scope="module", params=ENGINES)
def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    directory = tmp_path_factory.mktemp(request.param)
    tiny = request.param.endswith("tiny")
    model = save_tiny_model(directory / "model") if tiny else request.getfixturevalue("real_model")
    tokenizer = ChatTokenizer(model)
    # The servers come from one that is kept, as by `mappa serve --engines`.
    keeping = kept(directory / "logs") if request.param == "vllm" else nullcontext()
    with keeping, asyncio.Runner() as runner:
        engine = ENGINES[request.param](model, tokenizer.end_token_ids, directory)
        try:
            runner.run(engine.start())
            made = Bench(
                name=request.param,
                engine=engine,
                model=model,
                tokenizer=tokenizer,
                adapter=save_adapter(model, directory / "adapter", size=0.05 if tiny else 0.01),
                runner=runner,
            )
            for agent in AGENTS:
                made.load(made.policy(agent))
            yield made
        finally:
            runner.run(engine.close())
            runner.run(engine.close())


def ended(bench: Bench) -> Completion:
    """A completion that the model ended by itself."""
    for seed in range(200):
        [completion] = bench.generate(bench.request(seed=seed, max_tokens=128))
        if completion.finish_reason is FinishReason.STOP:
            return completion
    raise AssertionError("no completion ended within 128 tokens")


def test_ids_come_with_a_logprob_each(bench: Bench) -> None:
    [completion] = bench.generate(bench.request(max_tokens=3))
    assert 1 <= len(completion.token_ids) <= 3
    assert len(completion.logprobs) == len(completion.token_ids)
    assert all(logprob <= 0 for logprob in completion.logprobs)
    assert completion.seconds > 0


def test_the_end_token_is_the_last_sampled_token(bench: Bench) -> None:
    completion = ended(bench)
    assert completion.token_ids[-1] in bench.tokenizer.end_token_ids
    assert not set(completion.token_ids[:-1]) & set(bench.tokenizer.end_token_ids)
    assert len(completion.logprobs) == len(completion.token_ids)


def test_a_spent_budget_is_named(bench: Bench) -> None:
    completions = bench.generate(*(bench.request(seed=seed, max_tokens=1) for seed in range(4)))
    for completion in completions:
        stopped = completion.token_ids[-1] in bench.tokenizer.end_token_ids
        expected = FinishReason.STOP if stopped else FinishReason.LENGTH
        assert completion.finish_reason is expected
        assert len(completion.token_ids) == 1


def test_a_seed_gives_the_same_tokens_alone_and_among_others(bench: Bench) -> None:
    [alone] = bench.generate(bench.request(seed=5))
    crowd = bench.generate(*(bench.request(seed=seed) for seed in range(8)))
    assert crowd[5].token_ids == alone.token_ids
    assert crowd[5].logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def test_other_seeds_give_other_tokens(bench: Bench) -> None:
    crowd = bench.generate(*(bench.request(seed=seed) for seed in range(8)))
    assert len({completion.token_ids for completion in crowd}) > 1


def test_temperature_zero_takes_the_likeliest_token_whatever_the_seed(bench: Bench) -> None:
    first, second = bench.generate(
        *(bench.request(seed=seed, temperature=0, max_tokens=4) for seed in (1, 2))
    )
    assert first.token_ids == second.token_ids


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.3, 0.0])
def test_logprobs_are_of_the_distribution_that_is_sampled_from(
    bench: Bench, temperature: float
) -> None:
    request = bench.request(seed=3, temperature=temperature)
    [completion] = bench.generate(request)
    model = load_base(bench.model, torch.float32, "cpu")
    assert difference(model, request, completion) < 1e-4


def test_the_trainer_reads_what_the_engine_reports_at_every_temperature(
    bench: Bench, tmp_path: Path
) -> None:
    requests = [bench.request(seed=4, temperature=temperature) for temperature in (0.7, 1.0, 1.3)]
    completions = bench.generate(*requests)
    learner = TorchLearner(bench.model, tmp_path, LearnerConfig(device="cpu", dtype="float32"))
    for request, completion in zip(requests, completions, strict=True):
        [read] = learner.logprobs(bench.policy(), [scored(request, completion)])
        assert read == pytest.approx(completion.logprobs, abs=2e-4)


def test_behind_a_thought_that_was_closed_the_trainer_reads_what_the_engine_reports(
    bench: Bench, tmp_path: Path
) -> None:
    template = TEMPLATES / "qwen3_thinking_2507.jinja"
    tokenizer = AutoTokenizer.from_pretrained(bench.model)
    tokenizer.chat_template = template.read_text(encoding="utf-8")
    tokenizer.save_pretrained(tmp_path / "thinks")
    chat = ChatTokenizer(tmp_path / "thinks")
    runner = DirectRunner(
        engine=bench.engine,
        tokenizer=chat,
        policies={"solver": bench.policy()},
        sampling=Sampling(temperature=1.0, top_p=1.0, max_tokens=24),
        thought_tokens=4,
        longest=CONFIG.max_model_length,
        seed=1,
        sandbox=NoPython(),
        limits=limits_of(SandboxConfig()),
    )
    seen = Observation(agent="solver", messages=QUESTION)
    episode = make_episode(make_run(), make_problem())

    def generated(number: int) -> Action:
        return bench.runner.run(runner.generate(replace(episode, rollout_index=number), seen))

    action = next(found for number in range(50) if (found := generated(number)).given is not None)
    assert action.given is not None
    first, end = action.given
    assert (first, action.token_ids[first:end]) == (4, chat.close_of_thought())
    assert end < len(action.token_ids)
    learner = TorchLearner(bench.model, tmp_path, LearnerConfig(device="cpu", dtype="float32"))
    completion = Completion(
        token_ids=action.token_ids,
        logprobs=action.logprobs,
        finish_reason=action.finish_reason,
        seconds=action.seconds,
    )
    request = replace(bench.request(), prompt_token_ids=action.prompt_token_ids)
    [read] = learner.logprobs(bench.policy(), [scored(request, completion)])
    sampled = chosen(action.logprobs, action.given)
    assert chosen(read, action.given) == pytest.approx(sampled, abs=2e-4)
    # The policy itself would not have written them, which no importance ratio may hear of.
    assert min(read[first:end]) < -1


def test_agents_are_served_their_own_weights_and_loading_needs_no_restart(bench: Bench) -> None:
    trained = bench.policy("verifier", step=1)
    before = serving_processes()
    bench.load(trained)
    requests = (bench.request(seed=9), bench.request(trained, seed=9))
    base, adapted = bench.generate(*requests)
    plain = load_base(bench.model, torch.float32, "cpu")
    assert difference(plain, requests[0], base) < 1e-4
    assert difference(plain, requests[1], adapted) > 1e-2
    merged = PeftModel.from_pretrained(plain, str(bench.adapter)).merge_and_unload()
    assert difference(merged, requests[1], adapted) < 1e-4
    assert serving_processes() == before
    bench.load(bench.policy("verifier"))
    [again] = bench.generate(bench.request(bench.policy("verifier"), seed=9))
    assert again.token_ids == base.token_ids
    assert again.logprobs == pytest.approx(base.logprobs, abs=1e-4)


def test_another_version_than_the_loaded_one_is_refused(bench: Bench) -> None:
    with pytest.raises(EngineError, match="asked for at step 1 and the engine serves step 0"):
        bench.generate(bench.request(bench.policy(step=1)))


@pytest.mark.parametrize("what", ["lost", "cut short"])
def test_an_adapter_that_cannot_be_read_is_named_and_the_old_policy_stays(
    bench: Bench, tmp_path: Path, what: str
) -> None:
    adapter = tmp_path / what
    if what == "cut short":
        weights = shutil.copytree(bench.adapter, adapter) / "adapter_model.safetensors"
        os.truncate(weights, weights.stat().st_size // 2)
    lost = replace(bench.policy(step=1), adapter_uri=str(adapter))
    with pytest.raises(EngineError, match=what):
        bench.load(lost)
    assert bench.generate(bench.request())[0].token_ids


def test_a_prompt_too_long_for_an_answer_is_refused(bench: Bench) -> None:
    request = replace(bench.request(), prompt_token_ids=(5,) * 512)
    with pytest.raises(EngineError, match=r"leaves no room .* engine\.max_model_length"):
        bench.generate(request)


def test_requests_survive_the_death_of_the_engine(bench: Bench) -> None:
    if bench.name != "vllm":
        assert serving_processes() == [], "an engine in this process cannot die without it"
        return
    trained = bench.policy("verifier", step=1)
    bench.load(trained)
    requests = [bench.request(trained, seed=seed, max_tokens=64) for seed in range(6)]
    requests += [bench.request(seed=seed, max_tokens=64) for seed in range(6)]
    undisturbed = bench.generate(*requests)
    before = serving_processes()
    for server in before:
        # None may be through with its requests when it is killed, however fast the machine is.
        os.kill(server.engine_core, signal.SIGSTOP)

    async def disturbed() -> list[Completion]:
        under_way = asyncio.gather(*map(bench.engine.generate, requests))
        await asyncio.sleep(0.5)
        # One server loses its engine and answers HTTP 500; the other is gone altogether.
        os.kill(before[0].engine_core, signal.SIGKILL)
        os.kill(before[1].api_server, signal.SIGKILL)
        return await under_way

    completions = bench.runner.run(disturbed())
    assert [completion.token_ids for completion in completions] == [
        completion.token_ids for completion in undisturbed
    ]
    after = serving_processes()
    assert len(after) == len(before)
    assert not set(after) & set(before)
    bench.load(bench.policy("verifier"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcesses:
    api_server: int
    engine_core: int


def serving_processes() -> list[ServerProcesses]:
    """The vLLM servers below this process."""
    return [
        ServerProcesses(api_server=process.ppid(), engine_core=process.pid)
        for process in psutil.Process().children(recursive=True)
        if "VLLM::EngineCore" in process.cmdline()
    ]


def scored(request: GenerationRequest, completion: Completion) -> ScoredAction:
    """The completion as an action that a learner reads."""
    return ScoredAction(
        action_id=content_id("action", request.seed),
        agent="solver",
        episode_id=content_id("episode", request.seed),
        problem_id=content_id("problem", request.seed),
        rollout_index=0,
        turn_index=0,
        policy_step=0,
        prompt_token_ids=request.prompt_token_ids,
        token_ids=completion.token_ids,
        logprobs=completion.logprobs,
        truncated=False,
        score=None,
        temperature=request.sampling.temperature,
    )


def difference(model: torch.nn.Module, request: GenerationRequest, completion: Completion) -> float:
    """Mean absolute difference between the engine's log-probs and a plain forward pass."""
    prompt, sampled = request.prompt_token_ids, completion.token_ids
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + sampled])).logits[0, len(prompt) - 1 : -1]
    logprobs = (logits / (request.sampling.temperature or 1.0)).log_softmax(-1)
    expected = logprobs.gather(1, torch.tensor(sampled)[:, None])[:, 0]
    return float((expected - torch.tensor(completion.logprobs)).abs().mean())
