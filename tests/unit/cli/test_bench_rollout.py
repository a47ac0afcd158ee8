"""The rollout's bench counts what each of the two sampled in its own time."""

import ast
import sys
from pathlib import Path

import pytest

from mappa_cli.benches.rollout import Generation, Played, compared, faster
from mappa_core.core.records.episodes import Completion, FinishReason, GenerationRequest, Sampling
from mappa_core.rollout.engines.vllm import plain_script
from mappa_core.rollout.engines.vllm.plain import PlainBatch
from tests.builders import make_policy, make_run


def generation(agent: str, *tokens: int) -> Generation:
    request = GenerationRequest(
        policy=make_policy(make_run(), agent),
        prompt_token_ids=(1, 2),
        sampling=Sampling(temperature=1.0, top_p=1.0, max_tokens=8),
        seed=1,
    )
    return request, Completion(
        token_ids=tokens,
        logprobs=(-1.0,) * len(tokens),
        finish_reason=FinishReason.STOP,
        seconds=0.1,
    )


def test_the_ratio_is_of_tokens_over_each_ones_own_time() -> None:
    batches = ([generation("a", 5, 6, 7), generation("a", 8)], [generation("b", 9, 9)])
    played = Played(episodes=2, seconds=3.0, batches=batches)
    # One token fewer, in 1.5 s and 0.5 s.
    plain = (
        PlainBatch(seconds=1.5, tokens=((5, 6), (8,))),
        PlainBatch(seconds=0.5, tokens=((9, 9),)),
    )
    figures = {each.name: each for each in compared(played, plain)}
    assert figures["whole rollout"].value == 2.0
    assert figures["vLLM's own Python API, same requests"].value == 2.5
    ratio = figures["whole over vLLM's own"]
    assert (ratio.value, ratio.aim, ratio.met) == (pytest.approx(0.8), ">= 0.93", False)
    same = figures["requests that both answer with the same tokens"]
    assert same.value == pytest.approx(2 / 3)


def test_engines_are_compared_by_what_each_sampled_in_its_own_time() -> None:
    plain = (
        PlainBatch(seconds=1.0, tokens=((1, 2), (3,))),
        PlainBatch(seconds=1.0, tokens=((4,),)),
    )
    engine = (PlainBatch(seconds=2.0, tokens=((1, 2, 3), (3, 4))),)
    in_float32 = (PlainBatch(seconds=4.0, tokens=((1, 2, 3, 4), (5,))),)
    alone, exact, types, ratio = faster(plain, engine, in_float32, "torch.bfloat16")
    assert (alone.value, alone.unit) == (2.5, "tokens/s")
    assert (exact.value, exact.unit) == (1.25, "tokens/s")
    assert types.name == "vLLM's own in bfloat16 over float32"
    assert (types.value, types.aim) == (pytest.approx(1.6), None)
    assert ratio.name == "our engine over vLLM's own in float32"
    assert (ratio.value, ratio.aim, ratio.met) == (pytest.approx(2.0), ">= 1.6", True)


def test_an_answer_that_is_missing_is_no_comparison() -> None:
    played = Played(episodes=1, seconds=1.0, batches=([generation("a", 5)],))
    with pytest.raises(ValueError, match="longer"):
        compared(played, (PlainBatch(seconds=1.0, tokens=((5,), (6,))),))


def test_what_it_is_compared_with_is_nothing_of_ours() -> None:
    script = ast.parse(Path(plain_script.__file__).read_text())
    imported = {
        name.partition(".")[0]
        for node in ast.walk(script)
        for name in (
            [each.name for each in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert "vllm" in imported
    assert imported - {"vllm"} <= sys.stdlib_module_names
