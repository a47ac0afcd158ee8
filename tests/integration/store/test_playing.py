"""What ends an episode for good, and what only ends the attempt to play it."""

import asyncio

import pytest

from mappa_core.core.errors import (
    DiskFull,
    EngineError,
    OutsideError,
    SandboxError,
    StoreError,
    ToolServerError,
    WorkspaceError,
)
from mappa_core.core.records.episodes import Action, Episode, Observation, StopReason
from mappa_core.core.records.tools import ToolRequest, ToolResult
from mappa_core.rollout.episode import EpisodeRecords, play_episode
from mappa_core.store.store import Store
from tests.builders import (
    make_episode,
    make_policy,
    make_problem,
    make_run,
    make_tool_result,
    make_turn,
)
from tests.e2e.toy import Monologue

RUN = make_run()
POLICY = make_policy(RUN, "speaker")
EPISODE = make_episode(RUN, make_problem())


class Programmer(Monologue):
    """What its agent says is a program."""

    def code_in(self, agent: str, text: str) -> str:
        return text


def play(store: Store, failing: str = "", error: OutsideError | None = None) -> Episode:
    """Play the episode; the call `failing` raises `error`."""

    def meet(call: str) -> None:
        if call == failing and error is not None:
            raise error

    class Failing:
        async def generate(self, episode: Episode, observation: Observation) -> Action:
            meet("generate")
            return make_turn(POLICY, text="1 + 1").action

        async def execute(self, episode: Episode, request: ToolRequest) -> ToolResult:
            meet("execute")
            return make_tool_result()

    async def played() -> Episode:
        records = EpisodeRecords(store)
        return await play_episode(EPISODE, team=Programmer(), records=records, runner=Failing())

    store.runs.add_run(RUN)
    store.policies.add_policy_version(POLICY)
    store.episodes.add_problems([EPISODE.problem])
    with pytest.MonkeyPatch.context() as patch:
        if hasattr(store.episodes, failing):
            patch.setattr(store.episodes, failing, lambda *_: meet(failing))
        return asyncio.run(played())


@pytest.mark.parametrize(
    ("failing", "error"),
    [
        ("generate", EngineError("it died")),
        ("execute", SandboxError("it died")),
        ("execute", ToolServerError("it died")),
        ("execute", WorkspaceError("it died")),
    ],
)
def test_a_failure_outside_ends_the_episode(
    store: Store, failing: str, error: OutsideError
) -> None:
    for played in (
        play(store, failing, error),
        store.episodes.get_episode(str(EPISODE.id)),
        play(store),
    ):
        assert (played.stop_reason, played.error) == (StopReason.FAILED, "it died")


@pytest.mark.parametrize(
    ("failing", "error"),
    [
        ("add_turns", StoreError("Postgres refused")),
        ("add_turns", DiskFull("Postgres has no space left")),
        ("execute", DiskFull("no space left for the workspace")),
        ("close_episodes", StoreError("Postgres refused")),
    ],
)
def test_an_episode_that_cannot_be_written_is_played_again(
    store: Store, failing: str, error: OutsideError
) -> None:
    with pytest.raises(type(error), match=str(error)):
        play(store, failing, error)
    assert store.episodes.get_episode(str(EPISODE.id)).stop_reason is None
    assert play(store).stop_reason is StopReason.ANSWERED
