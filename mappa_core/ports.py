"""Every seam of the system on one page: what MAPPA needs from outside, and what may go wrong.

Each port has at least one real adapter in `adapters/` and, where tests need one, a fake in
`tests/fakes/` held to the same contract tests. `bootstrap` is the only place that chooses.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable
from uuid import UUID

from mappa_core.auditing.frame import Frame
from mappa_core.auditing.opinions import Opinions
from mappa_core.config import AlgorithmConfig
from mappa_core.domain.audit import (
    Anchor,
    AnchorScore,
    AuditedRun,
    Candidate,
    CorrectedScore,
    Correction,
    Finding,
    HumanLabel,
    ToLabel,
)
from mappa_core.domain.records import (
    Checkpoint,
    CoachCase,
    CoachIdentity,
    CoachScore,
    Completion,
    Episode,
    EpisodeSummary,
    GenerationRequest,
    HeldOutEpisode,
    IterationFigures,
    Limits,
    Message,
    Phase,
    PolicyVersion,
    Problem,
    RegisteredVersion,
    Run,
    RunStatus,
    ScoredAction,
    ScoreEntry,
    Spending,
    ToolResult,
    TrainingSample,
    Turn,
    Unscored,
    Update,
    UpdateEntry,
    UpdateReport,
)

if TYPE_CHECKING:
    from mappa_core.auditing.agreement import LabelledScores


class Tokenizer(Protocol):
    """Turns chat messages into the ids a model reads, and sampled ids into text."""

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The prompt ids of `messages` in the model's own chat template, ready for a reply.

        Content can never become a control token; a message with `token_ids` is spliced in as
        it was sampled.
        """
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of sampled ids, control tokens left out."""
        ...


class Engine(Protocol):
    """Samples actions from the agents' current weights."""

    async def start(self) -> None:
        """Bring the engine up.

        Raises:
            EngineError: It does not start; the message names the log.
        """
        ...

    async def load(self, policy: PolicyVersion) -> None:
        """Serve `policy` for its agent from now on, without a restart.

        Raises:
            EngineError: The weights cannot be loaded.
        """
        ...

    async def generate(self, request: GenerationRequest) -> Completion:
        """Sample one action from the loaded version of the request's agent.

        The same request gives the same tokens (exactly so in float32). A dead engine is
        restarted, its policies are loaded again and the request is repeated.

        Raises:
            EngineError: It cannot be brought back, or serves another version than asked for.
        """
        ...

    async def close(self) -> None:
        """Stop it; safe to call twice."""
        ...


@runtime_checkable
class SleepingEngine(Protocol):
    """An engine that can leave a GPU to the learner, beside `Engine`. Both raise `EngineError`."""

    async def sleep(self) -> None:
        """Give the GPU's memory up; nothing may be asked of it until `wake`."""
        ...

    async def wake(self) -> None:
        """Take the memory again, with the policies it served."""
        ...


class Sandbox(Protocol):
    """Runs model-written Python where it can do no harm."""

    @property
    def tier(self) -> str:
        """Which isolation holds, e.g. `bubblewrap+cgroup+seccomp`."""
        ...

    async def run(self, code: str, workspace: Path | None, limits: Limits) -> ToolResult:
        """Run `code` as `main.py`; a program that fails is data.

        Args:
            code: Python source.
            workspace: Directory that persists between turns, or None for an empty one.
            limits: Bounds on time, memory, processes, files and output.

        Raises:
            SandboxError: The sandbox itself failed.
        """
        ...

    async def close(self) -> None:
        """Leave nothing behind; safe to call twice."""
        ...


class Coach(Protocol):
    """Reads one action and its evidence, and judges it."""

    @property
    def identity(self) -> CoachIdentity:
        """Who scores, with which rubric."""
        ...

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        """A score in [0, 10] with a rationale, or the reason there is none.

        Raises:
            CoachError: The coach cannot work at all.
        """
        ...


@runtime_checkable
class BudgetedCoach(Protocol):
    """A coach that costs money, beside `Coach`."""

    @property
    def spent(self) -> Spending:
        """What it has taken so far, with what it was told to begin with."""
        ...

    def resume_budget(self, spent: Spending) -> None:
        """Begin with what the run has spent already."""
        ...


class Learner(Protocol):
    """Updates one agent's weights."""

    def logprobs(
        self, policy: PolicyVersion, actions: Sequence[ScoredAction]
    ) -> tuple[tuple[float, ...], ...]:
        """Log-probabilities of each action's tokens under `policy`; shapes (N, T).

        Raises:
            LearnerError: The weights cannot be loaded or do not match their hash.
        """
        ...

    def update(
        self,
        policy: PolicyVersion,
        samples: Sequence[TrainingSample],
        algorithm: AlgorithmConfig,
        *,
        total_steps: int,
        seed: int,
    ) -> UpdateReport:
        """One update of `policy` on `samples`, saved as a checkpoint beside the old one.

        Optimiser state travels in the checkpoint, so a killed run goes on as if undisturbed.

        Args:
            policy: The weights that sampled; the report's policy is one step further.
            samples: The agent's scored actions of one iteration.
            algorithm: Clip, KL and loss averaging.
            total_steps: Updates of the whole run, for the learning-rate schedule.
            seed: Order of the minibatches.

        Raises:
            LearnerError: The loss is not finite, or the weights cannot be read.
            DiskFull: The checkpoint does not fit; nothing half-written is left.
        """
        ...


@runtime_checkable
class RetiringLearner(Protocol):
    """A learner that can let go of what it saved, beside `Learner`."""

    def retire(self, checkpoint: Checkpoint) -> None:
        """Remove a checkpoint's files; its record, and a registered copy, stay."""
        ...


class ProblemSource(Protocol):
    """Where problems come from; train and held-out sets are disjoint by content."""

    def train(self) -> tuple[Problem, ...]:
        """Problems to learn from, in a fixed order."""
        ...

    def held_out(self) -> tuple[Problem, ...]:
        """Problems to measure on, in a fixed order."""
        ...


@runtime_checkable
class TaskSource(ProblemSource, Protocol):
    """Problems that come with files and are graded by hidden labels."""

    def files(self, problem: Problem) -> Mapping[str, bytes]:
        """What the agents find in their workspace, by name."""
        ...

    def labels(self, problem: Problem) -> bytes:
        """CSV of the right predictions; never given to agents, sandboxes or coaches."""
        ...


class Workspaces(Protocol):
    """The files of an episode between its turns. All methods raise `OutsideError`."""

    def open(self, episode: Episode, files: Mapping[str, bytes]) -> Path:
        """A folder as the episode's last turn left it.

        Args:
            episode: With the turns so far.
            files: What lies there before the first turn.
        """
        ...

    def keep(self, episode: Episode, folder: Path) -> None:
        """Keep what the next turn of `episode` left in `folder`, and take the folder away."""
        ...

    def content(self, sha256: str) -> bytes:
        """The bytes of a file that was kept."""
        ...


class Store(Protocol):
    """Every prompt, token, score and update, for good.

    Every write is durable when the call returns and harmless when repeated. All methods raise
    `StoreError` where Postgres is unreachable, refuses or is full.
    """

    def open_run(self, run: Run) -> None:
        """Add a run; a repeat changes nothing."""
        ...

    def link_run(
        self, run_id: UUID, *, prefect_flow_run_id: str | None, mlflow_run_id: str | None
    ) -> None:
        """Write down the run's ids in the other systems; None leaves a link as it is."""
        ...

    def close_run(self, run_id: UUID, status: RunStatus, error: str | None = None) -> None:
        """Set where the run stands; `RUNNING` reopens it."""
        ...

    def run(self, name_or_id: str) -> Run:
        """One run by name, id or unambiguous prefix of either.

        Raises:
            NotFound: None matches, or several do.
        """
        ...

    def runs(self, limit: int = 50) -> tuple[Run, ...]:
        """The latest runs, newest first."""
        ...

    def add_problems(self, problems: Sequence[Problem]) -> None:
        """Add problems that are not there yet."""
        ...

    def add_manifest(self, run_id: UUID, split: Phase, problems: Sequence[Problem]) -> None:
        """Write down which problems a run draws from, in their order; a repeat changes nothing."""
        ...

    def add_policy_version(self, policy: PolicyVersion) -> None:
        """Add a policy version."""
        ...

    def policy_version(self, run_id: UUID, agent: str, step: int) -> PolicyVersion | None:
        """One policy version, or None before it exists."""
        ...

    def open_episode(self, episode: Episode) -> Episode:
        """Add an episode, or return it with what was recorded before a crash."""
        ...

    def record_turn(self, episode: Episode, turn: Turn) -> None:
        """Add one turn: its action and what its code did."""
        ...

    def close_episode(self, episode: Episode) -> None:
        """Write the stop reason and the outcome of a finished episode."""
        ...

    def episode(self, id_or_prefix: str) -> Episode:
        """One episode with all its turns.

        Raises:
            NotFound: None matches, or several do.
        """
        ...

    def add_scores(self, entries: Sequence[ScoreEntry]) -> None:
        """Add scores; a repeat of an id changes nothing.

        A training score takes the place of an unscored one, which stays as a row that did not
        train; a second real training score is refused.
        """
        ...

    def coach_spending(self, run_id: UUID) -> Spending:
        """What models that coach a run have taken so far, scores that did not train included."""
        ...

    def coach_costs(self, run_id: UUID) -> Mapping[int, float]:
        """Dollars that the coaches took for each training iteration; none where they are free."""
        ...

    def scores(self, episode_id: UUID) -> tuple[ScoreEntry, ...]:
        """All scores of an episode's actions, in turn order."""
        ...

    def episode_summaries(self, run_id: UUID) -> tuple[EpisodeSummary, ...]:
        """Every closed episode of a run in a line, by phase, iteration, problem and rollout."""
        ...

    def learnt(self, episode_id: UUID) -> Mapping[UUID, tuple[Update, UpdateEntry]]:
        """What became of each of an episode's actions that an update looked at.

        The updates come without their other entries.
        """
        ...

    def scored_actions(self, run_id: UUID, agent: str, iteration: int) -> tuple[ScoredAction, ...]:
        """One agent's actions of one training iteration, in a fixed order.

        Failed episodes are left out; unscored actions come with `score=None`.
        """
        ...

    def score_ids(self, action_ids: Sequence[UUID]) -> Mapping[UUID, UUID]:
        """The training score's id for each action that has one."""
        ...

    def add_update(self, update: Update, policy: PolicyVersion, checkpoint: Checkpoint) -> None:
        """Add an update, its entries, the new policy version and its checkpoint, all or none."""
        ...

    def update(self, run_id: UUID, agent: str, iteration: int) -> Update | None:
        """One update, or None before it happened."""
        ...

    def checkpoints(self, run_id: UUID) -> tuple[tuple[PolicyVersion, Checkpoint], ...]:
        """All checkpoints of a run, oldest first."""
        ...

    def set_model_version(self, checkpoint_id: UUID, registered_model: str, version: str) -> None:
        """Link a checkpoint to its MLflow model version."""
        ...

    def figures(self, run_id: UUID, phase: Phase, iteration: int) -> IterationFigures:
        """One iteration's numbers, from the rows."""
        ...

    def held_out_episodes(self, run_id: UUID, step: int) -> tuple[HeldOutEpisode, ...]:
        """The closed held-out episodes of one policy step, by problem and rollout."""
        ...

    def close(self) -> None:
        """Give connections back; safe to call twice."""
        ...


class AuditStore(Protocol):
    """What audits read, from the views of the schema `audit` alone, and what they write.

    All methods raise `StoreError` where Postgres is unreachable, refuses or is full.
    """

    def run(self, name_or_id: str) -> AuditedRun:
        """One run by name, id or unambiguous prefix of either.

        Raises:
            NotFound: None matches, or several do.
        """
        ...

    def frame(self, run_id: UUID) -> Frame:
        """A run's training actions with the score that trained them."""
        ...

    def iteration_frame(
        self, run_id: UUID, iteration: int | None = None
    ) -> tuple[tuple[UUID, ...], Frame]:
        """The same of one iteration (None: of all), with the action of each row."""
        ...

    def opinions(self, run_id: UUID) -> Opinions:
        """Every score of the run's actions that have several."""
        ...

    def labelled(self, run_id: UUID) -> "LabelledScores":
        """People's labels beside the coach's scores."""
        ...

    def to_label(self, run_id: UUID, limit: int) -> ToLabel:
        """What a person could look at, each list in an order that never changes by itself."""
        ...

    def labels(self, run_id: UUID, labeller: str) -> tuple[HumanLabel, ...]:
        """One person's labels of a run, oldest first."""
        ...

    def add_labels(self, labels: Sequence[HumanLabel]) -> None:
        """Add people's scores; a labeller's later score of an action replaces the earlier."""
        ...

    def save_findings(self, run_id: UUID, kinds: Sequence[str], found: Sequence[Finding]) -> None:
        """Replace the run's findings of these kinds, all or none."""
        ...

    def add_findings(self, found: Sequence[Finding]) -> None:
        """Add findings that are not there yet."""
        ...

    def findings(self, run_id: UUID, kind: str | None = None) -> tuple[Finding, ...]:
        """What was found about a run, of one kind or of all."""
        ...

    def add_anchors(self, anchors: Sequence[Anchor]) -> None:
        """Add anchors that are not there yet."""
        ...

    def candidates(self, run_id: UUID, iteration: int) -> tuple[Candidate, ...]:
        """The scored actions of one training iteration, in a fixed order."""
        ...

    def anchors(self, run_id: UUID) -> tuple[Anchor, ...]:
        """A run's anchors, in a fixed order."""
        ...

    def add_anchor_scores(self, scores: Sequence[AnchorScore]) -> None:
        """Add scores of anchors that are not there yet."""
        ...

    def anchor_scores(self, run_id: UUID) -> tuple[AnchorScore, ...]:
        """All scores of a run's anchors, by iteration, anchor and repeat."""
        ...

    def trainer(self, run_id: UUID) -> tuple[str, str]:
        """The coach and the hash of the rubric behind most of a run's training scores.

        Raises:
            NotFound: Nothing was scored.
        """
        ...

    def add_correction(self, correction: Correction) -> None:
        """Add a correction; a repeat changes nothing."""
        ...

    def correction(self, id_or_run: str) -> Correction:
        """A correction by its id, or the latest one estimated on a run.

        Raises:
            NotFound: There is none.
        """
        ...

    def add_corrected(self, scores: Sequence[CorrectedScore]) -> None:
        """Write down what a correction made of scores; a repeat changes nothing."""
        ...

    def close(self) -> None:
        """Give connections back; safe to call twice."""
        ...


class Tracker(Protocol):
    """Parameters and metrics of a run, as MLflow shows them. All methods raise `TrackerError`."""

    def start(self, run: Run) -> str:
        """Open the run and log its parameters, or find it again; returns the tracker's id."""
        ...

    def log(self, tracker_run_id: str, step: int, metrics: Mapping[str, float]) -> None:
        """Log metrics of one iteration."""
        ...

    def trace(self, tracker_run_id: str, episode: Episode, entries: Sequence[ScoreEntry]) -> None:
        """Show a finished episode with its scores; a repeat changes nothing."""
        ...

    def traced(self, tracker_run_id: str, phase: Phase, iteration: int) -> int:
        """How many episodes of one iteration are shown."""
        ...

    def tag(self, tracker_run_id: str, tags: Mapping[str, str]) -> None:
        """Set tags."""
        ...

    def end(self, tracker_run_id: str, status: RunStatus) -> None:
        """Close the run."""
        ...


class ModelRegistry(Protocol):
    """Checkpoints as versions of registered models `mappa-<team>-<agent>`."""

    def register(
        self,
        name: str,
        policy: PolicyVersion,
        checkpoint: Checkpoint,
        *,
        tracker_run_id: str,
        tags: Mapping[str, str],
        alias: str,
    ) -> str:
        """Store the checkpoint's files as a new version and point `alias` at it.

        Repeating it for one checkpoint returns the version it has.

        Raises:
            TrackerError: The registry is unreachable or refused.
        """
        ...

    def models(self) -> tuple[str, ...]:
        """The names of all registered models, sorted.

        Raises:
            TrackerError: The registry is unreachable.
        """
        ...

    def versions(self, name: str) -> tuple[RegisteredVersion, ...]:
        """A model's versions, oldest first; none where there is no such model.

        Raises:
            TrackerError: The registry is unreachable.
        """
        ...

    def point(self, name: str, alias: str, version: str, tags: Mapping[str, str]) -> None:
        """Move `alias` to a version, newer or older, and set tags on it.

        Raises:
            TrackerError: The registry is unreachable, or has no such version.
        """
        ...


class Watcher(Protocol):
    """Told what happens, to show it to a person; must never raise or block."""

    def starting(self, message: str) -> None:
        """Something that takes a while begins, e.g. `starting 3 engines`."""
        ...

    def waiting(self, message: str) -> None:
        """Something outside is away and the run waits for it, or it is back."""
        ...

    def phase(self, phase: Phase, iteration: int, episodes: int) -> None:
        """A batch of episodes begins."""
        ...

    def run(self, run: Run) -> None:
        """The run is in the store."""
        ...

    def episode(self, episode: Episode, entries: Sequence[ScoreEntry]) -> None:
        """An episode ended; its scores, none where none were asked for."""
        ...

    def updated(self, agent: str, iteration: int, metrics: Mapping[str, float]) -> None:
        """An agent's update ended."""
        ...

    def figures(self, figures: IterationFigures, seconds: float) -> None:
        """An iteration's figures are in the store."""
        ...
