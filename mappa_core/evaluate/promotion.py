"""Promotion: a run's candidates against the champions, and the alias that says who serves.

    candidates (last update of a run) ─┐
    champions (or the run's base)     ─┴▶ paired on held-out problems ─┐
    verdict of the audit              ─────────────────────────────────┴▶ objections ─▶ alias

Teams are measured as wholes, so the champions of a team are compared as they were measured: all
from one run, after the same update.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias
from uuid import UUID

from mappa_core.core.errors import ConfigError, NotFound, PromotionRefused
from mappa_core.core.records.runs import Run
from mappa_core.core.records.updates import RegisteredVersion
from mappa_core.core.text import counted
from mappa_core.evaluate.audit_objections import CoachAudit, Waiver, audit_objections, undecided
from mappa_core.evaluate.comparison import Comparison, compare
from mappa_core.evaluate.registration import registered_name
from mappa_core.evaluate.report import successes_of
from mappa_core.evaluate.steps import last_step
from mappa_core.store.store import Store
from mappa_core.tracking.protocols import ModelRegistry

CHAMPION = "champion"
NOTE = "mappa.promotion."
"""Prefix of the tags that say on a model version why it was promoted."""
RESAMPLES = 10_000
Step: TypeAlias = tuple[UUID, int]
"""A run, and the updates its policies had had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A team after some of a run's updates; 0 is its base."""

    run: Run
    step: int

    def __str__(self) -> str:
        after = f"{self.run.name} after {counted(self.step, 'update')}"
        return after if self.step else "the base model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What there is to decide, and what speaks against it."""

    candidate: Side
    champion: Side | None
    """None where the champions were never measured together."""
    moved: tuple[RegisteredVersion, ...]
    """The versions that would become champions."""
    comparison: Comparison | None
    """None where there is no common ground to compare on."""
    verdict: str
    """The audit's, on the candidate's coach."""
    objections: tuple[str, ...]
    """Empty where the promotion is certified."""
    waived: Mapping[Waiver, str]
    """What would have been an objection, under the name by which it was waived."""


def build_case(
    run: Run,
    agent: str | None,
    *,
    store: Store,
    registry: ModelRegistry,
    audit: CoachAudit | None,
    waive: Collection[Waiver] = (),
) -> Case:
    """Compare a run's last registered team with the champions.

    Args:
        run: Whose candidates are to be promoted.
        agent: Only this agent's; None for the whole team.
        store: Where the held-out episodes are.
        registry: Where the versions are.
        audit: Of the run's coach; None where there was none.
        waive: Objections that are not to count; they are kept with the versions.

    Raises:
        NotFound: The run has no finished update, or it is not registered, or no such agent.
        ConfigError: The candidates are the champions already.
    """
    policies = store.policies.list_policy_versions(run.id)
    candidate = Side(run=run, step=last_step(policies))
    if not candidate.step:
        raise NotFound(f"run {run.name} has not finished an update yet: nothing to promote")
    names = dict.fromkeys(registered_name(run.team, policy.agent) for policy in policies)
    versions = [registry.versions(name) for name in names]
    candidates = [_registered(candidate, *each) for each in zip(names, versions, strict=True)]
    moved = _moved(candidates, agent)
    champions = {each.name: _step(each) for each in chain(*versions) if CHAMPION in each.aliases}
    champion, apart = _champion(champions, len(names), candidate, store)
    comparison, uncertified = _compared(candidate, champion, store)
    unclear = undecided(run, audit)
    return Case(
        candidate=candidate,
        champion=champion,
        moved=moved,
        comparison=comparison,
        verdict="cannot tell" if audit is None else audit.verdict,
        objections=(
            *_team_objections(champions, candidates, moved),
            *apart,
            *uncertified,
            *audit_objections(run, audit),
            *(said for name, said in unclear.items() if name not in waive),
        ),
        waived={name: said for name, said in unclear.items() if name in waive},
    )


def promote(case: Case, registry: ModelRegistry, *, override: str | None) -> None:
    """Make the candidates champions.

    Args:
        case: What was found.
        registry: Where the alias is.
        override: Why to promote in spite of objections; kept with the versions.

    Raises:
        PromotionRefused: There are objections, and no reason to override them.
    """
    if case.objections and override is None:
        raise PromotionRefused(
            f"{case.candidate} is not promoted: {'; '.join(case.objections)} "
            '(--override "why" promotes anyway and is recorded)'
        )
    for version in case.moved:
        registry.point(version.name, CHAMPION, version.version, _notes(case, override))


def roll_back(registry: ModelRegistry, name: str, version: str) -> str:
    """Make an earlier version champion again; returns the version that was.

    Raises:
        NotFound: No such model or version, or the model has no champion.
        ConfigError: It is the champion.
    """
    versions = registry.versions(name)
    if not versions:
        raise NotFound(f"no registered model {name}: see `mappa promote --list`")
    if version not in {each.version for each in versions}:
        raise NotFound(f"{name} has versions 1 to {versions[-1].version}, not {version}")
    current = next((each for each in versions if CHAMPION in each.aliases), None)
    if current is None:
        raise NotFound(f"{name} has no champion to roll back: promote a run first")
    if current.version == version:
        raise ConfigError(f"version {version} of {name} is the champion already")
    registry.point(name, CHAMPION, version, {f"{NOTE}rolled_back_from": current.version})
    return current.version


def _step(version: RegisteredVersion) -> Step:
    return version.run_id, version.step


def _registered(side: Side, name: str, versions: Sequence[RegisteredVersion]) -> RegisteredVersion:
    for version in versions:
        if _step(version) == (side.run.id, side.step):
            return version
    raise NotFound(
        f"{name} has no version of {side}: resume the run, which registers its checkpoints"
    )


def _moved(
    candidates: Sequence[RegisteredVersion], agent: str | None
) -> tuple[RegisteredVersion, ...]:
    chosen = tuple(each for each in candidates if agent in (None, each.agent))
    if not chosen:
        agents = ", ".join(each.agent for each in candidates)
        raise NotFound(f"no agent is called {agent}: there are {agents}")
    if all(CHAMPION in each.aliases for each in chosen):
        raise ConfigError("the candidates are the champions already: there is nothing to promote")
    return chosen


def _champion(
    champions: Mapping[str, Step], agents: int, candidate: Side, store: Store
) -> tuple[Side | None, tuple[str, ...]]:
    """The team to beat, given the champion of each model, and why there may be none."""
    ours = (candidate.run.id, candidate.step)
    to_beat = set(champions.values()) - {ours}
    if not to_beat:
        return Side(run=candidate.run, step=0), ()
    if len(to_beat) > 1 or len(champions) < agents:
        return None, ("the champions come from several runs and were never measured together",)
    ((run_id, step),) = to_beat
    return Side(run=store.runs.get_run(str(run_id)), step=step), ()


def _team_objections(
    champions: Mapping[str, Step],
    candidates: Sequence[RegisteredVersion],
    moved: Sequence[RegisteredVersion],
) -> Sequence[str]:
    """Whether agents that would stay are others than the candidates were measured with."""
    staying = [each for each in candidates if each not in moved]
    strangers = sorted(each.name for each in staying if champions.get(each.name) != _step(each))
    if not strangers:
        return ()
    names = ", ".join(strangers)
    return (f"the team was measured as a whole, not beside the {names} that would stay",)


def _compared(
    candidate: Side, champion: Side | None, store: Store
) -> tuple[Comparison | None, tuple[str, ...]]:
    """The paired comparison, and why it does not certify a gain."""
    if champion is None:
        return None, ()
    after, before = (
        successes_of(store.episodes.list_episodes(side.run.id, "held_out", side.step))
        for side in (candidate, champion)
    )
    for side, outcomes in ((candidate, after), (champion, before)):
        if not outcomes:
            return None, (
                f"{side} was not measured on held-out problems: `mappa evaluate {side.run.name}`",
            )
    common = sorted(set(after) & set(before))
    if not common:
        return None, ("candidate and champion were measured on different problems",)
    earlier, later = ({each: side[each] for each in common} for side in (before, after))
    comparison = compare(earlier, later, resamples=RESAMPLES, seed=candidate.run.seed)
    return comparison, tuple(_objections(candidate, champion, comparison, len(after)))


def _objections(
    candidate: Side, champion: Side, comparison: Comparison, problems: int
) -> Sequence[str]:
    found: list[str] = []
    if comparison.problems < problems:
        found.append(
            f"the champion was measured on {comparison.problems} of the candidate's {problems} "
            "held-out problems"
        )
    temperatures = [_temperature(side.run) for side in (candidate, champion)]
    if temperatures[0] != temperatures[1]:
        found.append(
            f"the candidate was measured at temperature {temperatures[0]}, the champion at "
            f"{temperatures[1]}"
        )
    if comparison.verdict != "better":
        changed = counted(comparison.changed, "problem")
        found.append(
            f"the gain over {champion} is not certified: {100 * comparison.difference:+.1f} points"
            f" on {counted(comparison.problems, 'problem')}, 95 % interval "
            f"{100 * comparison.low:+.1f} to {100 * comparison.high:+.1f}, {changed} changed"
        )
    return found


def _temperature(run: Run) -> object:
    evaluation = run.config.get("evaluation")
    return evaluation.get("temperature") if isinstance(evaluation, Mapping) else None


def _notes(case: Case, override: str | None) -> dict[str, str]:
    notes = {"against": str(case.champion or "several runs"), "audit": case.verdict}
    if case.comparison is not None:
        notes["gain"] = f"{case.comparison.difference:.4f}"
        notes["gain_low"] = f"{case.comparison.low:.4f}"
        notes["gain_high"] = f"{case.comparison.high:.4f}"
        notes["problems"] = str(case.comparison.problems)
    if case.waived:
        notes["waived"] = "; ".join(f"{name}: {said}" for name, said in case.waived.items())
    if override is not None:
        notes["override"] = override
        notes["objections"] = "; ".join(case.objections)
    return {f"{NOTE}{key}": value for key, value in notes.items()}
