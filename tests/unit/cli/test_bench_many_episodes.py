"""The bench of many episodes counts a core's time by request, and its stub says what vLLM would."""

import asyncio

import pytest

from mappa_cli.benches.engine_stub import answer, serving
from mappa_cli.benches.many_episodes import Options, Round, bench_many_episodes, figures
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import FinishReason
from mappa_core.core.settings import Settings
from mappa_core.models.serving.client import VllmClient
from mappa_core.rollout.engines.vllm.completions import completed

BODY: dict[str, object] = {"model": "m", "prompt": [1, 2], "max_tokens": 100, "stream": True}


def test_an_answer_is_read_as_vllms_is() -> None:
    async def asked(most: int) -> tuple[tuple[int, ...], FinishReason, float]:
        async with serving("m", [*range(70)], latency=0.03) as url:
            client = VllmClient(url)
            client.connect(url)
            done = await completed(client, BODY | {"max_tokens": most})
            await client.disconnect()
        return done.token_ids, done.finish_reason, done.seconds

    tokens, reason, seconds = asyncio.run(asked(100))
    assert (tokens, reason) == (tuple(range(70)), FinishReason.STOP)
    assert seconds >= 0.03
    assert asyncio.run(asked(40))[:2] == (tuple(range(40)), FinishReason.LENGTH)


def test_it_comes_in_parts_as_our_servers_stream() -> None:
    assert len(answer([*range(70)], 100)) == 4


def test_the_cost_is_a_cores_time_at_a_hundred_requests_a_second() -> None:
    first = Round(
        requests=1000, failed=0, unscored=2, seconds=4.0, core_seconds=1.0, peak_bytes=100 * 2**20
    )
    last = Round(
        requests=1000, failed=1, unscored=1, seconds=4.0, core_seconds=2.0, peak_bytes=110 * 2**20
    )
    waits = Options(episodes=4, phase="held_out")
    found = {each.name: each for each in figures(waits, [first, last])}
    cost = found["a core for 100 requests/s"]
    assert (cost.value, cost.aim, cost.met) == (pytest.approx(0.15), "<= 0.2", True)
    grown = found["the same over the first round's"]
    assert (grown.value, grown.met) == (pytest.approx(1.1), False)
    assert found["rate reached"].value == 250
    assert found["without a score"].value == 3
    # What the rules compute is no part of the aim.
    scored = figures(Options(episodes=4, phase="train"), [first, last])
    assert [each.met for each in scored if "core" in each.name and "100" in each.name] == [None]


@pytest.mark.parametrize("wrong", ["episodes=10", "episodes=many", "phase=other", "rounds=3"])
def test_what_it_cannot_play_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="episodes"):
        bench_many_episodes([wrong], Settings())
