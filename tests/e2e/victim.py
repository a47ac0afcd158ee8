"""A small training run in a process of its own, to be killed: `python -m tests.e2e.victim ...`.

Prints `ready`, waits for a line or the end of its input, then trains, and prints one line per thing
that the store has acknowledged, right after it has.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from flows.train import train
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import use
from mappa_core.core import ids
from mappa_core.core.records.episodes import Episode, PolicyVersion, Turn
from mappa_core.core.records.scores import ScoreEntry
from mappa_core.core.records.updates import Checkpoint, Update
from mappa_core.store.episodes import Episodes
from mappa_core.store.scores import Scores
from mappa_core.store.store import Store
from mappa_core.store.updates import Updates
from tests.e2e.toy import toy_services


def tell(kind: str, name: UUID) -> None:
    """One line at once, with a mark that no other output has."""
    sys.stdout.write(f"acknowledged {kind} {name}\n")
    sys.stdout.flush()


class TellingEpisodes(Episodes):
    def add_turns(self, turns: Sequence[tuple[Episode, Turn]]) -> None:
        super().add_turns(turns)
        for episode, turn in turns:
            tell("action", ids.action_id(episode.id, turn.index))


class TellingScores(Scores):
    def add_scores(self, entries: Sequence[ScoreEntry]) -> None:
        super().add_scores(entries)
        for entry in entries:
            tell("score", entry.id)


class TellingUpdates(Updates):
    def add_update(self, update: Update, policy: PolicyVersion, checkpoint: Checkpoint) -> None:
        super().add_update(update, policy, checkpoint)
        tell("update", update.id)


def telling_store(url: str) -> Store:
    """A store that says what it has acknowledged."""
    store = Store.open(url)
    store.episodes = TellingEpisodes(store.database)
    store.scores = TellingScores(store.database)
    store.updates = TellingUpdates(store.database)
    return store


def main(url: str, model: str, checkpoints: str, config: str, resume: str | None = None) -> None:
    resolved = TrainConfig.model_validate(json.loads(config))
    services = toy_services(resolved, telling_store(url), Path(model), Path(checkpoints))

    async def body() -> None:
        await services.engine.start()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        with use(services):
            await train(resolved, resume)

    asyncio.run(body())


if __name__ == "__main__":
    main(*sys.argv[1:])
