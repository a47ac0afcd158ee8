"""Models that think: what their templates open, what a reply shows, what later turns are told."""

import asyncio
import inspect
import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from pydantic import ValidationError
from transformers import AutoTokenizer, PreTrainedTokenizerBase

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
from mappa_core.core.text import THOUGHT_END, last_boxed, visible
from mappa_core.models.tokenizer import ChatTokenizer
from mappa_core.rollout.actions import DirectRunner, limits_of, sampling_of
from mappa_core.rollout.config import RolloutConfig, SandboxConfig
from mappa_core.rollout.teams import load_team
from tests.builders import make_episode, make_policy, make_problem, make_run, make_turn
from tests.fakes.acting import NoPython
from tests.tiny_model import CHAT_TEMPLATE, save_tiny_model

TEMPLATES = Path(__file__).with_name("chat_templates")
OPENS = {"qwen3_thinking_2507": "<think>\n", "deepseek_r1_distill": "<think>\n", "qwen3": ""}
"""What each template leaves open at the end of a prompt."""
PROGRAM = "```python\nprint(7 + 5)\n```"
SOLVER, EXECUTOR = "problem_solver", "code_executor"
TEAM = load_team("mathchat", "small-1")
RUN = make_run()
QUESTION = Message(role="user", content="What is 7 + 5?")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


def with_template(model: Path, template: str, directory: Path) -> ChatTokenizer:
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(directory)
    return ChatTokenizer(directory)


@pytest.fixture(params=OPENS)
def named(request: pytest.FixtureRequest, model: Path, tmp_path: Path) -> tuple[str, ChatTokenizer]:
    template = (TEMPLATES / f"{request.param}.jinja").read_text(encoding="utf-8")
    return request.param, with_template(model, template, tmp_path)


def test_the_prompt_says_whether_a_thought_is_open(named: tuple[str, ChatTokenizer]) -> None:
    name, chat = named
    assert chat.opened_thought([QUESTION]) == OPENS[name]
    assert chat.decode(chat.render([QUESTION])).endswith(OPENS[name])


def test_templates_render_as_the_published_ones(model: Path) -> None:
    """What the files at the hub make of text messages was recorded; ours are written anew."""
    cases = json.loads((TEMPLATES / "published.json").read_text(encoding="utf-8"))
    assert {case["template"] for case in cases} == set(OPENS)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.bos_token = "<bos>"
    for case in cases:
        template = (TEMPLATES / f"{case['template']}.jinja").read_text(encoding="utf-8")
        asked = case["messages"][-1]["role"] != "assistant"
        rendered = tokenizer.apply_chat_template(
            case["messages"], chat_template=template, tokenize=False, add_generation_prompt=asked
        )
        assert rendered == case["text"]


def test_a_template_without_thoughts_opens_none(model: Path, tmp_path: Path) -> None:
    assert with_template(model, CHAT_TEMPLATE, tmp_path).opened_thought([QUESTION]) == ""


def test_thinking_that_is_switched_off_is_not_open(model: Path, tmp_path: Path) -> None:
    template = (TEMPLATES / "qwen3.jinja").read_text(encoding="utf-8")
    with_template(model, template, tmp_path)
    config = RolloutConfig(chat_template_kwargs={"enable_thinking": False})
    chat = ChatTokenizer(tmp_path, config.chat_template_kwargs)
    assert chat.opened_thought([QUESTION]) == ""
    # The switch of Qwen3 hands a thought that is over.
    closed = chat.decode(chat.render([QUESTION]))
    assert closed.endswith("<think>\n\n</think>\n\n")


def test_no_argument_of_transformers_own_passes_for_a_variable_of_the_template() -> None:
    taken = inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters
    for name in taken.keys() - {"self", "kwargs"}:
        with pytest.raises(ValidationError, match=f"{name} is not a variable of the chat template"):
            RolloutConfig(chat_template_kwargs={name: "x"})


def test_a_tag_in_a_message_opens_nothing(model: Path, tmp_path: Path) -> None:
    chat = with_template(model, CHAT_TEMPLATE, tmp_path)
    assert chat.opened_thought([replace(QUESTION, content="What does <think> mean?")]) == ""


def test_tags_that_a_model_makes_special_stay_in_the_text(model: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    tokenizer.save_pretrained(tmp_path)
    ids = tokenizer.encode("<think>hm</think>so<|im_end|>", add_special_tokens=False)
    assert ChatTokenizer(tmp_path).decode(ids) == "<think>hm</think>so"


@dataclass
class Says:
    """An engine whose model says one thing, as far as it is let, or goes on with another."""

    token_ids: tuple[int, ...]
    reason: FinishReason
    then: tuple[int, ...] = ()
    asked: list[GenerationRequest] = field(default_factory=list)

    async def start(self) -> None: ...
    async def load(self, policy: PolicyVersion) -> None: ...
    async def close(self) -> None: ...

    async def generate(self, request: GenerationRequest) -> Completion:
        said = self.then if self.asked else self.token_ids
        self.asked.append(request)
        cut = len(said) > request.sampling.max_tokens
        said = said[: request.sampling.max_tokens]
        return Completion(
            token_ids=said,
            logprobs=(-1.0,) * len(said),
            finish_reason=FinishReason.LENGTH if cut else self.reason,
            seconds=0.1,
        )


def acted(
    model: Path,
    chat: ChatTokenizer,
    words: str,
    reason: FinishReason,
    config: RolloutConfig | None = None,
) -> tuple[Action, Sampling]:
    """The action of a Code Executor whose model says `words`, and how it was sampled."""
    action, (asked, *_) = played(
        model, chat, words, reason, config or RolloutConfig(max_tokens=999)
    )
    return action, asked.sampling


def ids_of(model: Path, words: str) -> tuple[int, ...]:
    return tuple(AutoTokenizer.from_pretrained(model).encode(words, add_special_tokens=False))


def played(
    model: Path,
    chat: ChatTokenizer,
    words: str,
    reason: FinishReason,
    config: RolloutConfig,
    *,
    then: str = "",
    longest: int = 2**31,
) -> tuple[Action, list[GenerationRequest]]:
    """The action of a Code Executor whose model says `words`, and what the engine was asked for."""
    engine = Says(ids_of(model, words), reason, ids_of(model, then))
    runner = DirectRunner(
        engine=engine,
        tokenizer=chat,
        policies={EXECUTOR: make_policy(RUN, EXECUTOR)},
        sampling=sampling_of(config, "train", 0.0),
        agent_tokens=config.agent_tokens,
        thought_tokens=config.thought_tokens,
        agent_thought_tokens=config.agent_thought_tokens,
        longest=longest,
        seed=1,
        sandbox=NoPython(),
        limits=limits_of(SandboxConfig()),
    )
    seen = Observation(agent=EXECUTOR, messages=(QUESTION,))
    episode = make_episode(RUN, make_problem())
    action = asyncio.run(runner.generate(episode, seen))
    # By it the replica is chosen that has read the problem's prompt.
    assert {each.problem_id for each in engine.asked} == {episode.problem.id}
    return action, engine.asked


def test_a_reply_cut_inside_a_thought_says_runs_and_answers_nothing(
    model: Path, named: tuple[str, ChatTokenizer]
) -> None:
    name, chat = named
    begun = "" if OPENS[name] else "<think>\n"
    words = f"{begun}Perhaps\n{PROGRAM}\nso \\boxed{{12}}, but"
    action, _ = acted(model, chat, words, FinishReason.LENGTH)
    assert action.finish_reason == "length_in_thought"
    assert action.text == f"<think>\n{words.removeprefix(begun)}"
    assert visible(action.text) == ""
    assert last_boxed(action.text) is None
    assert TEAM.code_in(EXECUTOR, action.text) is None


def test_a_reply_after_its_thought_counts_and_may_be_cut(
    model: Path, named: tuple[str, ChatTokenizer]
) -> None:
    name, chat = named
    begun = "" if OPENS[name] else "<think>\n"
    words = f"{begun}Perhaps \\boxed{{1}}</think>\n{PROGRAM}\nso \\boxed{{12}}, but"
    action, _ = acted(model, chat, words, FinishReason.LENGTH)
    assert action.finish_reason is FinishReason.LENGTH
    assert last_boxed(action.text) == "12"
    assert TEAM.code_in(EXECUTOR, action.text) == "print(7 + 5)"


def test_a_model_may_open_the_thought_once_more(
    model: Path, named: tuple[str, ChatTokenizer]
) -> None:
    action, _ = acted(model, named[1], "<think>hm</think>so", FinishReason.STOP)
    assert visible(action.text) == "so"


def test_without_thoughts_a_reply_is_cut_and_counts(model: Path, tmp_path: Path) -> None:
    chat = with_template(model, CHAT_TEMPLATE, tmp_path)
    action, _ = acted(model, chat, r"so \boxed{12}, but", FinishReason.LENGTH)
    assert (action.finish_reason, action.text) == (FinishReason.LENGTH, r"so \boxed{12}, but")


def test_agents_may_have_limits_of_their_own(model: Path, tmp_path: Path) -> None:
    chat = with_template(model, CHAT_TEMPLATE, tmp_path)
    config = RolloutConfig(max_tokens=7, agent_tokens={"verifier": 9})
    assert acted(model, chat, "so", FinishReason.STOP, config)[1].max_tokens == 7
    config = RolloutConfig(max_tokens=7, agent_tokens={EXECUTOR: 9})
    assert acted(model, chat, "so", FinishReason.STOP, config)[1].max_tokens == 9


THOUGHT = "Perhaps it is 11, or 12, or 13, and so on without an end"
LIMIT, MOST = 12, 400
LIMITED = RolloutConfig(max_tokens=MOST, thought_tokens=LIMIT)


def test_a_thought_at_its_limit_is_closed_and_the_answer_is_sampled_behind_it(
    model: Path, named: tuple[str, ChatTokenizer]
) -> None:
    name, chat = named
    words = THOUGHT if OPENS[name] else f"<think>\n{THOUGHT}"
    answer = f"{PROGRAM}\nso \\boxed{{12}}"
    action, (first, second) = played(model, chat, words, FinishReason.STOP, LIMITED, then=answer)
    begun, closing = ids_of(model, words)[:LIMIT], chat.close_of_thought()
    assert chat.decode(closing) == THOUGHT_END
    assert action.token_ids == (*begun, *closing, *ids_of(model, answer))
    assert action.given == (LIMIT, LIMIT + len(closing))
    # What was sampled has the sampler's log-probs; what was given is certain.
    assert chosen(action.logprobs, action.given) == [-1.0] * (
        len(begun) + len(ids_of(model, answer))
    )
    assert sum(action.logprobs) == -float(len(chosen(action.token_ids, action.given)))
    assert second.prompt_token_ids == (*first.prompt_token_ids, *begun, *closing)
    assert second.sampling.max_tokens == MOST - LIMIT - len(closing)
    assert second.seed != first.seed
    assert action.finish_reason is FinishReason.STOP
    assert visible(action.text) == answer
    assert TEAM.code_in(EXECUTOR, action.text) == "print(7 + 5)"
    assert last_boxed(action.text) == "12"


def test_a_thought_may_have_the_limit_of_its_agent(
    model: Path, named: tuple[str, ChatTokenizer]
) -> None:
    name, chat = named
    words = THOUGHT if OPENS[name] else f"<think>\n{THOUGHT}"
    for agent, limit, asked_for in ((EXECUTOR, LIMIT, 2), ("verifier", LIMIT, 1)):
        own = RolloutConfig(max_tokens=MOST, agent_thought_tokens={agent: limit})
        action, asked = played(model, chat, words, FinishReason.STOP, own, then="so")
        assert len(asked) == asked_for
        assert (action.given is not None) == (asked_for == 2)


def test_a_thought_that_names_the_tag_is_closed_as_well(
    model: Path, named: tuple[str, ChatTokenizer]
) -> None:
    name, chat = named
    words = f"{'' if OPENS[name] else '<think>'}So I <think> of 11, then"
    limit = len(ids_of(model, words)) - 1
    limited = LIMITED.model_copy(update={"thought_tokens": limit})
    then = "so \\boxed{12}"
    action, _ = played(model, chat, words, FinishReason.STOP, limited, then=then)
    assert action.given == (limit, limit + 2 * len(chat.close_of_thought()))
    assert visible(action.text) == then


def test_a_reply_that_thinks_no_longer_goes_on_as_if_nothing_had_been(
    model: Path, named: tuple[str, ChatTokenizer]
) -> None:
    name, chat = named
    words = f"{'' if OPENS[name] else '<think>'}h</think>It is \\boxed{{12}}, is it not?"
    begun = ids_of(model, words)
    limited = LIMITED.model_copy(update={"thought_tokens": len(begun) - 5})
    rest = chat.decode(begun[-5:])
    action, asked = played(model, chat, words, FinishReason.STOP, limited, then=rest)
    assert (action.token_ids, action.given, len(asked)) == (begun, None, 2)
    # A short one is asked for once.
    action, asked = played(model, chat, "</think>so", FinishReason.STOP, LIMITED)
    assert (action.given, len(asked)) == (None, 1)


def test_without_room_behind_it_a_thought_stays_cut(
    model: Path, named: tuple[str, ChatTokenizer]
) -> None:
    name, chat = named
    words = THOUGHT if OPENS[name] else f"<think>\n{THOUGHT}"
    for config, longest in ((LIMITED, len(chat.render([QUESTION])) + LIMIT), (TIGHT, 2**31)):
        action, asked = played(model, chat, words, FinishReason.STOP, config, longest=longest)
        assert action.finish_reason is FinishReason.LENGTH_IN_THOUGHT
        assert (action.given, len(asked)) == (None, 1)
        assert visible(action.text) == ""


TIGHT = RolloutConfig(max_tokens=LIMIT + 1, thought_tokens=LIMIT)


def test_no_later_prompt_holds_an_earlier_thought(named: tuple[str, ChatTokenizer]) -> None:
    _, chat = named
    text = f"<think>\nsecretly</think>\n{PROGRAM}"
    turn = replace(make_turn(make_policy(RUN, EXECUTOR), text=text), agent=EXECUTOR)
    plan = replace(make_turn(make_policy(RUN, "problem_solver"), text="Plan"), agent=SOLVER)
    episode = make_episode(RUN, make_problem()).with_turn(plan).with_turn(turn)
    observation = TEAM.next_observation(episode)
    assert observation is not None
    assert observation.agent == EXECUTOR
    prompt = chat.decode(chat.render(observation.messages))
    assert "secretly" not in prompt
    assert PROGRAM in prompt
