"""Watching the coach while it teaches: the bodies of the audit's tasks during a run.

watch_iteration   anchors scored again ─▶ drift test over all iterations ─▶ findings
corrector         scores of one update, less the bias that an earlier audit proved
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from uuid import UUID

from mappa_core.auditing.debias import corrected
from mappa_core.auditing.watch import Watched, drift_findings, history, watch
from mappa_core.config import AuditConfig
from mappa_core.domain import ids
from mappa_core.domain.audit import Anchor, AnchorScore, Candidate, CorrectedScore, Correction
from mappa_core.domain.records import CoachCase, CoachScore, Episode, ScoredAction, Turn
from mappa_core.ports import AuditStore, Coach, Store


async def watch_iteration(
    run_id: UUID,
    iteration: int,
    config: AuditConfig,
    *,
    coach: Coach,
    store: Store,
    audit: AuditStore,
) -> Watched:
    """Score the anchors again, test for drift and write down what was found.

    The anchors are actions of the run's first iteration; their first scorings say what their
    scores are. Scorings that are stored already are not asked for again.
    """
    anchors = await asyncio.to_thread(_anchors, run_id, config, audit)
    known = await asyncio.to_thread(audit.anchor_scores, run_id)
    done = {(score.anchor_id, score.iteration, score.repeat_index) for score in known}
    wanted = [
        (anchor, at, repeat)
        for anchor in anchors
        for at, repeat in (*((0, k) for k in range(config.repeats)), (iteration, 0))
        if (anchor.id, at, repeat) not in done
    ]
    fresh = await asyncio.gather(*(_score(each, coach, store) for each in wanted))
    await asyncio.to_thread(audit.add_anchor_scores, fresh)
    return await asyncio.to_thread(_watched, run_id, audit)


def _watched(run_id: UUID, audit: AuditStore) -> Watched:
    frame = audit.frame(run_id)
    seen = history(audit.anchors(run_id), audit.anchor_scores(run_id))
    found = [draft.finding(run_id) for draft in drift_findings(frame, seen)]
    audit.save_findings(run_id, ["drift"], found)
    return watch(frame, seen)


def corrected_actions(
    correction: Correction,
    run_id: UUID,
    iteration: int,
    actions: Sequence[ScoredAction],
    *,
    store: Store,
    audit: AuditStore,
) -> tuple[ScoredAction, ...]:
    """The actions with the correction taken off their scores; raw and corrected are stored.

    Unscored actions stay unscored.
    """
    rows, frame = audit.iteration_frame(run_id, iteration)
    new = dict(zip(rows, corrected(correction, frame), strict=True))
    scored = [action for action in actions if action.score is not None]
    score_ids = store.score_ids([action.action_id for action in scored])
    audit.add_corrected(
        [
            CorrectedScore(
                score_id=score_ids[action.action_id],
                correction_id=correction.id,
                raw=action.score or 0.0,
                corrected=float(new[action.action_id]),
            )
            for action in scored
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


def case_of(episode: Episode, turn: Turn) -> CoachCase:
    """The evidence about one stored action, as its coach saw it."""
    return CoachCase(
        statement=episode.problem.statement,
        agent=turn.agent,
        messages=turn.observation.messages,
        text=turn.action.text,
        tool_result=turn.tool_result,
        earlier=episode.turns[: turn.index],
    )


def _anchors(run_id: UUID, config: AuditConfig, audit: AuditStore) -> tuple[Anchor, ...]:
    anchors = audit.anchors(run_id)
    if anchors or not config.anchors:
        return anchors
    chosen = spread_out(audit.candidates(run_id, 1), config.anchors)
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


async def _score(wanted: tuple[Anchor, int, int], coach: Coach, store: Store) -> AnchorScore:
    anchor, iteration, repeat = wanted
    episode = await asyncio.to_thread(store.episode, str(anchor.episode_id))
    score = await coach.score(case_of(episode, episode.turns[anchor.turn_index]))
    given = isinstance(score, CoachScore)
    return AnchorScore(
        anchor_id=anchor.id,
        iteration=iteration,
        repeat_index=repeat,
        score=score.value if given else None,
        unscored_reason=None if given else score.reason,
        coach=coach.identity.coach,
        model_version=coach.identity.model_version,
        rubric_sha256=coach.identity.rubric_sha256,
    )
