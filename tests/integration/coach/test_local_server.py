"""A local coach on the real vLLM server, with a tiny random model: every reply is in its form."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path

import jsonschema
import pytest

from mappa_core.app.checks import coached_team
from mappa_core.coach.config import CoachConfig
from mappa_core.coach.llm_coach import LlmCoach
from mappa_core.coach.opening import open_coaches, start_coaches
from mappa_core.coach.replies import bounded_schema
from mappa_core.core.settings import Settings
from mappa_core.rollout.teams import load_team
from tests.tiny_model import save_tiny_judge
from tests.unit.coach.cases import make_case

CHARACTERS, TOKENS = 60, 400


def coach_config(model: Path) -> CoachConfig:
    one = {
        "backend": "local",
        "model": str(model),
        "max_output_tokens": TOKENS,
        "temperature": 1.0,
        "attempt_seconds": 300,
        "server": {
            "calls": 4,
            "rationale_characters": CHARACTERS,
            "kv_cache_gib": 0.25,
            "max_model_length": 16384,
            "device": "cpu",
        },
    }
    second = {name: value for name, value in one.items() if name != "server"}
    return CoachConfig.model_validate(one | {"second": second | {"share": 1.0}})


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_coaches_share_a_server_whose_replies_end_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAPPA_HOME", str(tmp_path / "home"))
    config = coach_config(save_tiny_judge(tmp_path / "judge"))
    schema = bounded_schema(CHARACTERS, tokens=TOKENS, correction=False)

    async def body() -> None:
        async with AsyncExitStack() as stack:
            team = coached_team(load_team("mathchat", "small-1"))
            first, second = open_coaches(config, Settings(), team, stack)
            assert isinstance(first, LlmCoach)
            assert isinstance(second, LlmCoach)
            await start_coaches(first, second)
            logs = list((tmp_path / "home" / "logs").glob("vllm-coach*.log"))
            assert len(logs) == 1
            cases = [make_case(f"Plan {number}.") for number in range(6)]
            scores = await asyncio.gather(
                *(coach.score(case) for coach in (first, second) for case in cases)
            )
        for score in scores:
            assert score.raw_reply is not None
            # The grammar keeps no control characters out of a bounded string.
            jsonschema.validate(json.loads(score.raw_reply, strict=False), schema)
            assert score.reply_tokens is not None
            assert score.reply_tokens < score.attempts * TOKENS
        # The rubric was read before the first case came.
        assert all((score.cached_tokens or 0) > 1000 for score in scores)

    asyncio.run(body())
