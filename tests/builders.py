"""Small, complete records for tests; every argument is what the test is about."""

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

from mappa_core.coach.scoring import score_id
from mappa_core.core import ids
from mappa_core.core.records.episodes import (
    Action,
    Episode,
    FinishReason,
    Message,
    Observation,
    Phase,
    PolicyVersion,
    Problem,
    Turn,
)
from mappa_core.core.records.runs import EpisodeSummary, Run
from mappa_core.core.records.scores import CoachIdentity, CoachScore, ScoreEntry, Unscored
from mappa_core.core.records.tools import Artifact, RejectedFile, ToolResult, ToolStatus
from mappa_core.core.records.updates import Checkpoint, Update, UpdateEntry

STARTED_AT = datetime(2026, 11, 21, 9, 30, 0, 123456, tzinfo=UTC)
RULE_COACH = CoachIdentity(
    coach="rule", model="rules", model_version="1", rubric_version="1", rubric_sha256="ab" * 32
)


def make_run(name: str = "quickstart-1", *, started_at: datetime = STARTED_AT) -> Run:
    return Run(
        id=ids.content_id("run", name),
        name=name,
        team="mathchat",
        config={"seed": 1, "rollout": {"problems": 12}},
        code_version="abc1234",
        seed=1,
        sandbox_tier="bubblewrap+cgroup+seccomp",
        started_at=started_at,
    )


def make_summary(problem_id: UUID, *, success: bool | None, answer: str | None) -> EpisodeSummary:
    return EpisodeSummary(
        id=ids.content_id("episode", "summary"), phase="held_out", iteration=1,
        problem_id=problem_id, task_type="addition", success=success, answer=answer,
        metric=None, value=None, skill=None, mean_score=None, scored=0,
    )  # fmt: skip


def make_problem(statement: str = "What is 2 + 3?", *, task_type: str = "addition") -> Problem:
    return Problem(
        id=ids.problem_id(statement),
        dataset="arithmetic",
        task_type=task_type,
        level=1,
        statement=statement,
        answer="5",
    )


def make_policy(run: Run, agent: str = "solver", step: int = 0) -> PolicyVersion:
    return PolicyVersion(
        id=ids.policy_version_id(run.id, agent, step),
        run_id=run.id,
        agent=agent,
        step=step,
        base_model="models/tiny",
        adapter_uri=None if step == 0 else f"checkpoints/{agent}/{step}",
    )


def make_episode(
    run: Run,
    problem: Problem,
    *,
    phase: Phase = "train",
    iteration: int = 1,
    rollout_index: int = 0,
) -> Episode:
    return Episode(
        id=ids.episode_id(run.id, phase, iteration, problem.id, rollout_index),
        run_id=run.id,
        phase=phase,
        iteration=iteration,
        problem=problem,
        rollout_index=rollout_index,
    )


def make_turn(
    policy: PolicyVersion,
    index: int = 0,
    *,
    text: str = "2 + 3 = 5",
    token_ids: Sequence[int] = (7, 8, 2),
    finish_reason: FinishReason = FinishReason.STOP,
    tool_result: ToolResult | None = None,
) -> Turn:
    messages = (
        Message(role="system", content="Solve."),
        Message(role="assistant", content="earlier", token_ids=(5, 6)),
        Message(role="user", content="What is 2 + 3?"),
    )
    return Turn(
        index=index,
        agent=policy.agent,
        observation=Observation(agent=policy.agent, messages=messages),
        action=Action(
            prompt_token_ids=(1, 3, 4),
            token_ids=tuple(token_ids),
            logprobs=tuple(-0.125 * (position + 1) for position in range(len(token_ids))),
            text=text,
            finish_reason=finish_reason,
            policy_version_id=policy.id,
            temperature=1.0,
            seed=2**31 - 1,
            started_at=STARTED_AT,
            seconds=0.5,
        ),
        tool_result=tool_result,
    )


def make_tool_result(status: ToolStatus = ToolStatus.OK) -> ToolResult:
    return ToolResult(
        code="print(2 + 3)",
        status=status,
        exit_code=0 if status is ToolStatus.OK else None,
        stdout="5\n",
        stderr="",
        stdout_omitted_bytes=0,
        stderr_omitted_bytes=2**40,
        seconds=0.25,
        cpu_seconds=0.125,
        peak_memory_bytes=2**33,
        tier="bubblewrap+cgroup+seccomp",
        written=(
            Artifact(name="b.txt", size_bytes=1, sha256="0b" * 32),
            Artifact(name="a.txt", size_bytes=1, sha256="0b" * 32),
        ),
        read=(Artifact(name="train.csv", size_bytes=2, sha256="0c" * 32),),
        removed=("old.txt",),
        rejected=(RejectedFile(name="link", reason="a symbolic link"),),
    )


def make_score(
    episode: Episode,
    turn_index: int,
    score: CoachScore | Unscored | float,
    *,
    identity: CoachIdentity = RULE_COACH,
    repeat_index: int = 0,
    trained: bool = True,
) -> ScoreEntry:
    action_id = ids.action_id(episode.id, turn_index)
    if isinstance(score, float):
        score = CoachScore(value=score, rationale="as the evidence says", seconds=0.125)
    return ScoreEntry(
        id=score_id(action_id, identity, repeat_index, 0),
        episode_id=episode.id,
        turn_index=turn_index,
        identity=identity,
        repeat_index=repeat_index,
        label_visible=False,
        trained=trained,
        score=score,
    )


def make_update(
    run: Run, agent: str, iteration: int, entries: Sequence[UpdateEntry] = ()
) -> tuple[Update, PolicyVersion, Checkpoint]:
    """The update from step `iteration` - 1, the policy it makes and its checkpoint."""
    policy = make_policy(run, agent, iteration)
    update = Update(
        id=ids.update_id(run.id, agent, iteration),
        run_id=run.id,
        agent=agent,
        iteration=iteration,
        from_policy_id=ids.policy_version_id(run.id, agent, iteration - 1),
        to_policy_id=policy.id,
        metrics={"loss": 0.25, "grad_norm": 1.0},
        entries=tuple(entries),
        seconds=2.5,
    )
    return update, policy, make_checkpoint(policy)


def make_checkpoint(policy: PolicyVersion) -> Checkpoint:
    return Checkpoint(
        id=ids.content_id("checkpoint", policy.id),
        policy_version_id=policy.id,
        directory=f"checkpoints/{policy.agent}/{policy.step}",
        sha256="cd" * 32,
        size_bytes=1_000_000,
    )


def entry(
    episode: Episode, turn_index: int, advantage: float | None, weight: float = 0.0
) -> UpdateEntry:
    action_id: UUID = ids.action_id(episode.id, turn_index)
    return UpdateEntry(
        action_id=action_id,
        score_id=None,
        advantage=advantage,
        weight=weight,
        left_out="unscored" if advantage is None else None,
    )
