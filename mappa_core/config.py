"""Hyper-parameters: what to run, recorded with the run. Addresses and secrets live in `settings`.

One YAML file in `configs/` is one `TrainConfig`; every key is documented by its `description`,
bounded, and refused when unknown. Nothing here reads the environment.
"""

from pathlib import Path
from typing import Annotated, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mappa_core.domain.records import LabelVisibility

Fraction = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Runtime = Literal["standard-library", "data-science"]
Positive = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A part of the configuration: frozen, and strict about unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ProblemsConfig(Section):
    """Which problems are trained on and which are held out."""

    source: Literal["arithmetic", "json", "tabular", "dsbench"] = Field(
        default="arithmetic",
        description="Bundled word-problem generator; AIME/AMC style JSON files; bundled "
        "prediction tasks; DSBench's modeling tasks from disk.",
    )
    levels: tuple[Positive, ...] = Field(
        default=(1,), min_length=1, description="Difficulty levels drawn from (arithmetic), 1 to 4."
    )
    operations: tuple[str, ...] = Field(
        default=(), description="Kinds of problem drawn (arithmetic); empty for all of the levels."
    )
    train_files: tuple[Path, ...] = Field(
        default=(), description="Files with problems to train on (json, dsbench)."
    )
    held_out_files: tuple[Path, ...] = Field(
        default=(), description="Files with problems to measure on (json, dsbench)."
    )
    prompts_file: Path | None = Field(
        default=None, description="DSBench's cleaned prompts, with metrics and columns (dsbench)."
    )
    folder: Path | None = Field(
        default=None, description="Folder with data_resplit/ and answers/ (dsbench)."
    )
    drop_overlap: bool = Field(
        default=False, description="Leave held-out problems out of training instead of refusing."
    )
    train_size: Positive = Field(default=400, description="How many problems training draws from.")
    held_out_size: Positive = Field(default=64, description="How many problems are held out.")
    seed: int = Field(
        default=0, ge=0, description="Seed of the split; the same for every run by default."
    )


class RolloutConfig(Section):
    """How episodes are played."""

    iterations: Positive = Field(default=10, description="Rounds of rollout and update.")
    problems: Positive = Field(default=12, description="P: problems per iteration.")
    episodes_per_problem: Positive = Field(default=4, description="G: episodes per problem.")
    temperature: float = Field(
        default=1.0, gt=0, le=2, description="Sampling temperature while training."
    )
    top_p: float = Field(default=1.0, gt=0, le=1, description="Nucleus mass; training needs 1.")
    max_tokens: Positive = Field(default=96, description="Sampled tokens per action, at most.")
    concurrency: Positive = Field(default=48, description="Episodes in flight at once.")
    granularity: Literal["episode", "action"] = Field(
        default="episode",
        description="What becomes a Prefect task run: a whole episode or each action.",
    )


class EngineConfig(Section):
    """What samples tokens."""

    backend: Literal["vllm", "transformers"] = Field(default="vllm", description="Which engine.")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="Where it runs.")
    dtype: Literal["float32", "bfloat16", "auto"] = Field(
        default="auto", description="auto: float32 on a CPU (exact log-probs), bfloat16 on a GPU."
    )
    serving: Literal["auto", "merged", "adapters"] = Field(
        default="auto",
        description="merged: one server per agent with its LoRA merged in (fast on a CPU); "
        "adapters: one server with every agent's LoRA (a GPU). auto picks by device.",
    )
    max_model_length: Positive = Field(
        default=1024, description="Prompt plus sampled tokens, at most."
    )
    kv_cache_gib: float = Field(
        default=1.0, gt=0, description="Key-value cache of each CPU server."
    )
    gpu_memory_utilization: Fraction = Field(
        default=0.6, description="Share of a GPU a server may take."
    )
    colocate: bool = Field(
        default=False,
        description="Learner and servers share a GPU: servers sleep, weights in the CPU's memory, "
        "while agents learn.",
    )
    start_seconds: float = Field(
        default=300, gt=0, description="How long a server may take to start."
    )
    restarts: int = Field(
        default=3, ge=0, description="Restarts of a dead server before giving up."
    )


class SandboxConfig(Section):
    """Where model-written code runs."""

    backend: Literal[
        "auto", "sandbox-fusion", "docker", "bubblewrap", "landlock", "unsafe-subprocess"
    ] = Field(
        default="auto",
        description="auto: the first of these whose probe passes; never the unsafe one.",
    )
    runtime: Runtime = Field(
        default="standard-library",
        description="What programs may import; data-science adds numpy, pandas, scipy, "
        "scikit-learn and lightgbm.",
    )
    wall_seconds: float = Field(default=10.0, gt=0, description="Wall clock of one run.")
    cpu_seconds: float = Field(default=10.0, gt=0, description="CPU time of one run.")
    memory_mib: Positive = Field(default=512, description="Memory of the whole process tree.")
    processes: Positive = Field(default=32, description="Processes and threads at once.")
    output_kib: Positive = Field(default=64, description="Kept of each output stream.")
    concurrency: Positive = Field(default=4, description="Runs at once.")


class PricesConfig(Section):
    """What a provider charges; prices change, so they are configuration and recorded."""

    input_usd: float = Field(default=0.0, ge=0, description="Dollars per million prompt tokens.")
    cached_usd: float | None = Field(
        default=None, ge=0, description="The same for cached ones; null charges them like others."
    )
    output_usd: float = Field(
        default=0.0, ge=0, description="Dollars per million sampled tokens, thoughts included."
    )


class ContextCacheConfig(Section):
    """Rubrics kept at the provider (gemini and vertex), beyond what it caches by itself."""

    enabled: bool = Field(
        default=False, description="Send each agent's rubric once and name it afterwards."
    )
    minimum_tokens: Positive = Field(
        default=2048, description="The provider refuses shorter ones; they are sent as ever."
    )
    ttl_seconds: int = Field(
        default=3600, ge=300, description="A cache's life; it is made anew before it ends."
    )


class CoachModelConfig(Section):
    """One coach: who it is, how it is asked, how hard."""

    backend: Literal["rule", "gemini", "vertex", "openai", "anthropic"] = Field(
        default="rule",
        description="rule reads the evidence itself; gemini, vertex, anthropic and openai (any "
        "server that speaks its protocol) ask a model.",
    )
    model: str = Field(default="", description="The model's name, as its provider spells it.")
    base_url: str | None = Field(
        default=None, description="Another address of the provider, e.g. a local vLLM; no secrets."
    )
    rubric: str = Field(
        default="paper-1", description="Rubric set of the team, or the path of a folder with one."
    )
    temperature: float = Field(default=0.0, ge=0, le=2, description="0 is greedy.")
    thinking_budget: int | None = Field(
        default=None,
        ge=0,
        description="Tokens of thinking, beside max_output_tokens; null leaves it to the model, 0 "
        "is off.",
    )
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = Field(
        default=None, description="Thinking of an openai coach; null leaves it to the model."
    )
    max_output_tokens: Positive = Field(default=2048, description="Of a reply, at most.")
    expected_reply_tokens: Positive = Field(
        default=150, description="Of a reply, on average; what a run will cost is predicted by it."
    )
    correction: bool = Field(
        default=False, description="Ask what the agent should have done instead."
    )
    prices: PricesConfig = Field(default=PricesConfig(), description="What tokens cost.")
    context_cache: ContextCacheConfig = Field(
        default=ContextCacheConfig(), description="Explicit caching of the rubric."
    )
    attempt_seconds: float = Field(default=60.0, gt=0, description="Patience with one call.")
    deadline_seconds: float = Field(
        default=600.0, gt=0, description="Patience with one score, retries and waits included."
    )
    concurrency: Positive = Field(default=32, description="Calls in flight at once, at most.")
    requests_per_minute: Positive | None = Field(
        default=None, description="The provider's limit, where it has one."
    )
    tokens_per_minute: Positive | None = Field(
        default=None, description="The provider's limit, where it has one."
    )

    @model_validator(mode="after")
    def _names_a_model(self) -> "CoachModelConfig":
        if self.backend != "rule" and not self.model:
            raise ValueError(f"backend {self.backend} needs a model: set model to its name")
        if self.context_cache.enabled and self.backend not in ("gemini", "vertex"):
            raise ValueError(f"backend {self.backend} has no context_cache: leave it off")
        if self.reasoning_effort is not None and self.backend != "openai":
            raise ValueError(f"backend {self.backend} takes thinking_budget, not reasoning_effort")
        if self.backend == "openai" and self.thinking_budget is not None:
            raise ValueError("backend openai takes reasoning_effort, not thinking_budget")
        return self


class SecondCoachConfig(CoachModelConfig):
    """A second opinion; its scores are stored and never trained on."""

    share: Fraction = Field(default=0.0, description="Of the actions, those it also scores.")


class BudgetConfig(Section):
    """What one run may spend on coaches; what does not fit is left unscored."""

    calls: Positive | None = Field(default=None, description="Calls, failed ones included.")
    tokens: Positive | None = Field(default=None, description="Prompt and sampled tokens.")
    dollars: float | None = Field(default=None, gt=0, description="By the configured prices.")


class CoachConfig(CoachModelConfig):
    """Who scores the actions."""

    unscored_limit: Fraction = Field(
        default=0.1, description="Unscored share of an iteration above which the run stops."
    )
    repeats: Positive = Field(
        default=1, description="K: scores per action; the first is trained on."
    )
    second: SecondCoachConfig = Field(
        default=SecondCoachConfig(), description="Another coach, for a share of the actions."
    )
    budget: BudgetConfig = Field(default=BudgetConfig(), description="Limits of a whole run.")
    visibility: dict[str, LabelVisibility] = Field(
        default={},
        description="What the coach may know of the truth, by agent: never (where nothing is "
        "said), outcome_only or full.",
    )


class LoraConfig(Section):
    """Each agent's own low-rank weights on the shared base."""

    rank: Positive = Field(default=16, description="Rank r of the update matrices.")
    alpha: Positive = Field(default=32, description="Scaling; the update is alpha / r * B A.")


class DeepspeedConfig(Section):
    """How updates are spread (ZeRO, arXiv 1910.02054)."""

    ranks: Positive = Field(default=1, description="Processes on each node; one per GPU.")
    stage: Literal[1, 2, 3] = Field(
        default=2, description="Sharded: optimiser state; gradients too; weights too."
    )
    offload: bool = Field(
        default=False, description="Optimiser state (and, at stage 3, weights) in the CPU's memory."
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="auto: float32 on a CPU, bfloat16 with float32 masters on a GPU.",
    )
    nodes: tuple[str, ...] = Field(
        default=(),
        description="Hosts of the ranks, reached by ssh with the same paths; none for this one.",
    )
    timeout_seconds: float = Field(
        default=7200, gt=0, description="How long an update may take before it is given up."
    )


class LearnerConfig(Section):
    """How weights are updated."""

    backend: Literal["torch", "deepspeed"] = Field(
        default="torch",
        description="torch: in this process; deepspeed: ZeRO on ranks of their own.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="Where it runs.")
    weights: Literal["lora", "full"] = Field(
        default="lora", description="What is trained: an adapter on a shared base, or the model."
    )
    lora: LoraConfig = Field(default=LoraConfig(), description="Adapter shape.")
    deepspeed: DeepspeedConfig = Field(default=DeepspeedConfig(), description="Ranks and ZeRO.")
    learning_rate: float = Field(default=2e-4, gt=0, description="Peak of the schedule.")
    warmup_fraction: Fraction = Field(
        default=0.0, description="Share of the steps spent warming up."
    )
    final_fraction: Fraction = Field(
        default=0.1, description="Last learning rate over the peak (cosine)."
    )
    betas: tuple[Decay, Decay] = Field(default=(0.9, 0.95), description="AdamW moments.")
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW decoupled decay.")
    gradient_clip: float = Field(default=1.0, gt=0, description="Largest global gradient norm.")
    epochs: Positive = Field(default=1, description="Passes over an iteration's actions.")
    minibatches: Positive = Field(default=1, description="Optimizer steps per pass.")
    micro_batch_tokens: Positive = Field(
        default=2048,
        description="Distinct tokens per forward pass; changes memory, never the result.",
    )
    updates_at_once: Positive = Field(
        default=1,
        description="Agents whose updates may overlap (deepspeed, with devices for all of them).",
    )
    gradient_checkpointing: bool = Field(
        default=False, description="Compute each layer twice and keep none of it in between."
    )
    keep_checkpoints: Positive | None = Field(
        default=None,
        description="Of each agent, the last so many and the best stay; null keeps all. Resuming "
        "needs the last one.",
    )


Estimator = Literal["reinforce++", "reinforce++-baseline", "reinforce", "rloo", "grpo", "dr-grpo"]
ALONE = ("reinforce++", "reinforce")
"""Estimators that compare an action with the whole batch, not with others of its problem."""


class MismatchConfig(Section):
    """What is done about a sampler whose probabilities are not quite the trainer's."""

    importance: Literal["none", "token"] = Field(
        default="token",
        description="token: weigh each token's loss by the trainer's probability over the "
        "sampler's, truncated; none: take the sampler's log-probs for the old policy's.",
    )
    threshold: float = Field(default=2.0, ge=1, description="The largest such weight.")
    sequence_mask: float | None = Field(
        default=None,
        gt=1,
        description="Leave an action out of the loss where the geometric mean of its ratios leaves "
        "[1 / this, this]; null leaves none out.",
    )


class GuardConfig(Section):
    """Bands; an update that leaves one is not taken. null: no bound."""

    mismatch_kl_max: float | None = Field(
        default=None, gt=0, description="KL of the sampler to the trainer per token, in nats."
    )
    effective_sample_size_min: Fraction | None = Field(
        default=None, description="Share of the tokens that the ratios leave effective."
    )
    clip_fraction_max: Fraction | None = Field(default=None, description="Share of clipped tokens.")
    entropy_min: float | None = Field(default=None, ge=0, description="Of the policy, in nats.")
    entropy_max: float | None = Field(default=None, gt=0, description="Of the policy, in nats.")
    grad_norm_max: float | None = Field(
        default=None, gt=0, description="Gradient norm before it is clipped."
    )


class AlgorithmConfig(Section):
    """How scores become gradients; every statistic is over one agent's batch, never a team's."""

    estimator: Estimator = Field(
        default="reinforce++-baseline",
        description="What an action is worth: reinforce++ (batch mean and deviation), "
        "reinforce++-baseline (minus the mean of the problem's actions first), reinforce (the "
        "reward), rloo (minus the mean of the others), grpo (problem's mean and deviation), "
        "dr-grpo (problem's mean).",
    )
    normalise_over: Literal["samples", "tokens"] = Field(
        default="samples", description="What mean and deviation of an agent's batch are taken over."
    )
    kl: Literal["none", "k1_reward", "k2_loss", "k3_loss"] = Field(
        default="none", description="Pull towards the base policy: in the reward, or as a loss."
    )
    kl_coefficient: float = Field(default=0.01, ge=0, description="Its strength.")
    ratio: Literal["token", "sequence"] = Field(
        default="token",
        description="Whose ratio is clipped: each token's (PPO) or the geometric mean over the "
        "action's tokens (GSPO).",
    )
    clip: float = Field(
        default=0.2, gt=0, lt=1, description="Half-width of the ratio's trust region."
    )
    clip_high: float | None = Field(
        default=None, gt=0, description="Its half-width upwards, where that differs (DAPO, GSPO)."
    )
    loss_over: Literal["samples", "tokens", "budget"] = Field(
        default="samples",
        description="Mean over each action's tokens then over actions; over tokens; or sum of an "
        "action's tokens over loss_budget_tokens, then mean over actions (Dr. GRPO).",
    )
    loss_budget_tokens: Positive = Field(
        default=4096, description="What budget divides by, whatever an action's length."
    )
    truncated: Literal["keep", "mask", "penalise"] = Field(
        default="keep",
        description="Actions that hit the token budget: as others; out of loss, baseline and "
        "normaliser; or with truncation_penalty off their reward, in all three.",
    )
    truncation_penalty: float = Field(
        default=0.5, gt=0, le=1, description="Of a reward in [0, 1]; for truncated=penalise."
    )
    mismatch: MismatchConfig = Field(
        default=MismatchConfig(), description="Sampler against trainer."
    )
    guard: GuardConfig = Field(default=GuardConfig(), description="When an update is not taken.")

    @property
    def kl_in_loss(self) -> bool:
        """Whether the pull moves weights whatever the advantages."""
        return self.kl in ("k2_loss", "k3_loss")

    @model_validator(mode="before")
    @classmethod
    def _of_an_earlier_version(cls, values: object) -> object:
        """Runs stored by an earlier version spelt two keys in another way."""
        if not isinstance(values, dict) or {"estimator", "truncated"} & values.keys():
            return cast(object, values)
        older = dict(cast(dict[str, object], values))
        if older.get("baseline") in BASELINES:
            older["estimator"] = BASELINES[str(older.pop("baseline"))]
        if isinstance(older.get("drop_truncated"), bool):
            older["truncated"] = "mask" if older.pop("drop_truncated") else "keep"
        return older


BASELINES = {"none": "reinforce++", "group": "reinforce++-baseline"}
"""The estimators by the key they had first."""


class EvaluationConfig(Section):
    """How policies are measured on held-out problems."""

    temperature: float = Field(
        default=0.6, ge=0, le=2, description="Sampling temperature; 0 is greedy."
    )
    samples: Positive = Field(default=1, description="K: episodes per held-out problem.")
    every: int = Field(
        default=0, ge=0, description="Also every so many iterations; 0 for ends only."
    )
    bootstrap: Positive = Field(default=10_000, description="Resamples of the paired interval.")


RESUMABLE = (
    "budget",
    "concurrency",
    "attempt_seconds",
    "deadline_seconds",
    "requests_per_minute",
    "tokens_per_minute",
    "unscored_limit",
    "base_url",
)
"""Keys of `coach` that a resumed run may change: they decide how it is asked, not what."""


StopOn = Literal["coach", "rubric", "policy", "health", "divergence", "unscored"]
"""What an audit may stop a run for."""


class TrackingConfig(Section):
    """What is shown in MLflow."""

    trace_share: Fraction = Field(
        default=1.0,
        description="Share of the episodes shown as MLflow traces with the coach's feedback.",
    )
    also: tuple[Literal["tensorboard"], ...] = Field(
        default=(), description="Where metrics go beside MLflow: event files in MAPPA_HOME."
    )


class AuditConfig(Section):
    """How the coach is watched while it teaches."""

    anchors: int = Field(
        default=8, ge=0, description="Actions scored again every iteration; 0 for no watch."
    )
    repeats: int = Field(
        default=3, ge=2, description="Scorings of each anchor that say what its score is."
    )
    stop_on: tuple[StopOn, ...] = Field(
        default=(),
        description="Stop the run when coach, rubric or policy has drifted, or on an alert about "
        "score health, divergence or unscored actions; a resumed run may change it.",
    )
    most_at_mode: Fraction = Field(
        default=0.95, description="Share of an agent's scores at one value that raises an alert."
    )
    most_at_ceiling: Fraction = Field(
        default=0.9, description="Share of an agent's scores at 10 that raises an alert."
    )
    least_entropy_bits: float = Field(
        default=0.3,
        ge=0,
        description="Entropy of an agent's scores below which an alert is raised.",
    )
    most_unparsed: Fraction = Field(
        default=0.05, description="Share of replies nobody could read that raises an alert."
    )
    divergence: float = Field(
        default=0.1,
        ge=0,
        description="Change of score / 10 minus success over the run that raises an alert, once "
        "its interval lies above.",
    )
    unscored_points: float = Field(
        default=1.0,
        gt=0,
        description="Points by which missing scores could bias a task type that raise an alert.",
    )
    correction: str = Field(
        default="",
        description="Take a bias off before scores teach: a correction's id, or the name of the "
        "run it was estimated on (`mappa audit RUN --debias`).",
    )


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
    problems: ProblemsConfig = Field(
        default=ProblemsConfig(), description="Train and held-out sets."
    )
    rollout: RolloutConfig = Field(default=RolloutConfig(), description="Episodes.")
    engine: EngineConfig = Field(default=EngineConfig(), description="Inference.")
    sandbox: SandboxConfig = Field(default=SandboxConfig(), description="Code execution.")
    coach: CoachConfig = Field(default=CoachConfig(), description="Scores.")
    learner: LearnerConfig = Field(default=LearnerConfig(), description="Updates.")
    algorithm: AlgorithmConfig = Field(default=AlgorithmConfig(), description="Credit.")
    evaluation: EvaluationConfig = Field(default=EvaluationConfig(), description="Measurement.")
    tracking: TrackingConfig = Field(default=TrackingConfig(), description="MLflow.")
    audit: AuditConfig = Field(default=AuditConfig(), description="Watching the coach.")

    @model_validator(mode="after")
    def _can_be_run(self) -> "TrainConfig":
        if self.learner.weights == "full" and self.engine.serving == "adapters":
            raise ValueError(
                "learner.weights=full trains no adapters: set engine.serving to auto or merged"
            )
        estimator = self.algorithm.estimator
        if estimator not in ALONE and self.rollout.episodes_per_problem < 2:
            raise ValueError(
                f"algorithm.estimator={estimator} compares a problem's episodes: set "
                "rollout.episodes_per_problem to 2 or more, or algorithm.estimator=reinforce++"
            )
        return self

    def same_experiment(self, other: "TrainConfig") -> tuple[str, ...]:
        """The sections in which `other` differs; how patient and rich the coach is does not count.

        A run whose budget is spent can be resumed with a larger one, and one that the audit
        stopped with another opinion of what to stop for.
        """
        left_out: dict[str, set[str]] = {"coach": {*RESUMABLE}, "audit": {"stop_on"}}
        ours, theirs = (one.model_dump(mode="json", exclude={**left_out}) for one in (self, other))
        return tuple(sorted(key for key in ours if ours[key] != theirs[key]))
