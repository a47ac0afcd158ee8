"""Watching the coach while it teaches: the bodies of the audit's tasks during a run.

watch_iteration   anchors scored again, this iteration's scores ─▶ drift, alerts ─▶ findings
corrector         scores of one update, less the bias that an earlier audit proved
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from uuid import UUID

from mappa_core.audit.config import AuditConfig
from mappa_core.audit.records import Anchor, AnchorScore, Candidate, CorrectedScore, Correction
from mappa_core.audit.statistics.debias import corrected
from mappa_core.audit.store import AuditStore
from mappa_core.audit.watch.alerts import Alert, alerts
from mappa_core.audit.watch.history import Watched, drift_findings, history, watch
from mappa_core.audit.watch.running_sums import SoFar, so_far
from mappa_core.coach.protocols import Coach
from mappa_core.core import ids
from mappa_core.core.concurrency import together
from mappa_core.core.records.episodes import Episode, Turn
from mappa_core.core.records.scores import CoachCase, CoachScore, ScoredAction
from mappa_core.store.store import Store

CaseOf = Callable[[Episode, Turn, int], CoachCase]
"""The evidence about a turn as its coach saw it, as the given sample."""
FIRST_SAMPLE = 1_000
"""Of anchors. A coach answers an equal case of an equal sample from memory, and a memory does not
drift: every scoring of an anchor is a sample of its own, and none is a training score's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Who scores anchors."""

    coach: Coach
    case_of: CaseOf


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen after an iteration."""

    so_far: SoFar
    """Handed to the next iteration's watch, so that it reads no more than its own rows."""
    watched: Watched
    alerts: tuple[Alert, ...]
    new: tuple[Alert, ...]
    """Those that were not written down before; on resume, what was seen is looked at again."""


async def watch_iteration(
    run_id: UUID,
    iteration: int,
    config: AuditConfig,
    before: SoFar | None = None,
    *,
    asker: Asker,
    store: Store,
    audit: AuditStore,
) -> Seen:
    """Score the anchors again, look at the iteration's scores and write down what was found.

    The anchors are actions of the first iteration that was watched; their first scorings say what
    their scores are. Scorings that are stored already are not asked for again.

    Args:
        run_id: The run.
        iteration: Which has just ended.
        config: Anchors and limits.
        before: What was seen of the iterations before; None reads them again.
        asker: Who scores the anchors, and what it is shown of them.
        store: Where their episodes are.
        audit: Where everything else is.
    """
    anchors = await asyncio.to_thread(_anchors, run_id, iteration, config, audit)
    known = await asyncio.to_thread(audit.anchor_scores, run_id)
    done = {(score.anchor_id, score.iteration, score.repeat_index) for score in known}
    wanted = [
        (anchor, at, repeat)
        for anchor in anchors
        for at, repeat in (*((0, k) for k in range(config.repeats)), (iteration, 0))
        if (anchor.id, at, repeat) not in done
    ]
    fresh = await together(_score(*each, config.repeats, asker, store) for each in wanted)
    await asyncio.to_thread(audit.add_anchor_scores, fresh)
    return await asyncio.to_thread(_seen, run_id, iteration, config, before, audit)


def _seen(
    run_id: UUID, iteration: int, config: AuditConfig, before: SoFar | None, audit: AuditStore
) -> Seen:
    if before is None:
        frame = audit.frame(run_id).take_iterations(upto=iteration)
        latest, after = frame.take(frame.iteration == iteration), so_far(frame)
    else:
        _, latest = audit.iteration_frame(run_id, iteration)
        after = before.then(latest)
    scores = audit.anchor_scores(run_id)
    # On resume there are later ones, of which this iteration could not know.
    known = [score for score in scores if score.iteration <= iteration]
    anchors = history(audit.anchors(run_id), known)
    watched = watch(after.stream, anchors)
    if len(known) == len(scores):
        drifts = [draft.finding(run_id) for draft in drift_findings(after.stream, anchors)]
        audit.save_findings(run_id, ["drift"], drifts)
    raised = tuple(alerts(latest, iteration, after, watched, config))
    new = _new(run_id, raised, audit)
    return Seen(so_far=after, watched=watched, alerts=raised, new=new)


def _new(run_id: UUID, raised: Sequence[Alert], audit: AuditStore) -> tuple[Alert, ...]:
    """Write the alerts down; returns those that were not."""
    before = {finding.id for finding in audit.findings(run_id, "alert")}
    found = {alert: alert.draft().finding(run_id) for alert in raised}
    audit.add_findings(list(found.values()))
    return tuple(alert for alert, finding in found.items() if finding.id not in before)


def corrected_actions(
    correction: Correction,
    run_id: UUID,
    iteration: int,
    actions: Sequence[ScoredAction],
    *,
    audit: AuditStore,
) -> tuple[ScoredAction, ...]:
    """The actions with the correction taken off their scores; raw and corrected are stored.

    Unscored actions stay unscored.
    """
    rows, frame = audit.iteration_frame(run_id, iteration)
    new = dict(zip(rows, corrected(correction, frame), strict=True))
    audit.add_corrected(
        [
            CorrectedScore(
                score_id=action.score_id,
                correction_id=correction.id,
                raw=action.score,
                corrected=float(new[action.action_id]),
            )
            for action in actions
            if action.score is not None and action.score_id is not None
        ]
    )
    return tuple(
        action if action.score is None else replace(action, score=float(new[action.action_id]))
        for action in actions
    )


def spread_out(candidates: Sequence[Candidate], count: int) -> tuple[Candidate, ...]:
    """At most `count` candidates, taking turns over agents and task types."""
    kinds: dict[tuple[str, str], list[Candidate]] = {}
    for candidate in candidates:
        kinds.setdefault((candidate.agent, candidate.task_type), []).append(candidate)
    rounds = zip_longest(*(kinds[kind] for kind in sorted(kinds)))
    chosen = [candidate for one in rounds for candidate in one if candidate is not None]
    return tuple(chosen[:count])


def _anchors(
    run_id: UUID, iteration: int, config: AuditConfig, audit: AuditStore
) -> tuple[Anchor, ...]:
    anchors = audit.anchors(run_id)
    if anchors or not config.anchors:
        return anchors
    chosen = spread_out(audit.candidates(run_id, iteration), config.anchors)
    audit.add_anchors(
        [
            Anchor(
                id=ids.content_id("anchor", run_id, candidate.action_id),
                run_id=run_id,
                action_id=candidate.action_id,
                episode_id=candidate.episode_id,
                turn_index=candidate.turn_index,
            )
            for candidate in chosen
        ]
    )
    return audit.anchors(run_id)


async def _score(
    anchor: Anchor, iteration: int, repeat: int, repeats: int, asker: Asker, store: Store
) -> AnchorScore:
    episode = await asyncio.to_thread(store.episodes.get_episode, str(anchor.episode_id))
    place = repeat if iteration == 0 else repeats + iteration
    case = asker.case_of(episode, episode.turns[anchor.turn_index], FIRST_SAMPLE + place)
    score = await asker.coach.score(case)
    identity = asker.coach.identity
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
