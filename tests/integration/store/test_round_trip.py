"""What goes into the store comes out of it, for any record hypothesis can think of."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa_core.adapters.store.store import PostgresStore
from mappa_core.domain.records import (
    Action,
    Artifact,
    CoachScore,
    Episode,
    FinishReason,
    Message,
    Observation,
    RejectedFile,
    ToolResult,
    ToolStatus,
    Turn,
    Unscored,
)
from tests.builders import make_episode, make_policy, make_problem, make_run, make_score, make_turn
from tests.conftest import NewDatabase

RUN = make_run()
POLICY = make_policy(RUN)
ROLLOUTS = count()

TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
SECONDS = st.floats(0, 1e6)
TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
BYTES = st.integers(0, 2**63 - 1)
MESSAGES = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant"]),
    content=TEXT,
    token_ids=st.none() | TOKENS,
)
TOOL_RESULTS = st.builds(
    ToolResult,
    code=TEXT,
    status=st.sampled_from(ToolStatus),
    exit_code=st.none() | st.integers(-64, 255),
    stdout=TEXT,
    stderr=TEXT,
    stdout_omitted_bytes=BYTES,
    stderr_omitted_bytes=BYTES,
    seconds=SECONDS,
    cpu_seconds=st.none() | SECONDS,
    peak_memory_bytes=st.none() | BYTES,
    tier=TEXT,
    # One content has one size, as a hash of it does.
    written=st.lists(
        st.builds(Artifact, name=TEXT, size_bytes=st.just(7), sha256=TEXT), max_size=3
    ).map(tuple),
    rejected=st.lists(st.builds(RejectedFile, name=TEXT, reason=TEXT), max_size=2).map(tuple),
)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    token_ids = draw(TOKENS)
    logprob = st.floats(max_value=0, allow_nan=False, width=32)
    return Turn(
        index=0,
        agent=POLICY.agent,
        observation=Observation(
            agent=POLICY.agent, messages=tuple(draw(st.lists(MESSAGES, max_size=3)))
        ),
        action=Action(
            prompt_token_ids=draw(TOKENS),
            token_ids=token_ids,
            logprobs=tuple(
                draw(st.lists(logprob, min_size=len(token_ids), max_size=len(token_ids)))
            ),
            text=draw(TEXT),
            finish_reason=draw(st.sampled_from(FinishReason)),
            policy_version_id=POLICY.id,
            temperature=draw(st.floats(0, 2)),
            seed=draw(st.integers(0, 2**63 - 1)),
            started_at=draw(st.datetimes(datetime(2000, 1, 1), timezones=st.just(UTC))),  # noqa: DTZ001
            seconds=draw(SECONDS),
        ),
        tool_result=draw(st.none() | TOOL_RESULTS),
    )


SCORES = st.builds(
    CoachScore,
    value=st.floats(0, 10),
    rationale=TEXT,
    seconds=SECONDS,
    raw_reply=st.none() | TEXT,
    prompt_tokens=st.none() | st.integers(0, 2**31 - 1),
    reply_tokens=st.none() | st.integers(0, 2**31 - 1),
    cost_usd=st.none() | SECONDS,
) | st.builds(
    Unscored,
    reason=st.sampled_from(["timeout", "refused", "unparsable"]),
    detail=TEXT,
    seconds=SECONDS,
    raw_reply=st.none() | TEXT,
)


@pytest.fixture(scope="module")
def shared_store(new_database: NewDatabase) -> Iterator[PostgresStore]:
    store = PostgresStore.open(new_database())
    store.open_run(RUN)
    store.add_problems([make_problem()])
    store.add_policy_version(POLICY)
    yield store
    store.close()


def opened(store: PostgresStore) -> Episode:
    return store.open_episode(make_episode(RUN, make_problem(), rollout_index=next(ROLLOUTS)))


@settings(max_examples=60, deadline=None)
@given(turn=turns())
def test_a_turn(shared_store: PostgresStore, turn: Turn) -> None:
    episode = opened(shared_store)
    shared_store.record_turn(episode, turn)
    assert shared_store.episode(str(episode.id)) == episode.with_turn(turn)


@settings(max_examples=40, deadline=None)
@given(score=SCORES)
def test_a_score(shared_store: PostgresStore, score: CoachScore | Unscored) -> None:
    episode = opened(shared_store)
    shared_store.record_turn(episode, make_turn(POLICY))
    entry = make_score(episode, 0, score)
    shared_store.add_scores([entry])
    assert shared_store.scores(episode.id) == (entry,)
    assert isinstance(shared_store.scores(episode.id)[0].id, UUID)
