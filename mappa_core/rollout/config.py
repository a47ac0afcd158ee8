"""How episodes are played: problems, rollout, engine, sandbox."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field

from mappa_core.core.section import Fraction, NonNegative, Positive, Section
from mappa_core.rollout.source_table import SOURCES

if TYPE_CHECKING:
    SourceName: TypeAlias = str
else:
    # Of the table, so that a new source is a row there and nothing here.
    SourceName = Literal[(*SOURCES,)]
Runtime = Literal["standard-library", "data-science"]
_NO_VARIABLES = frozenset(
    {
        *("conversation", "messages", "tools", "documents", "chat_template", "tokenize"),
        *("add_generation_prompt", "continue_final_message", "padding", "truncation"),
        *("max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask"),
        "tokenizer_kwargs",
    }
)
"""Arguments of transformers' `apply_chat_template` itself."""


def _template_variable(name: str) -> str:
    if name in _NO_VARIABLES:
        raise ValueError(f"{name} is not a variable of the chat template: leave it off")
    return name


TemplateVariable = Annotated[str, AfterValidator(_template_variable)]
Address = Annotated[str, Field(pattern=r"^https?://[^\s/?#@]+$")]
"""Of a server: scheme, host and port."""


class ProblemsConfig(Section):
    """Which problems are trained on and which are held out."""

    source: SourceName = Field(
        default="arithmetic",
        description="Where problems come from: "
        + ", ".join(f"{name} ({row.summary})" for name, row in SOURCES.items())
        + ".",
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
    skip_unusable: bool = Field(
        default=False,
        description="Leave out tasks that cannot be played or graded, and name them in one line, "
        "instead of refusing the start (dsbench).",
    )
    train_size: Positive = Field(default=400, description="How many problems training draws from.")
    held_out_size: Positive = Field(default=64, description="How many problems are held out.")
    sample: Literal["first", "seeded"] = Field(
        default="first",
        description="Which problems of longer files (json): the first, or a sample by seed "
        "with as many of each task type and, within it, of each decade; tasks with tables are "
        "always sampled by type.",
    )
    seed: int = Field(
        default=0, ge=0, description="Seed of the split; the same for every run by default."
    )

    def within(self, base: Path | None) -> Self:
        """The same, with files of relative names in `base`; None leaves them as they are."""
        if base is None:
            return self
        alone = {
            name: base / path
            for name, path in (("prompts_file", self.prompts_file), ("folder", self.folder))
            if path is not None
        }
        return self.model_copy(
            update={
                **alone,
                "train_files": tuple(base / file for file in self.train_files),
                "held_out_files": tuple(base / file for file in self.held_out_files),
            }
        )


class RolloutConfig(Section):
    """How episodes are played."""

    iterations: Positive = Field(default=10, description="Rounds of rollout and update.")
    problems: Positive = Field(default=12, description="P: problems per iteration.")
    draw: Literal["shuffled", "stratified"] = Field(
        default="shuffled",
        description="stratified: every iteration has of each task type what all problems have of "
        "it; shuffled leaves that to chance.",
    )
    episodes_per_problem: Positive = Field(default=4, description="G: episodes per problem.")
    temperature: float = Field(
        default=1.0,
        gt=0,
        le=2,
        description="Sampling temperature while training, and of every log-prob and entropy that "
        "the update reads. Not 0: greedy actions of one prompt are all the same.",
    )
    top_p: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Nucleus mass. Below 1 a run is refused: what is cut has no importance ratio.",
    )
    max_tokens: Positive = Field(default=96, description="Sampled tokens per action, at most.")
    agent_tokens: dict[str, Positive] = Field(
        default={}, description="The same for single agents by name, e.g. for those that think."
    )
    thought_tokens: Positive | None = Field(
        default=None,
        description="Sampled tokens after which a thought that is still open is closed, so that "
        "the rest of the action's tokens are its answer; the closing tag is not learnt from. null "
        "lets thoughts end themselves, or run into max_tokens.",
    )
    agent_thought_tokens: dict[str, Positive] = Field(
        default={}, description="The same for single agents by name."
    )
    chat_template_kwargs: dict[TemplateVariable, bool | str] = Field(
        default={},
        description="Variables of the model's chat template, as transformers and vLLM call them, "
        "e.g. enable_thinking: false for Qwen3.",
    )
    agent_turns: dict[str, Positive] = Field(
        default={},
        description="Turns of an episode at most, by agent, for those that may act again; "
        "numbered peers by their common name (debater: the rounds of a debate).",
    )
    debaters: int | None = Field(
        default=None, ge=2, le=9, description="How many debate; default 3. Of team debate alone."
    )
    concurrency: Positive = Field(default=64, description="Episodes in flight at once.")
    async_level: Literal[0, 1] = Field(
        default=0,
        description="1: while agents learn from an iteration the next one is played, by policies "
        "one update older; 0: policies are always the newest.",
    )
    granularity: Literal["auto", "rollout", "episode", "action"] = Field(
        default="auto",
        description="What becomes a Prefect task run: a whole episode, or each action, program and "
        "call as well; auto records actions while that takes at most 5 % of the time and Prefect "
        "loses none. rollout: none of them, for thousands of episodes; the store has them all.",
    )

    def tokens_of(self, agent: str) -> int:
        """Sampled tokens per action of `agent`, at most."""
        return self.agent_tokens.get(agent, self.max_tokens)

    def thought_tokens_of(self, agent: str) -> int | None:
        """Sampled tokens after which a thought of `agent` is closed; None for never."""
        return self.agent_thought_tokens.get(agent, self.thought_tokens)


class EngineConfig(Section):
    """What samples tokens."""

    backend: Literal["vllm", "transformers"] = Field(default="vllm", description="Which engine.")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="Where it runs.")
    dtype: Literal["auto", "native", "float32", "bfloat16"] = Field(
        default="auto",
        description="auto: bfloat16 on a GPU, and on a CPU that has units for it (AVX512-BF16, "
        "AMX), float32 on any other; float32: exact log-probs; native: as auto, its name when it "
        "was on trial.",
    )
    serving: Literal["auto", "merged", "adapters"] = Field(
        default="auto",
        description="merged: one server per agent with its LoRA merged in (fast on a CPU); "
        "adapters: one server with every agent's LoRA (a GPU). auto picks by device.",
    )
    weight_sync: Literal["reload", "ipc", "nccl"] = Field(
        default="reload",
        description="How merged or whole weights reach vLLM: its servers read a checkpoint and "
        "merge an adapter themselves, or are sent them through GPU memory by vLLM's own weight "
        "transfer, within one GPU (ipc) or from another (nccl); both are experimental: no GPU has "
        "run them yet.",
    )
    max_model_length: Positive = Field(
        default=1024, description="Prompt plus sampled tokens, at most."
    )
    kv_cache_gib: float = Field(
        default=1.0, gt=0, description="Key-value cache of each CPU server."
    )
    gpu_memory_utilization: Fraction = Field(
        default=0.6, description="Share of a GPU the servers may take, all together."
    )
    urls: tuple[Address, ...] = Field(
        default=(),
        description="Addresses of vLLM servers that are running already, as http://10.0.0.5:8000; "
        "none: servers of our own. What they must be started with is in docs/scaling.md.",
    )
    devices: Literal["auto"] | tuple[NonNegative, ...] = Field(
        default="auto",
        description="GPUs of the servers, by their place among the visible ones; auto: those that "
        "the learner leaves, or all where it leaves too few or servers sleep.",
    )
    tensor_parallel: Positive = Field(
        default=1,
        description="GPUs that each server's weights are spread over; above 1 experimental.",
    )
    replicas: Literal["auto"] | Positive = Field(
        default="auto",
        description="Servers that serve each policy alike; a problem's requests stay with one. "
        "auto: as many as there are GPUs for; 1 on a CPU.",
    )
    colocate: Literal["auto"] | bool = Field(
        default="auto",
        description="Servers sleep, weights in the CPU's memory, while agents learn. auto: where "
        "they share a GPU with the learner and rollout.async_level is 0; true: and have all GPUs.",
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
    workspace_mib: Positive = Field(
        default=64, description="All files together: a task's, what earlier turns left, new ones."
    )
    file_mib: Positive = Field(
        default=16, description="One file that a program leaves; a larger one is not handed on."
    )
    concurrency: Positive = Field(default=4, description="Runs at once.")
