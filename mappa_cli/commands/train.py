"""`mappa train`: a new run, one that goes on, or one that goes on from another one's weights."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, get_args

import typer

from flows.ending import INTERRUPTED, TERMINATED, run_flow
from mappa_cli.commands.options import Overrides
from mappa_cli.commands.running import as_yaml, stored_run, watched
from mappa_cli.printing.console import open_console
from mappa_core.app.config import RESUMABLE, TrainConfig
from mappa_core.app.config_files import load_config, with_overrides
from mappa_core.app.fitting import Despite
from mappa_core.coach.config import RULE
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings

WHERE_NEXT = """\
where to look next:
  {mappa} show {run}   its iterations and episodes
  {mappa} show EPISODE   one conversation with scores and rationales
  psql "$({mappa} db url)"   the rows; start with audit.action_scores
  {mappa} serve   the Prefect and MLflow pages"""


def train_command(  # noqa: PLR0913 (one argument per option)
    overrides: Overrides = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="A preset, e.g. configs/quickstart.yaml.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", help="Go on with this run (name or id).")
    ] = None,
    fork: Annotated[
        str | None,
        typer.Option("--fork", help="Go on from this run's weights in a new run, as it was set."),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option("--step", help="With --fork: after so many updates; default the last whole."),
    ] = None,
    despite: Annotated[
        list[str] | None,
        typer.Option("--despite", help="Start although memory or disk may not do: memory, disk."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved configuration and stop.")
    ] = False,
    like: Annotated[
        str | None,
        typer.Option("--like", help="With --dry-run: predict costs by how this run went."),
    ] = None,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Let the coach sit its exam, and train whatever comes out."),
    ] = False,
) -> None:
    """Train a team and compare it with its base on held-out problems."""
    if sum(each is not None for each in (config, resume, fork)) > 1:
        raise ConfigError("--config, --resume and --fork are three ways to start: take one")
    if (step is not None and fork is None) or (like is not None and not dry_run):
        raise ConfigError("--step needs --fork, and --like needs --dry-run")
    if yes and (resume is not None or dry_run):
        raise ConfigError("--yes is for a new run: --resume and --dry-run sit no exam")
    settings, changes, overruled = Settings(), overrides or (), overrulings(despite or ())
    if resume is not None:
        if dry_run:
            raise ConfigError("--dry-run takes no --resume")
        _train(*_resumed(resume, changes), settings, overruled)
        return
    if fork is None:
        resolved = load_config(config, changes)
    else:
        resolved = forked_config(fork, step, changes, settings)
    if dry_run:
        typer.echo(as_yaml(resolved.model_dump(mode="json")))
        _print_forecast(resolved, settings, like)
    else:
        agreed = consented(resolved, settings, yes=yes, asks=sys.stdin.isatty())
        _train(agreed, None, settings, overruled)


def forked_config(
    name: str, step: int | None, overrides: Sequence[str], settings: Settings
) -> TrainConfig:
    """The configuration of run `name`, starting after `step` of its updates.

    Args:
        name: Name, id or a prefix of either.
        step: None for the newest step whose files are whole for every agent.
        overrides: What the new run does in another way.
        settings: Where the store is.

    Raises:
        NotFound: No such run.
        ConfigError: The overrides cannot be run, or not with that run's weights.
        LearnerError: The weights after `step` updates are missing or damaged.
    """
    from mappa_core.app.checks import check_same_weights, check_weights
    from mappa_core.store.opening import opened_store
    from mappa_core.train.forking import check_fork, newest_whole_step

    with opened_store(settings) as store:
        run = store.runs.get_run(name)
        config = TrainConfig.model_validate(run.config)
        if step is None:
            step = newest_whole_step(store, run.id, check_weights)
        start = [f"start.run={run.id}", f"start.step={step}"]
        forked = with_overrides(config, [*start, *overrides])
        source = store.runs.get_run(forked.start.run)
        check_same_weights(source, forked, "a fork")
        check_fork(source, forked.start.step, store, check_weights)
    return forked


def consented(config: TrainConfig, settings: Settings, *, yes: bool, asks: bool) -> TrainConfig:
    """Say in the configuration what was agreed to of the coach's exam.

    Where `asks`, a person is asked about an exam that costs money, once for each coach.
    """
    if config.coach.exam == "never":
        return config
    if yes:
        return with_overrides(config, ["coach.exam=advise"])
    from mappa_core.app.exam import asks_unasked, missing_paper

    if not asks or asks_unasked(config):
        return config
    from mappa_core.coach.forecast import lines

    paper = missing_paper(config, settings)
    if paper is None:
        return config
    for line in lines([(f"exam of the coach {config.coach.model}", paper.expected)]):
        typer.echo(line, err=True)
    sits = typer.confirm("let it sit its exam first?", default=True, err=True)
    return with_overrides(config, [f"coach.exam={'require' if sits else 'never'}"])


def _resumed(name: str, overrides: Sequence[str]) -> tuple[TrainConfig, str]:
    """The configuration of a stored run and its id."""
    resumable = tuple(f"{section}.{key}" for section, keys in RESUMABLE.items() for key in keys)
    if not all(each.startswith(resumable) for each in overrides):
        raise ConfigError(
            "a resumed run keeps its configuration: leave out overrides, but for "
            f"{', '.join(resumable)}; --fork takes any"
        )
    from mappa_core.app.checks import check_trains
    from mappa_core.app.played_types import as_played

    run = stored_run(name)
    check_trains(run)
    config = as_played(run, TrainConfig.model_validate(run.config))
    return with_overrides(config, overrides), str(run.id)


def _print_forecast(config: TrainConfig, settings: Settings, like: str | None) -> None:
    """What the coaches will take, on stderr, so that stdout stays the configuration.

    Raises:
        ConfigError: The rule coach is to score what it cannot read, or a rubric caps by what its
            coach is not told.
    """
    from mappa_core.app.checks import check_caps, check_reading, kinds_of
    from mappa_core.app.forecast import forecast_run, habits_of
    from mappa_core.coach.forecast import lines
    from mappa_core.rollout.problems import problem_source
    from mappa_core.rollout.teams import load_team

    habits = None
    if like is not None:
        from mappa_core.store.opening import opened_store

        with opened_store(settings) as store:
            habits = habits_of(store, store.runs.get_run(like))
    team = load_team(config.team, config.prompts, config.rollout)
    try:
        problems = problem_source(config.problems)
    except ConfigError as error:
        typer.echo(f"coach: no forecast without the problems: {error}", err=True)
        return
    backends = {coach.backend for coach in config.coach.scoring}
    check_reading(backends, team, problems)
    check_caps(config.coach, team, kinds_of(problems))
    if backends == {RULE}:
        typer.echo("coach: the rule coach costs nothing", err=True)
        return
    for line in lines(forecast_run(config, team, problems, habits)):
        typer.echo(line, err=True)


def overrulings(named: Sequence[str]) -> tuple[Despite, ...]:
    """Read what `--despite` names.

    Raises:
        ConfigError: It names no refusal that can be overruled.
    """
    known = get_args(Despite)
    if unknown := [name for name in named if name not in known]:
        raise ConfigError(f"--despite {unknown[0]}: it takes {' or '.join(known)}")
    return tuple(name for name in known if name in named)


def _train(
    config: TrainConfig, resume: str | None, settings: Settings, despite: tuple[Despite, ...]
) -> None:
    console = open_console()
    resumes = resume is not None
    with watched(config, settings, console, resumes=resumes, despite=despite) as progress:
        from flows.train import train as train_flow

        try:
            comparison, run_name = (
                run_flow(train_flow(config, resume, despite)),
                progress.run_name or "",
            )
        except (KeyboardInterrupt, SystemExit) as stop:
            if progress.run_name is not None:
                said = f"stopped; go on with: mappa train --resume {progress.run_name}"
                console.print(said, soft_wrap=True)
            raise typer.Exit(TERMINATED if isinstance(stop, SystemExit) else INTERRUPTED) from None
    from mappa_cli.printing.evaluations import comparison_table, gain

    mappa = Path(sys.argv[0]).name if shutil.which("mappa") else sys.argv[0]
    console.print(comparison_table(comparison))
    console.print(gain(comparison))
    console.print(WHERE_NEXT.format(mappa=mappa, run=run_name), soft_wrap=True)
