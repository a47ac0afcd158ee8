"""The whole configuration of a run."""

import json
from collections.abc import Sequence

from pydantic import Field, model_validator

from mappa_core.audit.config import AuditConfig
from mappa_core.cluster.config import ClusterConfig
from mappa_core.coach.config import CoachConfig
from mappa_core.core.section import Section
from mappa_core.evaluate.config import EvaluationConfig
from mappa_core.rollout.config import EngineConfig, ProblemsConfig, RolloutConfig, SandboxConfig
from mappa_core.rollout.tools.config import ToolsConfig
from mappa_core.tracking.config import TrackingConfig
from mappa_core.train.config import AlgorithmConfig, LearnerConfig
from mappa_core.train.estimators import ESTIMATORS

RESUMABLE = {
    "coach": (
        "budget",
        "concurrency",
        "attempt_seconds",
        "deadline_seconds",
        "requests_per_minute",
        "tokens_per_minute",
        "unscored_limit",
        "base_url",
        "exam",
    ),
    "audit": ("stop_on", "waive", "ask_every", "ask_on", "ask_hours"),
    "learner": ("deployment", "micro_batch_tokens", "deepspeed.timeout_seconds"),
    "engine": ("urls",),
    "cluster": ("backend", "address", "placement", "cpus", "wait_seconds"),
}
"""Keys that a resumed run may change, by section: how its coach is asked, and not what; what the
audit stops it for; where its updates are computed and its actions sampled."""

_HELD_OUT = {
    "prompts": True,
    "seed": True,
    "problems": True,
    "tools": True,
    "rollout": {
        "max_tokens",
        "agent_tokens",
        "thought_tokens",
        "agent_thought_tokens",
        "chat_template_kwargs",
        "agent_turns",
        "debaters",
    },
    "engine": {"dtype", "max_model_length"},
    "sandbox": {
        "runtime",
        "wall_seconds",
        "cpu_seconds",
        "memory_mib",
        "processes",
        "workspace_mib",
        "file_mib",
        "output_kib",
    },
    "evaluation": {"temperature"},
}
"""Keys that decide what a held-out episode of given weights is like."""

_LATER = {
    "rollout": (
        "agent_tokens",
        "thought_tokens",
        "agent_thought_tokens",
        "chat_template_kwargs",
        "agent_turns",
        "debaters",
    ),
    "problems": ("sample", "skip_unusable"),
}
"""Those that came later: left out at their defaults, so that stored evaluations are found again."""


def _named(keys: Sequence[str]) -> dict[str, bool | set[str]]:
    """Keys of a section, `one` or `one.inside`, as pydantic takes them."""
    parts = [key.partition(".") for key in keys]
    return {
        key: {inside for other, _, inside in parts if other == key and inside} or True
        for key, _, _ in parts
    }


class StartConfig(Section):
    """Which weights a run starts from, where not from the base model."""

    run: str = Field(
        default="",
        description="A run that this one goes on from; empty: from the base model. "
        "`mappa train --fork` sets it.",
    )
    step: int = Field(default=0, ge=0, description="After how many of that run's updates.")


class TrainConfig(Section):
    """One run that a person would start."""

    name: str = Field(
        default="train", pattern=r"^[a-z0-9][a-z0-9-]{0,62}$", description="Run name prefix."
    )
    team: str = Field(default="mathchat", description="Which team is trained.")
    prompts: str = Field(default="small-1", description="Which prompt set of the team (a folder).")
    model: str = Field(
        default="smollm2-135m-instruct",
        description="Bundled model name, a local directory, or a Hugging Face id.",
    )
    seed: int = Field(default=1, ge=0, lt=2**31, description="Reproduces the run.")
    start: StartConfig = Field(default=StartConfig(), description="Whose weights come first.")
    problems: ProblemsConfig = Field(
        default=ProblemsConfig(), description="Train and held-out sets."
    )
    rollout: RolloutConfig = Field(default=RolloutConfig(), description="Episodes.")
    engine: EngineConfig = Field(default=EngineConfig(), description="Inference.")
    sandbox: SandboxConfig = Field(default=SandboxConfig(), description="Code execution.")
    tools: ToolsConfig = Field(default=ToolsConfig(), description="Tools beyond Python.")
    coach: CoachConfig = Field(default=CoachConfig(), description="Scores.")
    learner: LearnerConfig = Field(default=LearnerConfig(), description="Updates.")
    cluster: ClusterConfig = Field(default=ClusterConfig(), description="Other machines.")
    algorithm: AlgorithmConfig = Field(default=AlgorithmConfig(), description="Credit.")
    evaluation: EvaluationConfig = Field(default=EvaluationConfig(), description="Measurement.")
    tracking: TrackingConfig = Field(default=TrackingConfig(), description="MLflow.")
    audit: AuditConfig = Field(default=AuditConfig(), description="Watching the coach.")

    @model_validator(mode="after")
    def _can_be_run(self) -> "TrainConfig":
        if self.start.step and not self.start.run:
            raise ValueError("start.step counts the updates of a run: name it in start.run")
        if self.start.step >= self.rollout.iterations:
            raise ValueError(
                f"start.step={self.start.step} leaves nothing of rollout.iterations="
                f"{self.rollout.iterations}: raise rollout.iterations, or lower start.step"
            )
        if self.learner.weights == "full" and self.engine.serving == "adapters":
            raise ValueError(
                "learner.weights=full trains no adapters: set engine.serving to auto or merged"
            )
        if self.rollout.async_level and self.engine.colocate is True:
            raise ValueError(
                "engine.colocate lets servers sleep while agents learn, and rollout.async_level=1 "
                "plays then: set one of them back"
            )
        if self.cluster.backend == "ray":
            self._can_be_placed()
        estimator = self.algorithm.estimator
        grouped = ESTIMATORS[estimator].compares == "problem"
        if grouped and self.rollout.episodes_per_problem < 2:
            raise ValueError(
                f"algorithm.estimator={estimator} compares a problem's episodes: set "
                "rollout.episodes_per_problem to 2 or more, or algorithm.estimator=reinforce++"
            )
        return self

    def _can_be_placed(self) -> None:
        """Refuse what servers and ranks on other machines are not told yet."""
        beside = {
            "engine.backend": self.engine.backend != "vllm",
            "engine.urls": bool(self.engine.urls),
            "engine.weight_sync": self.engine.weight_sync != "reload",
            "engine.colocate": self.engine.colocate is True,
            "engine.devices": self.engine.devices != "auto",
            "learner.devices": self.learner.devices != "auto",
            "learner.deployment": self.learner.deployment is not None,
        }
        named = [key for key, there in beside.items() if there]
        if named:
            raise ValueError(
                f"cluster.backend=ray places servers and ranks itself: leave {' and '.join(named)} "
                "as by default"
            )

    @property
    def registers_every(self) -> bool:
        """Whether every update's checkpoints become model versions, not the best and last alone."""
        return self.tracking.versions == "every"

    def policy_step(self, iteration: int) -> int:
        """How many updates the policies have had that play a training iteration 1, 2, ..."""
        return max(self.start.step, iteration - 1 - self.rollout.async_level)

    def same_experiment(self, other: "TrainConfig") -> tuple[str, ...]:
        """The sections in which `other` differs; how patient and rich the coach is does not count.

        A run whose budget is spent can be resumed with a larger one, one that the audit stopped
        with another opinion of what to stop for, any with its updates computed elsewhere, and one
        that its memory did not hold with smaller micro-batches.
        """
        left_out = {section: _named(keys) for section, keys in RESUMABLE.items()}
        ours, theirs = (one.model_dump(mode="json", exclude=left_out) for one in (self, other))
        return tuple(sorted(key for key in ours if ours[key] != theirs[key]))

    def held_out_settings(self) -> str:
        """Give, as JSON, what decides what held-out episodes of given weights are like."""
        settings = self.model_dump(mode="json", include=_HELD_OUT)
        defaults = TrainConfig().model_dump(mode="json", include=_HELD_OUT)
        for section, keys in _LATER.items():
            for key in keys:
                if settings[section][key] == defaults[section][key]:
                    del settings[section][key]
        return json.dumps(settings, sort_keys=True)
