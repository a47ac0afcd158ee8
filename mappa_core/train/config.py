"""Configures how agents learn: weights, optimiser, estimator, guards."""

from typing import Literal, cast

from pydantic import Field, model_validator

from mappa_core.core.section import Decay, Fraction, NonNegative, Positive, Section
from mappa_core.train.estimators import ESTIMATORS, EstimatorName


class LoraConfig(Section):
    """Each agent's own low-rank weights on the shared base."""

    rank: Positive = Field(default=16, description="Rank r of the update matrices.")
    alpha: Positive = Field(default=32, description="Scaling; the update is alpha / r * B A.")


class DeepspeedConfig(Section):
    """How updates are spread (ZeRO, arXiv 1910.02054)."""

    ranks: Positive = Field(default=1, description="Processes; one per GPU.")
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
    timeout_seconds: float = Field(
        default=7200,
        gt=0,
        description="How long ranks may do nothing of a task: fetch and load weights, read a "
        "micro-batch, write a tensor, store a checkpoint. An update may take any time; a resumed "
        "run may change it.",
    )

    @model_validator(mode="before")
    @classmethod
    def _of_an_earlier_version(cls, values: object) -> object:
        """Drop `nodes`, which runs of an earlier version stored empty; no other value worked."""
        if not isinstance(values, dict) or "nodes" not in values or values["nodes"]:
            return cast(object, values)
        return {
            key: value for key, value in cast(dict[str, object], values).items() if key != "nodes"
        }


class LearnerConfig(Section):
    """How weights are updated."""

    backend: Literal["torch", "deepspeed"] = Field(
        default="torch",
        description="torch: in this process; deepspeed: ZeRO on ranks of their own.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="Where it runs.")
    devices: Literal["auto"] | tuple[NonNegative, ...] = Field(
        default="auto",
        description="GPUs of the learner, by their place among the visible ones; auto: the first "
        "ones, one for each rank of each of updates_at_once. The torch learner has the first.",
    )
    deployment: str | None = Field(
        default=None,
        pattern=r"^update/[^/]+$",
        description="Deployment whose runs compute the updates, on workers of their own, e.g. "
        "update/gpu; null: the training run does.",
    )
    weights: Literal["lora", "full"] = Field(
        default="lora", description="What is trained: an adapter on a shared base, or the model."
    )
    lora: LoraConfig = Field(default=LoraConfig(), description="Adapter shape.")
    dtype: Literal["auto", "native", "float32", "bfloat16"] = Field(
        default="auto",
        description="Of matrix products and a frozen base; what is trained, softmax, log-probs and "
        "loss are float32 always. auto: bfloat16 on a GPU, and on a CPU that has units for it "
        "(AVX512-BF16, AMX), float32 on any other; native: as auto, once its name on trial.",
    )
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
        description="Distinct tokens computed at once, or padded ones where the model is read "
        "padded: by one forward pass, or by two beside each other on a CPU; changes memory, and "
        "the result by rounding alone; a resumed run may change it.",
    )
    reading: Literal["auto", "tree", "padded"] = Field(
        default="auto",
        description="tree: shared prefixes once; padded: each sequence in full; auto: the tree, or "
        "padded for a model that it would read wrongly. Checked at load against the model itself.",
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


class MismatchConfig(Section):
    """What is done about a sampler whose probabilities are not quite the trainer's."""

    importance: Literal["none", "token"] = Field(
        default="token",
        description="token: weigh each token's loss by the trainer's probability over the "
        "sampler's, truncated; none: take the sampler's log-probs for the old policy's.",
    )
    threshold: float = Field(default=2.0, ge=1, description="The largest such weight.")
    dead_band: float = Field(
        default=1e-3,
        ge=0,
        lt=1,
        description="Where the two log-probs differ by this much or less, the weight is 1 to the "
        "bit: an engine's rounding, which depends on its batches, moves no weights.",
    )
    sequence_mask: float | None = Field(
        default=None,
        gt=1,
        description="Leave an action out of the loss where the geometric mean of its ratios leaves "
        "[1 / this, this]; null leaves none out.",
    )


class GuardConfig(Section):
    """Bands; an update that leaves one is not taken. null: no bound."""

    mismatch_kl_max: float | None = Field(
        default=0.5,
        gt=0,
        description="KL of the sampler to the trainer per token, in nats: 1e-10 for a float32 "
        "engine, 0.002 in bfloat16, 0.07 for weights one update old; above it something is wrong.",
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

    estimator: EstimatorName = Field(
        default="reinforce++-baseline",
        description="What an action is worth: "
        + "; ".join(f"{name} ({one.summary})" for name, one in ESTIMATORS.items())
        + ".",
    )
    credit: Literal["action", "return", "team"] = Field(
        default="action",
        description="What an action is held to account for: its own score; the sum of its and the "
        "agent's later scores in the episode; or the mean of its and all agents' later ones.",
    )
    discount: Fraction = Field(
        default=1.0,
        description="Of a score by each of the agent's actions it is ahead; for return.",
    )
    normalise_over: Literal["samples", "tokens"] = Field(
        default="samples",
        description="What mean and mean square of an agent's batch are taken over.",
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
        default="tokens",
        description="Mean over each action's tokens then over actions, which favours short ones "
        "(biased, see learning.md); over all tokens (DAPO); or sum of an action's tokens over "
        "loss_budget_tokens, then mean over actions (Dr. GRPO).",
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
        """Tell whether the pull moves weights whatever the advantages."""
        return self.kl in ("k2_loss", "k3_loss")

    @model_validator(mode="after")
    def _discounts_a_return(self) -> "AlgorithmConfig":
        if self.credit != "return" and self.discount != 1:
            raise ValueError(
                f"discount={self.discount:g} is of a return: set algorithm.credit=return, or leave "
                "algorithm.discount at 1"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _of_an_earlier_version(cls, values: object) -> object:
        """Read two keys that runs stored by an earlier version spelt in another way."""
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
