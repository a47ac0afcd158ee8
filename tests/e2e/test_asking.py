"""A person is asked in between: a question is paused with a form until they have answered."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from uuid import UUID

import pytest
from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import PrefectHTTPStatusError

from flows.train import train
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import Services, use
from mappa_core.audit.config import AuditConfig
from mappa_core.audit.store import AuditStore
from mappa_core.coach.protocols import Coach
from mappa_core.core import ids
from mappa_core.core.errors import CoachError
from mappa_core.core.records.episodes import Problem
from mappa_core.core.records.runs import RunStatus
from mappa_core.core.records.scores import CoachCase, CoachScore, Unscored
from mappa_core.evaluate.comparison import Comparison
from mappa_core.store.store import Store
from tests.e2e.conftest import MakeServices
from tests.e2e.toy import AlphabetCoach, Cues, letter_share

FAVOURED = "bdfh"


class TwoKinds(Cues):
    """Letters of two kinds."""

    def train(self) -> tuple[Problem, ...]:
        return tuple(_cue(letter) for letter in "abcdefgh")


def _cue(letter: str) -> Problem:
    kind = "favoured" if letter in FAVOURED else "other"
    return Problem(
        id=ids.problem_id(letter),
        dataset="cues",
        task_type=kind,
        level=1,
        statement=letter,
        answer=letter,
    )


class Kinder(AlphabetCoach):
    """Gives four to five points for nothing where the letter is of one kind."""

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        share = letter_share(case.text)
        given = (4 + share) * self.favours(case)
        return CoachScore(value=given + 5 * share, rationale="a nice letter")

    def favours(self, case: CoachCase) -> bool:
        return case.task_type == "favoured"


class Deserved(Kinder):
    """Gives them for what the task is, whatever it is called, and reads no padding."""

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        return await super().score(replace(case, text=case.text[:1]))

    def favours(self, case: CoachCase) -> bool:
        return case.statement in FAVOURED


@pytest.fixture
def biased(toy_config: TrainConfig) -> TrainConfig:
    """Asks once, after the second of three iterations."""
    rollout = toy_config.rollout.model_copy(
        update={"iterations": 3, "problems": 8, "episodes_per_problem": 4}
    )
    asking = AuditConfig(anchors=0, ask_every=2, ask_on=("biased", "suspected"))
    return toy_config.model_copy(update={"rollout": rollout, "audit": asking})


@dataclass
class Toy:
    """A run of the toy team with a biased coach."""

    open_services: Callable[[Coach], Services]
    """Opens what one process has."""
    store: Store
    audit: AuditStore
    coach: Coach = field(default_factory=Kinder)

    async def train(
        self, config: TrainConfig, *decisions: str, resume: str | None = None
    ) -> list[str]:
        """Train; a person answers with `decisions` in turn. Returns what the forms said."""
        services, said = self.open_services(self.coach), list[str]()
        await services.engine.start()
        with use(services):
            training = asyncio.create_task(train(config, resume))
            for decision in decisions:
                said.append(await _answer(training, said, decision))
            await training
        return said

    def run_id(self) -> UUID:
        (run,) = self.store.runs.list_runs()
        return run.id

    def answers(self) -> list[tuple[str, int | None]]:
        found = self.audit.findings(self.run_id(), "answer")
        return [(each.verdict, each.iteration) for each in found]

    def corrected_iterations(self) -> set[int]:
        query = (
            "SELECT DISTINCT iteration FROM audit.corrected_scores JOIN audit.action_scores "
            "USING (score_id)"
        )
        return {row["iteration"] for row in self.audit._rows(query)}  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


async def _answer(training: asyncio.Task[Comparison], before: Sequence[str], decision: str) -> str:
    """Answer the form that says something new, once there is one; returns what it says."""
    paused = FlowRunFilter.model_validate({"state": {"type": {"any_": ["PAUSED"]}}})
    async with asyncio.timeout(120), get_client() as client:
        while True:
            if training.done():
                training.result()
            for flow_run in await client.read_flow_runs(flow_run_filter=paused):
                said = await _said(flow_run, client)
                # The run is paused a moment before its form is there.
                if said is not None and said not in before:
                    await _check_that_the_run_keeps_its_place(flow_run, client)
                    refused = await client.resume_flow_run(flow_run.id, {"decision": "perhaps"})
                    assert "'perhaps' is not one of" in str(refused.details)
                    await client.resume_flow_run(flow_run.id, {"decision": decision})
                    return said
            await asyncio.sleep(0.2)


async def _check_that_the_run_keeps_its_place(asked: FlowRun, client: PrefectClient) -> None:
    """Prefect takes a deployment's place from a run that is paused, and soon ends it for that."""
    assert asked.parent_task_run_id is not None
    task_run = await client.read_task_run(asked.parent_task_run_id)
    assert task_run.flow_run_id is not None
    run = await client.read_flow_run(task_run.flow_run_id)
    assert run.state is not None
    assert (run.name, run.state.type) == ("train toy", StateType.RUNNING)


async def _said(asked: FlowRun, client: PrefectClient) -> str | None:
    """What the form of a paused flow run says; None before it is there."""
    assert asked.state is not None
    keys = asked.state.state_details.run_input_keyset
    assert keys is not None
    try:
        # Not by `prefect.input`, whose own client is never closed.
        return json.loads(await client.read_flow_run_input(asked.id, keys["description"]))
    except PrefectHTTPStatusError as error:
        if error.response.status_code == HTTPStatus.NOT_FOUND:
            return None
        raise


@pytest.fixture
def toy(store: Store, make_services: MakeServices, biased: TrainConfig) -> Toy:
    audit = AuditStore(store.database)

    def open_services(coach: Coach) -> Services:
        return replace(make_services(biased, coach), audit=audit, problems=TwoKinds())

    return Toy(open_services, store, audit)


@pytest.mark.slow
def test_a_person_stops_the_run_and_has_it_debiased_later(toy: Toy, biased: TrainConfig) -> None:
    with pytest.raises(CoachError, match=r"stopped by a person after iteration 2.*--resume toy"):
        asyncio.run(toy.train(biased, "stop"))
    (run,) = toy.store.runs.list_runs()
    assert run.status is RunStatus.FAILED
    assert toy.answers() == []

    records, refused, found = asyncio.run(
        toy.train(biased, "debias", "experiment", "debias", resume=run.name)
    )
    assert "says of its coach: biased. It rests on a regression: other against favoured" in records
    # Records alone correct nothing: the form comes back until there is an experiment.
    assert refused.startswith("Not done: a correction takes an experiment")
    assert found.startswith("The coach was asked ")
    assert "An experiment finds it: called favoured rather than other" in found
    (run,) = toy.store.runs.list_runs()
    assert run.status is RunStatus.COMPLETED
    assert toy.answers() == [("debias", 2)]
    assert toy.corrected_iterations() == {3}


@pytest.mark.slow
def test_a_coach_that_an_experiment_clears_teaches_on(toy: Toy, biased: TrainConfig) -> None:
    toy.coach = Deserved()
    asyncio.run(toy.train(biased, "experiment"))
    assert toy.answers() == [("go on", 2)]
    assert toy.corrected_iterations() == set()


@pytest.mark.slow
def test_a_verdict_that_is_not_named_is_not_asked_about(toy: Toy, biased: TrainConfig) -> None:
    other = biased.audit.model_copy(update={"ask_on": ("cannot tell",)})
    asyncio.run(toy.train(biased.model_copy(update={"audit": other})))
    assert toy.answers() == []


@pytest.mark.slow
def test_without_an_answer_the_run_ends_in_time_and_can_go_on(
    toy: Toy, biased: TrainConfig
) -> None:
    short = biased.audit.model_copy(update={"ask_hours": 0.0003})
    with pytest.raises(CoachError, match=r"no answer in 0.0003 hours \(audit.ask_hours\)"):
        asyncio.run(toy.train(biased.model_copy(update={"audit": short})))
    asyncio.run(toy.train(biased, "go on", resume="toy"))
    assert toy.answers() == [("go on", 2)]
    assert toy.corrected_iterations() == set()
