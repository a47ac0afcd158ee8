"""Coaches and their providers, as configured."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module

from mappa_core.coach import providers
from mappa_core.coach.budget import Budget
from mappa_core.coach.config import RULE, CoachConfig, CoachModelConfig
from mappa_core.coach.forecast import Forecast
from mappa_core.coach.llm_coach import LlmCoach
from mappa_core.coach.protocols import Coach
from mappa_core.coach.provider_table import PROVIDERS
from mappa_core.coach.providers.provider import Provider
from mappa_core.coach.rubrics import RubricSet, load_rubrics, renamed_rubrics, reversed_rubrics
from mappa_core.coach.rules import load_rules
from mappa_core.coach.rules.coach import RuleCoach
from mappa_core.coach.told import DIGITS, told, way_of_asking
from mappa_core.core import ids
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings
from mappa_core.core.text import common_name
from mappa_core.models.serving.server import Elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class CoachedTeam:
    """What a coach has to know of a team before it scores."""

    name: str
    agents: tuple[str, ...]
    rules: str | None
    """Its set in `rules.RULE_SETS`; None where the rule coach has none for it."""
    rubrics: str
    """Its folder of rubric sets."""


def check_coaches(config: CoachConfig, settings: Settings, team: CoachedTeam) -> None:
    """Refuse coaches of a run that could not answer.

    Raises:
        ConfigError: As `check_coach`.
    """
    for coach in config.scoring:
        check_coach(coach, settings, team)


def check_coach(
    config: CoachModelConfig, settings: Settings, team: CoachedTeam
) -> RubricSet | None:
    """Refuse a coach that could not answer; returns its rubrics, None for the rule coach.

    Raises:
        ConfigError: A key, a rubric set or an agent's rubric is missing.
    """
    key = needed_key(config)
    if key is not None and settings.secret(key) is None:
        raise ConfigError(f"coach backend {config.backend} needs {key} in the environment")
    return coach_rubrics(config, team)


def needed_key(config: CoachModelConfig) -> str | None:
    """Name the environment variable without which a coach cannot be asked, if any."""
    row = PROVIDERS.get(config.backend)
    if row is None or (row.keyless_at_base_url and config.base_url):
        return None
    return row.needs


def may_cost(config: CoachModelConfig, expected: Forecast) -> bool:
    """Tell whether asking so much may cost money: a key is needed, or a price configured."""
    return needed_key(config) is not None or expected.cost_usd > 0


def coach_rubrics(config: CoachModelConfig, team: CoachedTeam) -> RubricSet | None:
    """Load the rubrics of a coach's model; None for the rule coach.

    Raises:
        ConfigError: A rubric set or an agent's rubric is missing.
    """
    if config.backend == RULE:
        return None
    rubrics = with_peers(load_rubrics(team.rubrics, config.rubric), team.agents)
    without = [agent for agent in team.agents if agent not in rubrics.rubrics]
    if without:
        raise ConfigError(f"rubric set {rubrics.name} has no file for {', '.join(without)}")
    return rubrics


def with_peers(rubrics: RubricSet, agents: Sequence[str]) -> RubricSet:
    """The rubrics with that of the first of numbered peers for those that have no file."""
    peers = {
        agent: rubrics.rubrics[first].model_copy(update={"agent": agent})
        for agent in agents
        if agent not in rubrics.rubrics and (first := f"{common_name(agent)}_1") in rubrics.rubrics
    }
    return rubrics.model_copy(update={"rubrics": {**rubrics.rubrics, **peers}})


def coach_provenance(config: CoachConfig, team: CoachedTeam) -> dict[str, str]:
    """Name what the coaches judge by: versions of rules, fingerprints of what models are told."""
    second = judged_by(config.second, team) if config.second.share else {}
    return judged_by(config, team) | {f"second_coach.{name}": of for name, of in second.items()}


def judged_by(config: CoachModelConfig, team: CoachedTeam) -> dict[str, str]:
    """Name what one coach judges by: a version of rules, or a fingerprint of what it is told."""
    rubrics = coach_rubrics(config, team)
    if rubrics is None:
        return {"rules": f"{team.rules} {load_rules(team.rules).version}"}
    words = {agent: told(rubrics.rubrics[agent], config) for agent in team.agents}
    return {f"rubrics.{agent}": ids.fingerprint(text) for agent, text in words.items()} | {
        "asking": way_of_asking(config)[:DIGITS]
    }


def open_coaches(
    config: CoachConfig,
    settings: Settings,
    team: CoachedTeam,
    stack: AsyncExitStack,
    elsewhere: Elsewhere | None = None,
) -> tuple[Coach, Coach | None]:
    """Open the coach and, where a share of the actions is to have one, the second coach.

    `elsewhere` has the servers of local coaches; None: they are on this machine.

    Raises:
        ConfigError: As `check_coach`.
    """
    given = (team, Budget(config.budget), stack, elsewhere)
    coach = _open_coach(config, settings, *given)
    if not config.second.share:
        return coach, None
    return coach, _open_coach(config.second, settings, *given)


async def start_coaches(*coaches: Coach | None) -> None:
    """Bring up the servers that coaches are asked through; the first question would do so, too.

    Raises:
        EngineError: One does not start.
    """
    for coach in coaches:
        if isinstance(coach, LlmCoach):
            await coach.start()


def _open_coach(
    config: CoachModelConfig,
    settings: Settings,
    team: CoachedTeam,
    budget: Budget,
    stack: AsyncExitStack,
    elsewhere: Elsewhere | None = None,
) -> Coach:
    rubrics = check_coach(config, settings, team)
    if rubrics is None:
        return RuleCoach(team.rules)
    coach = LlmCoach(open_provider(config, settings, elsewhere), rubrics, config, budget)
    stack.push_async_callback(coach.close)
    return coach


def open_provider(
    config: CoachModelConfig, settings: Settings, elsewhere: Elsewhere | None = None
) -> Provider:
    """Open a provider's client; their libraries take a second each to import, so on demand.

    `elsewhere` has its server, where that is ours; None: it is on this machine.
    """
    module = import_module(f"{providers.__name__}.{PROVIDERS[config.backend].module}")
    if config.is_local:
        return module.open_provider(config, settings, elsewhere)
    return module.open_provider(config, settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeCoaches:
    """The coaches that a probe asks before one of them trains a team."""

    coach: Coach
    reversed: Coach | None = None
    """The same with its rubrics in the opposite order; None where it has none."""
    rubrics: RubricSet | None = None
    renamed: Coach | None = None
    """The same with each rubric under the name that `names` gives its agent; None likewise."""
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    """By agent, the name of another."""


@asynccontextmanager
async def open_probe_coaches(
    config: CoachConfig, settings: Settings, team: CoachedTeam
) -> AsyncGenerator[ProbeCoaches]:
    """Open the coach alone, to ask it questions outside a run.

    Raises:
        ConfigError: As `check_coach`.
    """
    async with AsyncExitStack() as stack:
        yield probe_coaches(_open_coach(config, settings, team, Budget(config.budget), stack))


def probe_coaches(coach: Coach) -> ProbeCoaches:
    """The open coach with its variants, which share its provider and its budget."""
    if not isinstance(coach, LlmCoach):
        return ProbeCoaches(coach=coach)
    rubrics = coach.rubrics
    names = _next_names(tuple(rubrics.rubrics))
    return ProbeCoaches(
        coach=coach,
        reversed=coach.under(reversed_rubrics(rubrics)),
        rubrics=rubrics,
        renamed=coach.under(renamed_rubrics(rubrics, names)),
        names=names,
    )


def _next_names(agents: Sequence[str]) -> dict[str, str]:
    """Give each agent the next one's name; a lone agent gets a new one."""
    others = [*agents[1:], agents[0]] if len(agents) > 1 else [f"{agents[0]}_2"]
    return dict(zip(agents, others, strict=True))
