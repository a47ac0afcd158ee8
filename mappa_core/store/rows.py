"""Records as the rows of every table they touch, in an order that foreign keys allow."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from sqlalchemy import Table

from mappa_core.core.records.episodes import Episode, PolicyVersion, Turn
from mappa_core.core.records.scores import ScoreEntry
from mappa_core.core.records.updates import Checkpoint, Update
from mappa_core.store import episode_mapping, mapping, tables
from mappa_core.store.mapping import Values

Rows: TypeAlias = dict[Table, list[Values]]
"""What one write adds, by table."""
_IN_ORDER = tuple(tables.METADATA.sorted_tables)


def turn_rows(episode: Episode, turn: Turn) -> Rows:
    """An action, what its code did and the files it wrote."""
    rows: Rows = {tables.ACTION: [episode_mapping.action_row(episode, turn)]}
    if (result := turn.tool_result) is not None:
        rows[tables.TOOL_RESULT] = [episode_mapping.tool_result_row(episode, turn, result)]
        rows[tables.ARTIFACT] = episode_mapping.artifact_rows(result)
        rows[tables.ARTIFACT_USE] = episode_mapping.artifact_use_rows(episode, turn, result)
    return rows


def episode_rows(episode: Episode) -> Rows:
    """A finished episode: its row, its end, its problem and all its turns."""
    rows: Rows = {
        tables.PROBLEM: [episode_mapping.problem_row(episode.problem)],
        tables.EPISODE: [episode_mapping.finished_episode_row(episode)],
    }
    if episode.outcome is not None:
        rows[tables.OUTCOME] = [episode_mapping.outcome_row(episode, episode.outcome)]
    return merged([rows, *(turn_rows(episode, turn) for turn in episode.turns)])


def score_rows(entries: Iterable[ScoreEntry]) -> Rows:
    """Scores, and who gave them."""
    given = tuple(entries)
    return {
        tables.COACH: [mapping.coach_row(who) for who in {entry.identity for entry in given}],
        tables.COACH_SCORE: [mapping.score_row(entry) for entry in given],
    }


def update_rows(update: Update, policy: PolicyVersion, checkpoint: Checkpoint) -> Rows:
    """An update with its entries, the weights that came out and where they lie."""
    return {
        tables.POLICY_VERSION: [mapping.policy_row(policy)],
        tables.CHECKPOINT: [mapping.checkpoint_row(checkpoint)],
        tables.UPDATE: [mapping.update_row(update)],
        tables.UPDATE_ACTION: mapping.update_action_rows(update),
    }


def merged(many: Sequence[Rows]) -> Rows:
    """The rows of several writes as one, every table after the tables it refers to."""
    if len(many) == 1:
        return many[0]
    together: Rows = {table: [] for table in _IN_ORDER}
    for rows in many:
        for table, values in rows.items():
            together[table].extend(values)
    return {table: values for table, values in together.items() if values}
