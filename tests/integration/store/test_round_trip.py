"""What goes into the store comes out of it, for any record hypothesis can think of."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from uuid import UUID, uuid4

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mappa_core.core.records.episodes import (
    Action,
    Episode,
    FinishReason,
    Message,
    Observation,
    Outcome,
    PolicyVersion,
    Problem,
    StopReason,
    Turn,
)
from mappa_core.core.records.provenance import Provenance
from mappa_core.core.records.runs import Run, RunStatus
from mappa_core.core.records.scores import CoachScore, ScoreEntry, Unscored
from mappa_core.core.records.tools import Artifact, RejectedFile, ToolResult, ToolStatus
from mappa_core.store.store import Store
from tests.builders import (
    entry,
    make_episode,
    make_policy,
    make_problem,
    make_run,
    make_score,
    make_turn,
    make_update,
)
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
            given=draw(st.none() | st.tuples(st.integers(0, 5), st.integers(0, 5))),
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
def shared_store(new_database: NewDatabase) -> Iterator[Store]:
    store = Store.open(new_database())
    store.runs.add_run(RUN)
    store.episodes.add_problems([make_problem()])
    store.policies.add_policy_version(POLICY)
    yield store
    store.close()


def opened(store: Store) -> Episode:
    return store.episodes.open_episode(
        make_episode(RUN, make_problem(), rollout_index=next(ROLLOUTS))
    )


@settings(max_examples=60, deadline=None)
@given(turn=turns())
def test_a_turn(shared_store: Store, turn: Turn) -> None:
    episode = opened(shared_store)
    shared_store.episodes.add_turn(episode, turn)
    assert shared_store.episodes.get_episode(str(episode.id)) == episode.with_turn(turn)


@settings(max_examples=40, deadline=None)
@given(score=SCORES)
def test_a_score(shared_store: Store, score: CoachScore | Unscored) -> None:
    episode = opened(shared_store)
    shared_store.episodes.add_turn(episode, make_turn(POLICY))
    given_score = make_score(episode, 0, score)
    shared_store.scores.add_scores([given_score])
    assert shared_store.scores.scores_of_episode(episode.id) == (given_score,)
    assert isinstance(shared_store.scores.scores_of_episode(episode.id)[0].id, UUID)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
MOMENTS = st.datetimes(datetime(2000, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
SMALL = st.integers(0, 2**31 - 1)
METRICS = st.dictionaries(TEXT, st.floats(allow_nan=False), max_size=4)


@settings(max_examples=40, deadline=None)
@given(
    run=st.builds(
        Run,
        id=st.builds(uuid4),
        name=TEXT,
        team=TEXT,
        config=st.dictionaries(TEXT, JSON, max_size=3),
        code_version=TEXT,
        seed=st.integers(0, 2**63 - 1),
        sandbox_tier=TEXT,
        started_at=MOMENTS,
        status=st.sampled_from(RunStatus),
        ended_at=st.none() | MOMENTS,
        error=st.none() | TEXT,
        prefect_flow_run_id=st.none() | TEXT,
        mlflow_run_id=st.none() | TEXT,
        provenance=st.none()
        | st.lists(
            st.builds(Provenance, since=TEXT, parts=st.dictionaries(TEXT, TEXT, max_size=3)),
            max_size=2,
        ).map(tuple),
    )
)
def test_a_run(shared_store: Store, run: Run) -> None:
    shared_store.runs.add_run(run)
    assert shared_store.runs.get_run(str(run.id)) == run


@settings(max_examples=40, deadline=None)
@given(
    policy=st.builds(
        PolicyVersion,
        id=st.builds(uuid4),
        run_id=st.just(RUN.id),
        agent=TEXT,
        step=SMALL,
        base_model=TEXT,
        adapter_uri=st.none() | TEXT,
    )
)
def test_a_policy_version(shared_store: Store, policy: PolicyVersion) -> None:
    assume(shared_store.policies.get_policy_version(RUN.id, policy.agent, policy.step) is None)
    shared_store.policies.add_policy_version(policy)
    assert shared_store.policies.get_policy_version(RUN.id, policy.agent, policy.step) == policy


@settings(max_examples=40, deadline=None)
@given(
    problem=st.builds(
        Problem,
        id=st.builds(uuid4),
        dataset=TEXT,
        task_type=TEXT,
        level=SMALL,
        statement=TEXT,
        answer=TEXT,
    ),
    outcome=st.none()
    | st.builds(Outcome, success=st.booleans(), answer=st.none() | TEXT, method=TEXT),
    error=st.none() | TEXT,
    reason=st.sampled_from(StopReason),
)
def test_a_problem_and_how_an_episode_on_it_ended(
    shared_store: Store,
    problem: Problem,
    outcome: Outcome | None,
    error: str | None,
    reason: StopReason,
) -> None:
    shared_store.episodes.add_problems([problem])
    episode = make_episode(RUN, problem, rollout_index=next(ROLLOUTS))
    shared_store.episodes.open_episode(episode)
    closed = episode.closed(reason, outcome=outcome, error=error)
    shared_store.episodes.close_episode(closed)
    assert shared_store.episodes.get_episode(str(episode.id)) == closed


@settings(max_examples=40, deadline=None)
@given(
    metrics=METRICS,
    seconds=SECONDS,
    advantage=st.none() | st.floats(allow_nan=False),
    weight=st.floats(0, 1),
    directory=TEXT,
    sha256=TEXT,
    size_bytes=BYTES,
)
def test_an_update_and_its_checkpoint(
    shared_store: Store,
    metrics: dict[str, float],
    seconds: float,
    advantage: float | None,
    weight: float,
    directory: str,
    sha256: str,
    size_bytes: int,
) -> None:
    iteration = next(ROLLOUTS) + 1
    episode = opened(shared_store)
    shared_store.episodes.add_turn(episode, make_turn(POLICY))
    entries = [entry(episode, 0, advantage, weight)]
    update, policy, checkpoint = make_update(RUN, f"agent {iteration}", iteration, entries)
    update = replace(update, metrics=metrics, seconds=seconds, from_policy_id=POLICY.id)
    checkpoint = replace(checkpoint, directory=directory, sha256=sha256, size_bytes=size_bytes)
    shared_store.updates.add_update(update, policy, checkpoint)
    assert shared_store.updates.get_update(RUN.id, update.agent, iteration) == update
    assert (policy, checkpoint) in shared_store.policies.list_checkpoints(RUN.id)


@settings(max_examples=20, deadline=None)
@given(turn=turns(), score=SCORES)
def test_an_episode_added_whole_is_as_one_recorded_turn_by_turn(
    shared_store: Store, turn: Turn, score: CoachScore | Unscored
) -> None:
    """By COPY and by INSERT: 40 turns are enough for the first."""
    episode = make_episode(RUN, make_problem(), rollout_index=next(ROLLOUTS))
    for index in range(40):
        episode = episode.with_turn(replace(turn, index=index))
    whole = episode.closed(StopReason.ANSWERED)
    scores = [make_score(whole, index, score) for index in range(40)]
    for _ in range(2):
        shared_store.episodes.add_episodes([whole], scores)
    assert shared_store.episodes.get_episode(str(whole.id)) == whole
    assert sorted(shared_store.scores.scores_of_episode(whole.id), key=by_id) == sorted(
        scores, key=by_id
    )


def by_id(scored: ScoreEntry) -> UUID:
    return scored.id
