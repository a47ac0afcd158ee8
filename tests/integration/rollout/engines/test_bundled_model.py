"""The model that comes with the package: converted once, with its own template, and able to add."""

import asyncio
from pathlib import Path

from transformers import AutoTokenizer

from mappa_core.core.records.episodes import GenerationRequest, Message, Sampling
from mappa_core.models.resolve import BUNDLED, resolve_model
from mappa_core.models.tokenizer import ChatTokenizer
from mappa_core.rollout.config import EngineConfig
from mappa_core.rollout.engines.transformers.engine import TransformersEngine
from tests.builders import make_policy, make_run

QUESTION = (Message(role="user", content="What is 7 + 5?"),)


def test_it_is_converted_once_and_leaves_nothing_beside(real_model: Path) -> None:
    weights = real_model / "model.safetensors"
    converted_at = weights.stat().st_mtime_ns
    assert resolve_model(BUNDLED, real_model.parent) == real_model
    assert weights.stat().st_mtime_ns == converted_at
    assert list(real_model.parent.iterdir()) == [real_model]


def test_its_prompts_are_those_of_apply_chat_template(real_model: Path) -> None:
    tokenizer = ChatTokenizer(real_model)
    plain = AutoTokenizer.from_pretrained(real_model)
    messages = (
        *QUESTION,
        Message(role="assistant", content="\n\n ```python\nprint(7 + 5)\n```\n"),
        Message(role="user", content="ÿ€🙂 It printed:\n\n\n12 "),
    )
    chat = [{"role": message.role, "content": message.content} for message in messages]
    expected = plain.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)
    assert list(tokenizer.render(messages)) == expected["input_ids"]
    assert tokenizer.end_token_ids == (0, 2)


def test_it_answers(real_model: Path) -> None:
    tokenizer = ChatTokenizer(real_model)
    policy = make_policy(make_run())
    request = GenerationRequest(
        policy=policy,
        prompt_token_ids=tokenizer.render(QUESTION),
        sampling=Sampling(temperature=0.0, top_p=1.0, max_tokens=24),
        seed=0,
    )

    async def answer() -> str:
        engine = TransformersEngine(
            real_model, EngineConfig(device="cpu", dtype="float32"), tokenizer.end_token_ids
        )
        await engine.start()
        await engine.load(policy)
        completion = await engine.generate(request)
        await engine.close()
        return tokenizer.decode(completion.token_ids)

    assert "12" in asyncio.run(answer())
