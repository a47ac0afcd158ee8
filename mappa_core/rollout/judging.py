"""Ground truth of a finished episode: what its team handed in, against what is right."""

from dataclasses import replace

from mappa_core.core.file_trail import files_after
from mappa_core.core.records.episodes import Episode, Outcome
from mappa_core.grading.answers import verify
from mappa_core.rollout.episode_files import EpisodeFiles
from mappa_core.rollout.teams.base import Team


def judge(team: Team, episode: Episode, files: EpisodeFiles | None) -> Outcome:
    """Compare the team's answer with the right one, or measure its file against hidden labels.

    Args:
        team: Says which answer, or which file, is the team's.
        episode: After its last turn.
        files: Where a team that works on files left them; None for one that answers.

    Raises:
        WorkspaceError: The file was there and is not any more.
    """
    answer = team.final_answer(episode)
    if files is None:
        return verify(answer, episode.problem.answer)
    # Imported here: pandas and scikit-learn take a second, which other teams do not need.
    from mappa_core.grading.submissions import grade, parse_key

    file = files_after(episode.turns).get(answer) if answer else None
    data = files.content(file.artifact.sha256) if file else None
    labels = files.tasks.labels(episode.problem)
    outcome = grade(data, labels, parse_key(episode.problem.answer))
    if file and file.stale and outcome.detail is None:
        return replace(outcome, detail=f"stale: {file.stale}")
    return outcome
