"""Coaches and their providers, as configured."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from pydantic import SecretStr

from mappa_core.app.config import TrainConfig
from mappa_core.coach.budget import Budget
from mappa_core.coach.config import CoachConfig, CoachModelConfig
from mappa_core.coach.llm_coach import LlmCoach
from mappa_core.coach.protocols import Coach
from mappa_core.coach.providers.provider import Provider
from mappa_core.coach.rubrics import RubricSet, load_rubrics, turned_round
from mappa_core.coach.rules.coach import RuleCoach
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings
from mappa_core.rollout.teams import load_team
from mappa_core.rollout.teams.base import Team


def check_coach(config: CoachModelConfig, settings: Settings, team: Team) -> RubricSet | None:
    """Refuse a coach that could not answer; returns its rubrics, None for the rule coach.

    Raises:
        ConfigError: A key, a rubric set or an agent's rubric is missing.
    """
    if config.backend == "rule":
        return None
    missing = {
        "gemini": settings.google_api_key is None and "GOOGLE_API_KEY",
        "vertex": settings.vertex_project is None and "VERTEX_PROJECT",
        "anthropic": settings.anthropic_api_key is None and "ANTHROPIC_API_KEY",
        # A server of one's own asks for no key.
        "openai": settings.openai_api_key is None and not config.base_url and "OPENAI_API_KEY",
    }[config.backend]
    if missing:
        raise ConfigError(f"coach backend {config.backend} needs {missing} in the environment")
    rubrics = load_rubrics(team.name, config.rubric)
    without = [agent.name for agent in team.agents if agent.name not in rubrics.rubrics]
    if without:
        raise ConfigError(f"rubric set {rubrics.name} has no file for {', '.join(without)}")
    return rubrics


def open_coaches(
    config: CoachConfig, settings: Settings, team: Team, stack: AsyncExitStack
) -> tuple[Coach, Coach | None]:
    """The coach and, where a share of the actions is to have one, the second coach.

    Raises:
        ConfigError: As `check_coach`.
    """
    budget = Budget(config.budget)
    coach = open_coach(config, settings, team, budget, stack)
    if not config.second.share:
        return coach, None
    return coach, open_coach(config.second, settings, team, budget, stack)


def open_coach(
    config: CoachModelConfig,
    settings: Settings,
    team: Team,
    budget: Budget,
    stack: AsyncExitStack,
) -> Coach:
    """One coach as configured; closed with `stack`.

    Raises:
        ConfigError: As `check_coach`.
    """
    rubrics = check_coach(config, settings, team)
    if rubrics is None:
        return RuleCoach()
    coach = LlmCoach(_provider(config, settings), rubrics, config, budget)
    stack.push_async_callback(coach.close)
    return coach


def _provider(config: CoachModelConfig, settings: Settings) -> Provider:
    """The provider's client; their libraries take a second each to import, so only on demand."""
    if config.backend == "openai":
        from mappa_core.coach.providers.openai import OpenAiProvider

        return OpenAiProvider(config, _secret(settings.openai_api_key))
    if config.backend == "anthropic":
        from mappa_core.coach.providers.anthropic import AnthropicProvider

        return AnthropicProvider(config, _secret(settings.anthropic_api_key) or "")
    from mappa_core.coach.providers.gemini import gemini_provider, vertex_provider

    if config.backend == "gemini":
        return gemini_provider(config, _secret(settings.google_api_key) or "")
    return vertex_provider(
        config,
        settings.vertex_project or "",
        settings.vertex_location,
        settings.google_credentials,
    )


def _secret(value: SecretStr | None) -> str | None:
    return None if value is None else value.get_secret_value()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedCoach:
    """A coach that is questioned before it trains anybody."""

    coach: Coach
    turned_round: Coach | None = None
    """The same with its rubric in the opposite order; None where it has none."""
    rubrics: RubricSet | None = None


@asynccontextmanager
async def opened_coach(config: TrainConfig, settings: Settings) -> AsyncGenerator[ProbedCoach]:
    """The coach of a configuration alone, for who only asks it.

    Raises:
        ConfigError: As `check_coach`.
    """
    team = load_team(config.team, config.prompts)
    rubrics = check_coach(config.coach, settings, team)
    budget = Budget(config.coach.budget)
    async with AsyncExitStack() as stack:
        coach = open_coach(config.coach, settings, team, budget, stack)
        if rubrics is None:
            yield ProbedCoach(coach=coach)
            return
        other = LlmCoach(
            _provider(config.coach, settings), turned_round(rubrics), config.coach, budget
        )
        stack.push_async_callback(other.close)
        yield ProbedCoach(coach=coach, turned_round=other, rubrics=rubrics)
