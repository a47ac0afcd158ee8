"""A local coach on the real vLLM server, on a node of a cluster, and on another when that dies."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from mappa_core.app.checks import coached_team
from mappa_core.app.cluster import open_on_ray
from mappa_core.app.config import TrainConfig
from mappa_core.cluster.local_nodes import LocalNodes, local_nodes
from mappa_core.coach.opening import open_coaches, start_coaches
from mappa_core.core.records.scores import CoachScore, Unscored
from mappa_core.core.settings import Settings
from mappa_core.rollout.teams import load_team
from tests.tiny_model import save_tiny_judge
from tests.unit.coach.cases import make_case

pytest.importorskip("vllm", reason="vLLM is not installed here")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
COACH = {
    "backend": "local",
    "max_output_tokens": 400,
    "attempt_seconds": 300,
    "server": {"calls": 4, "rationale_characters": 60, "kv_cache_gib": 0.25, "start_seconds": 900},
}
COACHES_BUNDLE = 1
"""A server of the engine has the first."""
CASES = 6


def test_a_local_coach_is_served_from_a_node_and_from_another_one_when_that_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of the nodes, which are started after it.
    monkeypatch.setenv("MAPPA_HOME", str(tmp_path / "home"))
    judge = COACH | {"model": str(save_tiny_judge(tmp_path / "judge"))}

    async def body(cluster: LocalNodes) -> tuple[list[CoachScore | Unscored], ...]:
        config = TrainConfig.model_validate(
            {"coach": judge, "cluster": {"backend": "ray", "address": cluster.address}}
        )
        async with AsyncExitStack() as stack:
            team = coached_team(load_team("mathchat", "small-1"))
            on_ray = await open_on_ray(config, len(team.agents), stack)
            assert on_ray is not None
            given = (config.coach, Settings(), team, stack, on_ray.coaches)
            coach, _ = open_coaches(*given)
            await start_coaches(coach)
            rounds: list[list[CoachScore | Unscored]] = []
            for name in ("Plan", "Scheme"):
                cases = [make_case(f"{name} {number}.") for number in range(CASES)]
                asked = asyncio.gather(*map(coach.score, cases))
                if rounds:
                    await asyncio.sleep(0.5)
                    node = await asyncio.to_thread(cluster.node_of, COACHES_BUNDLE)
                    await asyncio.to_thread(cluster.kill, node)
                rounds.append(list(await asked))
        return tuple(rounds)

    with local_nodes(2) as cluster:
        first, after = asyncio.run(body(cluster))
    # What a random model writes may be no score; its reply was had all the same.
    assert all(score.raw_reply for score in (*first, *after))
    lost = [each for each in after if isinstance(each, Unscored) and each.reason != "unparsable"]
    assert lost == []
