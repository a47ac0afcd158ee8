"""Which coach scores, what it may cost, and what it is asked."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

from pydantic import Field, model_validator

from mappa_core.coach.provider_table import PROVIDERS
from mappa_core.core.records.scores import LabelVisibility
from mappa_core.core.section import Fraction, Positive, Section

BRIEF_SPARE = 64
"""Tokens of a local coach's brief reply beside its texts."""
FULL_REPLY = 800
"""Tokens that a local coach's full reply must have room for: names, marks and their form."""
RULE = "rule"
"""The backend that asks no model."""
if TYPE_CHECKING:
    Backend: TypeAlias = str
else:
    # Of the table, so that a new provider is a row there and nothing here.
    Backend = Literal[(RULE, *PROVIDERS)]


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


class ServerConfig(Section):
    """The vLLM server that a local coach is asked through; coaches that say the same share it."""

    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="Where it runs.")
    dtype: Literal["bfloat16", "float32"] = Field(
        default="bfloat16", description="Of its weights and its cache."
    )
    max_model_length: Positive = Field(
        default=8192, description="Prompt plus sampled tokens, at most."
    )
    kv_cache_gib: float = Field(
        default=1.0,
        gt=0,
        description="Key-value cache; on a GPU at least that of one longest sequence.",
    )
    gpu_memory_utilization: Fraction = Field(
        default=0.3, description="Share of a GPU that must be free when it starts."
    )
    calls: Positive = Field(
        default=8, description="Computed at once, at most; others wait here and not in the server."
    )
    rationale_characters: Positive | None = Field(
        default=None,
        description="A reply is a rationale of so many characters at most, right or wrong, and the "
        "score; null asks for marks by criterion and who is to blame, too.",
    )
    start_seconds: float = Field(default=300, gt=0, description="How long it may take to start.")
    restarts: int = Field(default=3, ge=0, description="After it died, before the run stops.")


class CoachModelConfig(Section):
    """One coach: which it is, how it is asked, how hard."""

    backend: Backend = Field(
        default=RULE,
        description="rule reads the evidence itself; gemini, vertex, anthropic and openai (any "
        "server that speaks its protocol) ask a model; local asks one on a server that it starts.",
    )
    model: str = Field(
        default="",
        description="The model's name, as its provider spells it; for local a Hugging Face id, a "
        "path, or a model of `mappa coach-model`.",
    )
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
    own_solution: bool = Field(
        default=False,
        description="Solve each task first, once, and judge with that solution at hand; for a "
        "model that solves what it cannot judge (reference-guided, arXiv 2306.05685).",
    )
    prices: PricesConfig = Field(
        default=PricesConfig(), description="What tokens cost; those of local cost nothing."
    )
    context_cache: ContextCacheConfig = Field(
        default=ContextCacheConfig(), description="Explicit caching of the rubric."
    )
    server: ServerConfig = Field(default=ServerConfig(), description="Of a local coach.")
    attempt_seconds: float = Field(
        default=60.0,
        gt=0,
        description="How long one call may take; of local, how long its server may be silent.",
    )
    deadline_seconds: float = Field(
        default=600.0, gt=0, description="How long one score may take, retries and waits included."
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
        if self.backend != RULE and not self.model:
            raise ValueError(f"backend {self.backend} needs a model: set model to its name")
        row = PROVIDERS.get(self.backend)
        if self.context_cache.enabled and (row is None or not row.keeps_contexts):
            raise ValueError(f"backend {self.backend} has no context_cache: leave it off")
        takes = None if row is None else row.thinking
        for key in ("thinking_budget", "reasoning_effort"):
            if getattr(self, key) is not None and key != takes:
                has = f"takes {takes}" if takes else "cannot be told how long to think"
                raise ValueError(f"backend {self.backend} {has}, not {key}")
        self._check_local()
        return self

    def _check_local(self) -> None:
        if not self.is_local:
            return
        if self.base_url is not None:
            raise ValueError("backend local starts its own server: for another one take openai")
        if self._longest_reply > self.max_output_tokens:
            raise ValueError(
                f"max_output_tokens={self.max_output_tokens} may cut a reply: it takes "
                f"{self._longest_reply}"
            )

    @property
    def _longest_reply(self) -> int:
        """Tokens of a local coach's reply, at most: one a character, in scripts the model knows."""
        if self.server.rationale_characters is None:
            return FULL_REPLY
        return self.server.rationale_characters * (2 if self.correction else 1) + BRIEF_SPARE

    @property
    def is_local(self) -> bool:
        """Tell whether MAPPA serves the model itself."""
        row = PROVIDERS.get(self.backend)
        return row is not None and row.is_ours

    @property
    def server_key(self) -> tuple[str, str]:
        """Name what its server is started with: coaches of the same key share one."""
        return self.model, self.server.model_dump_json(exclude={"rationale_characters"})

    @property
    def charged(self) -> PricesConfig:
        """What its tokens cost: nothing on a server of ours, whatever provider was meant before."""
        return PricesConfig() if self.is_local else self.prices

    @property
    def calls_at_once(self) -> int:
        """How many calls are in flight, at most."""
        return min(self.concurrency, self.server.calls) if self.is_local else self.concurrency


class SecondCoachConfig(CoachModelConfig):
    """A second opinion; its scores are stored and never trained on."""

    share: Fraction = Field(default=0.0, description="Of the actions, those it also scores.")


class BudgetConfig(Section):
    """What one run may spend on coaches; what does not fit is left unscored."""

    calls: Positive | None = Field(default=None, description="Calls, failed ones included.")
    tokens: Positive | None = Field(default=None, description="Prompt and sampled tokens.")
    dollars: float | None = Field(default=None, gt=0, description="By the configured prices.")


class CoachConfig(CoachModelConfig):
    """Which coach scores the actions."""

    unscored_limit: Fraction = Field(
        default=0.1, description="Unscored share of an iteration above which the run stops."
    )
    exam: Literal["auto", "require", "advise", "never"] = Field(
        default="auto",
        description="Whether the coach sits an exam first, once for all runs that ask it alike: "
        "auto where asking costs nothing, require always, advise always and trains under a coach "
        "that fails.",
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

    @model_validator(mode="before")
    @classmethod
    def _second_shares_the_server(cls, given: object) -> object:
        """Let a second coach of the same local model have the first one's server.

        What it says of `server` itself holds; where that is another one, it has one of its own.
        """
        match given:
            case {
                "server": Mapping() as server,
                "second": {"backend": backend, "model": model, **rest} as second,
                **others,
            } if (backend, model) == (others.get("backend"), others.get("model")):
                own = rest.get("server", {})
                merged = {**server, **own} if isinstance(own, Mapping) else own
                return {**others, "server": server, "second": {**second, "server": merged}}
            case _:
                return given

    @property
    def scoring(self) -> tuple[CoachModelConfig, ...]:
        """The coaches that score anything."""
        return (self, self.second) if self.second.share else (self,)

    @property
    def served(self) -> tuple[CoachModelConfig, ...]:
        """One local coach for each server that scoring takes."""
        by_server = {each.server_key: each for each in self.scoring if each.is_local}
        return tuple(by_server.values())
