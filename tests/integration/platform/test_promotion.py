"""Who becomes champion: only what was measured to be better, scored by a coach without bias."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from mappa_core.core.errors import ConfigError, NotFound, PromotionRefused
from mappa_core.core.records.episodes import Outcome, StopReason
from mappa_core.core.records.runs import Run
from mappa_core.evaluate.audit_objections import CoachAudit, waivers
from mappa_core.evaluate.promotion import CHAMPION, Case, build_case, promote, roll_back
from mappa_core.evaluate.registration import register_policies
from mappa_core.store.store import Store
from tests.builders import make_episode, make_policy, make_problem, make_run, make_turn, make_update
from tests.fakes.tracking import MemoryRegistry

AGENTS = ("solver", "verifier")
PROBLEMS = [make_problem(f"What is {number} + 3?") for number in range(20)]


class World:
    """Runs of one update in a real store, registered in memory."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.registry = MemoryRegistry()

    def run(self, name: str, before: Sequence[int], after: Sequence[int], **config: object) -> Run:
        """A run whose team solved the problems `before` and `after` (their numbers)."""
        run = replace(make_run(name), config=config)
        self.store.runs.add_run(run)
        self.store.episodes.add_problems(PROBLEMS)
        for agent in AGENTS:
            self.store.policies.add_policy_version(make_policy(run, agent))
            self.store.updates.add_update(*make_update(run, agent, 1))
        self._played(run, 0, before)
        self._played(run, 1, after)
        self.register(run)
        return run

    def register(self, run: Run) -> tuple[str, ...]:
        return register_policies(run, 1, registry=self.registry, store=self.store)

    def _played(self, run: Run, step: int, solved: Sequence[int]) -> None:
        for number, problem in enumerate(PROBLEMS):
            episode = make_episode(run, problem, phase="held_out", iteration=step)
            self.store.episodes.open_episode(episode)
            turn = make_turn(make_policy(run, AGENTS[0], step))
            self.store.episodes.add_turn(episode, turn)
            outcome = Outcome(success=number in solved, answer="5", method="math-verify")
            closed = episode.with_turn(turn).closed(StopReason.ANSWERED, outcome=outcome)
            self.store.episodes.close_episode(closed)

    def case(self, run: Run, *biased_for: str, agent: str | None = None) -> Case:
        audit = CoachAudit(verdict="biased" if biased_for else "equivalent", biased_for=biased_for)
        return build_case(run, agent, store=self.store, registry=self.registry, audit=audit)

    def champions(self) -> dict[str, str]:
        return {
            name: at for (name, alias), at in self.registry.aliases.items() if alias == CHAMPION
        }


@pytest.fixture
def world(store: Store) -> World:
    return World(store)


def test_the_first_champion_has_to_beat_the_base_it_came_from(world: World) -> None:
    run = world.run("better", before=range(2), after=range(14))
    case = world.case(run)
    assert case.objections == ()
    assert case.comparison is not None
    assert (case.comparison.problems, case.comparison.changed) == (20, 12)
    assert case.comparison.difference == pytest.approx(0.6)
    promote(case, world.registry, override=None)
    assert world.champions() == {f"mappa-mathchat-{agent}": "1" for agent in AGENTS}
    (version,) = world.registry.versions("mappa-mathchat-solver")
    assert version.tags["mappa.promotion.against"] == "the base model"
    assert version.tags["mappa.promotion.gain"] == "0.6000"
    assert "mappa.promotion.override" not in version.tags


def test_the_next_one_is_paired_with_the_champion_problem_by_problem(world: World) -> None:
    first = world.run("first", before=(), after=range(10))
    promote(world.case(first), world.registry, override=None)
    # Better than its own base, but on the champion's problems no better than the champion.
    same = world.run("same", before=(), after=range(1, 11))
    with pytest.raises(PromotionRefused, match="first after 1 update is not certified") as refused:
        promote(world.case(same), world.registry, override=None)
    assert "+0.0 points on 20 problems" in str(refused.value)
    assert "\n" not in str(refused.value)
    better = world.run("more", before=(), after=range(18))
    promote(world.case(better), world.registry, override=None)
    assert set(world.champions().values()) == {"3"}


def test_a_biased_coach_is_refused_and_an_override_is_kept_with_the_version(world: World) -> None:
    run = world.run("biased", before=(), after=range(15))
    case = world.case(run, "addition")
    with pytest.raises(PromotionRefused, match="coach is biased for addition"):
        promote(case, world.registry, override=None)
    assert world.champions() == {}
    promote(case, world.registry, override="the bias is deserved")
    (version,) = world.registry.versions("mappa-mathchat-solver")
    assert version.tags["mappa.promotion.override"] == "the bias is deserved"
    assert version.tags["mappa.promotion.audit"] == "biased"
    assert "biased for addition" in version.tags["mappa.promotion.objections"]


def test_a_suspected_coach_is_refused_with_what_would_tell(world: World) -> None:
    run = world.run("suspected", before=(), after=range(15))
    audit = CoachAudit(verdict="suspected", biased_for=())
    case = build_case(run, None, store=world.store, registry=world.registry, audit=audit)
    with pytest.raises(PromotionRefused, match="mappa audit suspected --experiment 200"):
        promote(case, world.registry, override=None)


def test_an_audit_that_cannot_tell_is_waived_by_name(world: World) -> None:
    run = world.run("unclear", before=(), after=range(15))
    audit = CoachAudit(verdict="cannot tell", biased_for=(), needed="300 answers")
    refused = build_case(run, None, store=world.store, registry=world.registry, audit=audit)
    with pytest.raises(PromotionRefused, match=r"cannot tell whether .* would take 300 answers"):
        promote(refused, world.registry, override=None)
    waived = waivers(["cannot-tell"])
    case = build_case(
        run, None, store=world.store, registry=world.registry, audit=audit, waive=waived
    )
    assert case.objections == ()
    promote(case, world.registry, override=None)
    (version,) = world.registry.versions("mappa-mathchat-solver")
    assert version.tags["mappa.promotion.waived"].startswith("cannot-tell: the audit cannot tell")
    assert version.tags["mappa.promotion.audit"] == "cannot tell"


def test_what_an_audit_tells_is_not_waived(world: World) -> None:
    with pytest.raises(ConfigError, match="--waive biased: cannot-tell may be waived"):
        waivers(["cannot-tell", "biased"])
    run = world.run("kind", before=(), after=range(15))
    audit = CoachAudit(verdict="biased", biased_for=("a",))
    waived = waivers(["cannot-tell"])
    case = build_case(
        run, None, store=world.store, registry=world.registry, audit=audit, waive=waived
    )
    assert case.objections == ("the audit says that its coach is biased for a",)


def test_a_run_that_was_not_audited_is_refused(world: World) -> None:
    run = world.run("unknown", before=(), after=range(15))
    case = build_case(run, None, store=world.store, registry=world.registry, audit=None)
    assert case.objections == ("the coach of unknown was not audited: `mappa audit unknown`",)


def test_teams_measured_at_other_temperatures_are_not_comparable(world: World) -> None:
    first = world.run("cool", before=(), after=range(9), evaluation={"temperature": 0.0})
    promote(world.case(first), world.registry, override=None)
    warm = world.run("warm", before=(), after=range(19), evaluation={"temperature": 1.0})
    (objection,) = world.case(warm).objections
    assert objection == ("the candidate was measured at temperature 1.0, the champion at 0.0")


def test_one_agent_beside_others_that_it_was_not_measured_with_is_refused(world: World) -> None:
    run = world.run("alone", before=(), after=range(15))
    case = world.case(run, agent="solver")
    assert [version.agent for version in case.moved] == ["solver"]
    with pytest.raises(PromotionRefused, match="beside the mappa-mathchat-verifier that would"):
        promote(case, world.registry, override=None)
    promote(case, world.registry, override="the verifier is a constant")
    # The other one completes the team as it was measured.
    assert world.case(run).objections == ()
    with pytest.raises(NotFound, match="no agent is called nobody: there are solver, verifier"):
        world.case(run, agent="nobody")


def test_the_champions_are_not_promoted_twice(world: World) -> None:
    run = world.run("once", before=(), after=range(15))
    promote(world.case(run), world.registry, override=None)
    with pytest.raises(ConfigError, match="champions already"):
        world.case(run)


def test_a_run_without_updates_or_registration_is_not_found(world: World) -> None:
    untrained = make_run("untrained")
    world.store.runs.add_run(untrained)
    with pytest.raises(NotFound, match="has not finished an update"):
        world.case(untrained)
    run = world.run("lost", before=(), after=range(15))
    world.registry = MemoryRegistry()
    with pytest.raises(NotFound, match="resume the run"):
        world.case(run)


def test_a_team_with_an_agent_that_was_never_updated_is_not_promoted(world: World) -> None:
    run = world.run("partly", before=(), after=range(15))
    world.store.policies.add_policy_version(make_policy(run, "executor"))
    with pytest.raises(NotFound, match="has not finished an update"):
        world.case(run)


def test_what_was_registered_before_is_no_news(world: World) -> None:
    run = world.run("again", before=[], after=[])
    assert world.register(run) == ()


def test_an_earlier_version_is_champion_again(world: World) -> None:
    for name, after in (("one", range(8)), ("two", range(18))):
        promote(world.case(world.run(name, (), after)), world.registry, override=None)
    model = "mappa-mathchat-solver"
    assert roll_back(world.registry, model, "1") == "2"
    assert world.champions() == {model: "1", "mappa-mathchat-verifier": "2"}
    assert world.registry.versions(model)[0].tags["mappa.promotion.rolled_back_from"] == "2"
    with pytest.raises(ConfigError, match="is the champion already"):
        roll_back(world.registry, model, "1")
    with pytest.raises(NotFound, match="has versions 1 to 2, not 7"):
        roll_back(world.registry, model, "7")
    with pytest.raises(NotFound, match="no registered model"):
        roll_back(world.registry, "mappa-nothing", "1")
    # The champions now come from two runs, so the next team has no champion to be compared with.
    third = world.case(world.run("three", (), range(20)))
    assert third.comparison is None
    assert "never measured together" in third.objections[0]
