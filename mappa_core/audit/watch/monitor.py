"""Watching the coach of a run while it trains, after every iteration.

anchors scored again, this iteration's scores ─▶ drift, alerts ─▶ findings
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from uuid import UUID

from mappa_core.audit.config import AuditConfig
from mappa_core.audit.findings import as_finding
from mappa_core.audit.frame import Frame
from mappa_core.audit.records import Anchor, AnchorScore, Candidate
from mappa_core.audit.store import AuditStore
from mappa_core.audit.watch.alerts import Alert, alerts
from mappa_core.audit.watch.anchors import anchor_history
from mappa_core.audit.watch.drifting import (
    DRIFT_KINDS,
    DriftState,
    drift_figures,
    drift_state,
)
from mappa_core.audit.watch.history import RunningSums
from mappa_core.audit.watch.versions import model_changes
from mappa_core.coach.protocols import Coach
from mappa_core.core import ids
from mappa_core.core.concurrency import together
from mappa_core.core.records.episodes import Episode, Turn
from mappa_core.core.records.scores import CoachCase, CoachScore
from mappa_core.store.store import Store

CaseOf = Callable[[Episode, Turn, int], CoachCase]
"""The evidence about a turn as its coach saw it, as the given sample."""
FIRST_SAMPLE = 1_000
"""Of anchors. A coach answers an equal case of an equal sample from memory, and a memory does not
drift: every scoring of an anchor is a sample of its own, and none is a training score's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What was seen after an iteration."""

    drift: DriftState
    alerts: tuple[Alert, ...]
    new: tuple[Alert, ...]
    """Those that were not written down before; on resume, what was seen is looked at again."""


@dataclass(slots=True, kw_only=True)
class Monitor:
    """Watches one run; remembers what it has read, so that an iteration costs its own rows alone.

    The anchors are actions of the first iteration that was watched; their first scorings say what
    their scores are. Scorings that are stored already are not asked for again.
    """

    run_id: UUID
    config: AuditConfig
    coach: Coach
    case_of: CaseOf
    store: Store
    """Where the anchors' episodes are."""
    audit: AuditStore
    sums: RunningSums | None = None
    """Of the iterations before; None reads them again."""

    async def watch(self, iteration: int) -> Watched:
        """Score the anchors again, look at the iteration's scores and write down what was found.

        Args:
            iteration: Which has just ended.
        """
        wanted = await asyncio.to_thread(self._wanted, iteration)
        fresh = await together(self._score(*each) for each in wanted)
        await asyncio.to_thread(self.audit.add, fresh)
        return await asyncio.to_thread(self._watched, iteration)

    def _wanted(self, iteration: int) -> list[tuple[Anchor, int, int]]:
        """The anchors to be scored, each with the iteration it is for and the repeat."""
        anchors = self._anchors(iteration)
        known = self.audit.anchor_scores(self.run_id)
        done = {(score.anchor_id, score.iteration, score.repeat_index) for score in known}
        return [
            (anchor, at, repeat)
            for anchor in anchors
            for at, repeat in (*((0, k) for k in range(self.config.repeats)), (iteration, 0))
            if (anchor.id, at, repeat) not in done
        ]

    def _anchors(self, iteration: int) -> tuple[Anchor, ...]:
        """The run's anchors, chosen from this iteration where there are none yet."""
        anchors = self.audit.anchors(self.run_id)
        if anchors or not self.config.anchors:
            return anchors
        chosen = spread_out(self.audit.candidates(self.run_id, iteration), self.config.anchors)
        self.audit.add(
            [
                Anchor(
                    id=ids.content_id("anchor", self.run_id, candidate.action_id),
                    run_id=self.run_id,
                    action_id=candidate.action_id,
                    episode_id=candidate.episode_id,
                    turn_index=candidate.turn_index,
                )
                for candidate in chosen
            ]
        )
        return self.audit.anchors(self.run_id)

    async def _score(self, anchor: Anchor, iteration: int, repeat: int) -> AnchorScore:
        episode = await asyncio.to_thread(self.store.episodes.get_episode, str(anchor.episode_id))
        place = repeat if iteration == 0 else self.config.repeats + iteration
        case = self.case_of(episode, episode.turns[anchor.turn_index], FIRST_SAMPLE + place)
        score = await self.coach.score(case)
        identity = self.coach.identity
        return AnchorScore(
            anchor_id=anchor.id,
            iteration=iteration,
            repeat_index=repeat,
            score=score.value if isinstance(score, CoachScore) else None,
            unscored_reason=None if isinstance(score, CoachScore) else score.reason,
            coach=identity.coach,
            model_version=score.model_version or identity.model_version,
            rubric_sha256=identity.rubric_sha256,
        )

    def _watched(self, iteration: int) -> Watched:
        latest = self.audit.frame(self.run_id, iteration)
        self.sums = sums = self._summed(latest, iteration)
        scores = self.audit.anchor_scores(self.run_id)
        # On resume there are later ones, of which this iteration could not know.
        known = [score for score in scores if score.iteration <= iteration]
        kinds = self.audit.anchor_types(self.run_id)
        anchors = anchor_history(self.audit.anchors(self.run_id), known, kinds)
        drift = drift_state(sums.stream, anchors, model_changes(known))
        if len(known) == len(scores):
            figures = drift_figures(drift, sums.stream)
            drifts = [as_finding(figure, self.run_id) for figure in figures]
            self.audit.save_findings(self.run_id, DRIFT_KINDS, drifts)
        raised = tuple(alerts(latest, iteration, sums, drift, self.config))
        return Watched(drift=drift, alerts=raised, new=self._new(raised))

    def _summed(self, latest: Frame, iteration: int) -> RunningSums:
        if self.sums is not None:
            return self.sums.extended(latest)
        frame = self.audit.frame(self.run_id)
        return RunningSums.of(frame.take(frame.iteration <= iteration))

    def _new(self, raised: Sequence[Alert]) -> tuple[Alert, ...]:
        """Write the alerts down; returns those that were not."""
        before = {finding.id for finding in self.audit.findings(self.run_id, "alert")}
        found = {alert: as_finding(alert.figure(), self.run_id) for alert in raised}
        self.audit.add(list(found.values()))
        return tuple(alert for alert, finding in found.items() if finding.id not in before)


def spread_out(candidates: Sequence[Candidate], count: int) -> tuple[Candidate, ...]:
    """At most `count` candidates, taking turns over agents and task types."""
    kinds: dict[tuple[str, str], list[Candidate]] = {}
    for candidate in candidates:
        kinds.setdefault((candidate.agent, candidate.task_type), []).append(candidate)
    rounds = zip_longest(*(kinds[kind] for kind in sorted(kinds)))
    chosen = [candidate for one in rounds for candidate in one if candidate is not None]
    return tuple(chosen[:count])
