"""What is refused before anything is written, because the user can mend it."""

from difflib import get_close_matches
from pathlib import Path

from mappa_core.app.config import TrainConfig
from mappa_core.app.machine import check_space
from mappa_core.coach.opening import CoachedTeam, check_coaches
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.runs import Run
from mappa_core.core.settings import Settings
from mappa_core.rollout.engines import check_engine
from mappa_core.rollout.episode_files import open_files
from mappa_core.rollout.problems import problem_source
from mappa_core.rollout.problems.drawing import check_enough
from mappa_core.rollout.teams import load_team
from mappa_core.rollout.teams.base import Team
from mappa_core.rollout.tools.opening import check_tools
from mappa_core.tracking.opening import check_tracking

WEIGHTS = {"team": True, "model": True, "learner": {"weights": True, "lora": True}}
"""Keys that decide which weights fit."""


def check_weights(policy: PolicyVersion) -> None:
    """Read the files of a policy against their hashes; the base model has none.

    Raises:
        LearnerError: A file is missing or damaged.
    """
    from mappa_core.train import checkpoints

    if policy.adapter_uri is not None:
        checkpoints.verify(Path(policy.adapter_uri))


def check_trains(run: Run) -> None:
    """Refuse a run that makes no weights.

    Raises:
        ConfigError: It is an evaluation of another run.
    """
    if run.measures is not None:
        raise ConfigError(
            f"run {run.name} only measures run {run.measures}: name that one, or go on measuring "
            "with `mappa evaluate`"
        )


def check_same_weights(run: Run, config: TrainConfig, what: str) -> None:
    """Refuse a configuration that does not fit the weights that `run` trains.

    Raises:
        ConfigError: It trains none, or `what` would have other ones.
    """
    check_trains(run)
    theirs = TrainConfig.model_validate(run.config)
    if config.model_dump(include=WEIGHTS) != theirs.model_dump(include=WEIGHTS):
        raise ConfigError(
            f"run {run.name} trains other weights: {what} keeps team, model, learner.weights "
            "and learner.lora"
        )


def check_effects(config: TrainConfig, team: Team) -> None:
    """Refuse keys that nothing would come of.

    Raises:
        ConfigError: Visibility for an agent that there is not, or a stop for alerts of no watch.
    """
    names = [agent.name for agent in team.agents]
    for name in config.coach.visibility:
        if name not in names:
            near = get_close_matches(name, names, n=1) or names
            raise ConfigError(f"coach.visibility.{name}: team {team.name} has {' or '.join(near)}")
    if config.audit.stop_on and not config.audit.anchors:
        raise ConfigError("audit.stop_on needs audit.anchors above 0: with 0 nothing is watched")


def coached_team(team: Team) -> CoachedTeam:
    """Say of a team what its coaches have to know."""
    return CoachedTeam(
        name=team.name,
        agents=tuple(agent.name for agent in team.agents),
        rules=team.rules,
        rubrics=team.rubrics,
    )


def check_inputs(config: TrainConfig, settings: Settings) -> Team:
    """Refuse what the user can mend, before anything is written; returns the team.

    Raises:
        UserError: Unknown team, prompts or tools, overlapping problem sets or too few problems, no
            such model, no GPU where one is asked for by name or needed, a key that nothing would
            come of.
        DiskFull: Too little space for a run.
    """
    team = load_team(config.team, config.prompts)
    problems = problem_source(config.problems, config.sandbox.workspace_mib)
    open_files(team, problems, settings.workspaces)
    check_enough(problems.train(), config.rollout.problems)
    check_tools(team, config.tools)
    check_effects(config, team)
    check_tracking(config.tracking, settings)
    check_coaches(config.coach, settings, coached_team(team))
    check_space(settings.home)
    from mappa_core.models.device import resolve_device
    from mappa_core.models.resolve import resolve_model

    resolve_model(config.model, settings.models)
    check_engine(config.engine, whole_weights=config.learner.weights == "full")
    if config.learner.deployment is None:
        resolve_device(config.learner.device)
    return team
