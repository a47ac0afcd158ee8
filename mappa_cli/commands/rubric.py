"""`mappa rubric`: the rubrics coaches judge by."""

from typing import Annotated

import typer

from mappa_core.core.text import counted

rubric = typer.Typer(help="The rubrics coaches judge by.", no_args_is_help=True)


@rubric.command("lint")
def lint_rubrics(
    team: Annotated[str | None, typer.Argument(help="A team; default every packaged one.")] = None,
    name: Annotated[str | None, typer.Argument(help="A rubric set, or a folder's path.")] = None,
) -> None:
    """Check that rubrics treat task types alike; exit code 1 where one does not."""
    from mappa_core.coach.rubrics import load_rubrics, packaged_rubrics
    from mappa_core.coach.rubrics.lint import lint

    chosen = [(team, name)] if team is not None and name is not None else packaged_rubrics(team)
    findings = [finding for each in chosen for finding in lint(load_rubrics(*each))]
    for finding in findings:
        typer.echo(f"{finding.where}: {finding.what}")
    if findings:
        raise typer.Exit(1)
    typer.echo(f"{counted(len(chosen), 'rubric set')}: task types are treated alike")
