"""What is refused before anything is written, because the user can mend it."""

from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from pathlib import Path

from mappa_core.app.config import TrainConfig
from mappa_core.app.fitting import Despite, check_fits, check_space
from mappa_core.app.placement import placement
from mappa_core.app.recording import check_recorder_load
from mappa_core.audit.config import AuditConfig
from mappa_core.audit.store import AuditStore
from mappa_core.cluster.storage import Storage
from mappa_core.coach.config import RULE, CoachConfig
from mappa_core.coach.opening import CoachedTeam, check_coaches, coach_rubrics
from mappa_core.coach.rubrics import TaskType
from mappa_core.coach.rules import check_rules
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import MEASURED, PolicyVersion
from mappa_core.core.records.runs import Run
from mappa_core.core.records.scores import CoachIdentity, LabelVisibility
from mappa_core.core.settings import Settings
from mappa_core.rollout.config import RolloutConfig
from mappa_core.rollout.engines import check_engine
from mappa_core.rollout.episode_files import open_files
from mappa_core.rollout.problems import problem_source
from mappa_core.rollout.problems.drawing import check_enough
from mappa_core.rollout.protocols import ProblemSource
from mappa_core.rollout.teams import load_team
from mappa_core.rollout.teams.base import Team
from mappa_core.rollout.tools.opening import check_tools
from mappa_core.tracking.opening import check_tracking

WEIGHTS = {
    "team": True,
    "model": True,
    "learner": {"weights": True, "lora": True},
    "rollout": {"debaters": True},
}
"""Keys that decide which weights fit."""


def check_weights(policy: PolicyVersion, storage: Storage | None = None) -> None:
    """Read the files of a policy against their hashes; the base model has none.

    What is not on this machine is fetched from `storage` first, and what is not there is stored.

    Raises:
        LearnerError: A file is missing or damaged.
        ClusterError: It is in neither place, or cannot be fetched or stored.
    """
    from mappa_core.train import checkpoints

    if policy.adapter_uri is None:
        return
    directory = Path(policy.adapter_uri)
    if storage is not None and not directory.is_dir():
        storage.fetch(directory, directory)
    checkpoints.verify(directory)
    if storage is not None and not storage.has(directory):
        storage.upload(directory, directory)


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
            f"run {run.name} trains other weights: {what} keeps team, model, rollout.debaters, "
            "learner.weights and learner.lora"
        )


def check_effects(config: TrainConfig, team: Team) -> None:
    """Refuse keys that nothing would come of.

    Raises:
        ConfigError: A key for an agent that there is not, a stop for alerts of no watch, or a limit
            of thoughts above all that an agent samples.
    """
    names = [agent.name for agent in team.agents]
    by_agent = {
        "coach.visibility": config.coach.visibility,
        "rollout.agent_tokens": config.rollout.agent_tokens,
        "rollout.agent_thought_tokens": config.rollout.agent_thought_tokens,
    }
    for key, named in by_agent.items():
        for name in named:
            if name not in names:
                near = get_close_matches(name, names, n=1) or names
                raise ConfigError(f"{key}.{name}: team {team.name} has {' or '.join(near)}")
    for name in names:
        longest, limit = config.rollout.tokens_of(name), config.rollout.thought_tokens_of(name)
        if limit is not None and limit >= longest:
            own = f"rollout.agent_thought_tokens.{name}"
            key = own if name in config.rollout.agent_thought_tokens else "rollout.thought_tokens"
            raise ConfigError(
                f"{key}={limit} closes no thought of {name}, whose actions have {longest} tokens "
                f"at most: raise them, or set {own} below"
            )
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


def check_inputs(
    config: TrainConfig,
    settings: Settings,
    *,
    trains: bool = True,
    resumes: bool = False,
    despite: Collection[Despite] = (),
    tell: Callable[[str], None] = lambda _: None,
) -> Team:
    """Refuse what the user can mend, before anything is written; returns the team.

    A run that only measures (`trains=False`) asks no coach: its coach needs neither key nor rules.
    One that is resumed (`resumes=True`) keeps the rubrics that it began with. `tell` is told what a
    person has to know of one that is not refused.

    Raises:
        UserError: Unknown team, prompts or tools, overlapping problem sets or too few problems, no
            such model or local coach, no GPU where one is asked for by name or needed, a memory
            plan that does not fit and is not named in `despite`; as `check_run`.
        DiskFull: Too little space for a run, as far as `despite` does not name it.
    """
    team = load_team(config.team, config.prompts, config.rollout)
    problems = problem_source(config.problems, config.sandbox.workspace_mib)
    open_files(team, problems, settings.workspaces)
    check_run(config, team, problems)
    check_tools(team, config.tools)
    check_tracking(config.tracking, settings)
    if trains:
        check_coaches(config.coach, settings, coached_team(team))
        check_reading([each.backend for each in config.coach.scoring], team, problems)
        if not resumes:
            check_caps(config.coach, team, kinds_of(problems))
        check_fits(config, settings, len(team.agents), despite, tell)
    else:
        check_space(settings.home)
    from mappa_core.models.device import resolve_device
    from mappa_core.models.resolve import check_model

    check_model(config.model, settings.models)
    for coach in config.coach.scoring if trains else ():
        if coach.is_local:
            check_model(coach.model, settings.models, "coach.model")
    if config.cluster.backend == "ray":
        # What its nodes compute on is known when they are asked.
        return team
    check_engine(config.engine, whole_weights=config.learner.weights == "full")
    if config.learner.deployment is None:
        resolve_device(config.learner.device)
    placement(config, len(team.agents))
    return team


def check_run(config: TrainConfig, team: Team, problems: ProblemSource) -> None:
    """Refuse a configuration that its own team and problems do not fit.

    Raises:
        ConfigError: A key that nothing would come of, a truncated sampler, too few problems, or
            more task runs than Prefect records.
    """
    check_sampling(config.rollout)
    check_enough(problems.train(), config.rollout.problems)
    check_effects(config, team)
    check_recorder_load(config, team)


def check_reading(coaches: Collection[str], team: Team, problems: ProblemSource) -> None:
    """Refuse to let the rule coach teach where it cannot read what it would score.

    Args:
        coaches: Backends of the coaches that score.
        team: Whose actions they score.
        problems: What these are about.

    Raises:
        ConfigError: It has no rules for the team, or cannot read a training problem.
    """
    if RULE in coaches:
        check_rules(team.rules, [agent.name for agent in team.agents], problems.train())


def kinds_of(problems: ProblemSource) -> frozenset[str]:
    """The task types of the training problems."""
    return frozenset(problem.task_type for problem in problems.train())


def check_caps(config: CoachConfig, team: Team, kinds: Collection[str]) -> None:
    """Refuse rubrics that cap some of the kinds of work to be scored, or by what no coach is told.

    Raises:
        ConfigError: One of `kinds` has no caps, and another kind has some; or a cap is by a figure
            that is not measured, or that `coach.visibility` hides.
    """
    coached = coached_team(team)
    for coach in config.scoring:
        rubrics = coach_rubrics(coach, coached)
        if rubrics is None:
            continue
        for agent in coached.agents:
            types = rubrics.rubrics[agent].task_types
            if (fault := _fault_of_caps(types, kinds, agent, config.visibility)) is not None:
                raise ConfigError(f"rubric set {coach.rubric} caps {fault}")


def _fault_of_caps(
    types: Mapping[str, TaskType],
    kinds: Collection[str],
    agent: str,
    visibility: Mapping[str, LabelVisibility],
) -> str | None:
    """Say whom and what an agent's rubric caps in a way that its coach cannot follow, if any."""
    uncapped = sorted(kind for kind in kinds if kind not in types)
    if uncapped and any(kind.metric for kind in types.values()):
        return (
            f"{' and '.join(types)} of agent {agent} by what was measured, and not "
            f"{', '.join(uncapped)}: name another one as coach.rubric"
        )
    capped = {
        kind: metric
        for kind in sorted(kinds)
        if kind in types and (metric := types[kind].metric) is not None
    }
    unmeasured = [metric for kind, metric in capped.items() if metric not in MEASURED.get(kind, ())]
    if unmeasured:
        return (
            f"agent {agent} by {' and '.join(unmeasured)}, which is not measured of such tasks: "
            "name another one as coach.rubric"
        )
    if capped and visibility.get(agent, LabelVisibility.NEVER) is LabelVisibility.NEVER:
        return (
            f"agent {agent} by {' and '.join(capped.values())}, which its coach is not told: set "
            f"coach.visibility.{agent}=outcome_only"
        )
    return None


def check_sampling(config: RolloutConfig) -> None:
    """Refuse to train on another distribution than the one that is sampled from.

    A temperature is in the log-probs of both. A nucleus is in neither's: its renormalised
    distribution gives no probability to tokens that the trainer's does, so that no ratio of the two
    corrects for it.

    Raises:
        ConfigError: `rollout.top_p` is below 1.
    """
    if config.top_p < 1:
        raise ConfigError(
            f"rollout.top_p={config.top_p:g} cuts tokens that the policy may take, and for those "
            "no importance ratio exists: train with rollout.top_p=1 (and a lower "
            "rollout.temperature)"
        )


def check_correction(
    config: AuditConfig, audit: AuditStore | None, identity: CoachIdentity
) -> None:
    """Refuse a correction that is not for the coach of this run, and questions about no audit.

    Raises:
        ConfigError: Nothing can be audited, or the correction is another coach's.
        NotFound: There is no such correction.
    """
    if config.ask_every:
        auditable(audit)
    if not config.correction:
        return
    correction = auditable(audit).correction(config.correction)
    if (correction.coach, correction.rubric_sha256) != (identity.coach, identity.rubric_sha256):
        raise ConfigError(
            f"the correction {config.correction} is for the coach {correction.coach} and another "
            "rubric, or way of asking by it, than this run's: estimate one on a run of this coach"
        )


def auditable(audit: AuditStore | None) -> AuditStore:
    """The audit's side of the store, which a correction and a question to a person need.

    Raises:
        ConfigError: There is none.
    """
    if audit is None:
        raise ConfigError("audit.correction and audit.ask_every need a store that can be audited")
    return audit
