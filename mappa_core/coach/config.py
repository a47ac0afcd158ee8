"""Which coach scores, what it may cost, and what it is asked."""

from typing import TYPE_CHECKING, Literal, TypeAlias

from pydantic import Field, model_validator

from mappa_core.coach.provider_table import PROVIDERS
from mappa_core.core.records.scores import LabelVisibility
from mappa_core.core.section import Fraction, Positive, Section

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


class CoachModelConfig(Section):
    """One coach: which it is, how it is asked, how hard."""

    backend: Backend = Field(
        default=RULE,
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
    attempt_seconds: float = Field(default=60.0, gt=0, description="How long one call may take.")
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
        effort = row is not None and row.thinking == "reasoning_effort"
        if self.reasoning_effort is not None and not effort:
            raise ValueError(f"backend {self.backend} takes thinking_budget, not reasoning_effort")
        if self.thinking_budget is not None and effort:
            raise ValueError(f"backend {self.backend} takes reasoning_effort, not thinking_budget")
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

    @property
    def scoring(self) -> tuple[CoachModelConfig, ...]:
        """The coaches that score anything."""
        return (self, self.second) if self.second.share else (self,)
