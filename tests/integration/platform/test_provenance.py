"""Two runs that were made with anything different are told apart, and so is one that went on."""

import json
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mappa_core.app import provenance
from mappa_core.app.config import TrainConfig
from mappa_core.app.played_types import as_played, played_types
from mappa_core.app.progress import LogProgress
from mappa_core.app.provenance import LIBRARIES, current_provenance
from mappa_core.app.runs import prepare_run, stored_run
from mappa_core.app.services import Services
from mappa_core.coach import rubrics, rules
from mappa_core.core.records.episodes import Problem
from mappa_core.core.records.provenance import NOT_RECORDED, Provenance
from mappa_core.core.records.runs import Run
from mappa_core.evaluate.run_page import RunStory, html
from mappa_core.models.device import cpu_has_bfloat16
from mappa_core.rollout.teams import load_team
from mappa_core.rollout.teams.base import Team
from mappa_core.store.store import Store
from tests.builders import make_problem
from tests.conftest import execute
from tests.e2e.toy import toy_services
from tests.fakes.acting import NoPython
from tests.integration.platform.conftest import Mappa
from tests.tiny_model import save_tiny_model


class Told(LogProgress):
    """Keeps what a person is told."""

    def __init__(self) -> None:
        super().__init__()
        self.notices: list[str] = []

    def on_notice(self, message: str) -> None:
        self.notices.append(message)


@dataclass(frozen=True)
class TwoProblems:
    """A problem to train on and one held out."""

    trained: str = "What is 1 + 2?"
    measured: str = "What is 2 + 3?"

    def train(self) -> tuple[Problem, ...]:
        return (make_problem(self.trained),)

    def held_out(self) -> tuple[Problem, ...]:
        return (make_problem(self.measured),)


class NoPythonHere(NoPython):
    """A sandbox of another tier."""

    tier = "another"


@dataclass
class Place:
    """What a run is made with, as a person has it on a machine; changed where it lies."""

    store: Store
    folder: Path
    monkeypatch: pytest.MonkeyPatch
    team: Team
    config: TrainConfig
    problems: TwoProblems = TwoProblems()
    sandbox: NoPython = field(default_factory=NoPython)
    told: Told = field(default_factory=Told)

    def services(self) -> Services:
        return replace(
            toy_services(self.config, self.store, self.model, self.folder),
            team=self.team,
            problems=self.problems,
            sandbox=self.sandbox,
            progress=self.told,
        )

    def go_on(self, run: Run) -> tuple[Provenance, ...]:
        """Resume a run; returns what is stored of it."""
        services = self.services()
        resumed = prepare_run(services, stored_run(services, self.config, run.name), self.config)
        return resumed.provenance or ()

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def rubrics(self) -> Path:
        return self.folder / "rubrics"

    def edit(self, file: Path, old: str, new: str) -> None:
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    def coach(self, **changes: object) -> None:
        coach = {**self.config.coach.model_dump(), **changes}
        self.config = TrainConfig.model_validate({**self.config.model_dump(), "coach": coach})

    def add(self) -> Run:
        return stored_run(self.services(), self.config, None)


@pytest.fixture
def place(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    save_tiny_model(tmp_path / "model")
    packaged = Path(rubrics.__file__).parent / "mathchat" / "paper-1"
    shutil.copytree(packaged, tmp_path / "rubrics")
    config = TrainConfig.model_validate(
        {
            "engine": {"backend": "transformers", "device": "cpu"},
            "learner": {"device": "cpu"},
            "model": str(tmp_path / "model"),
        }
    )
    team = load_team("mathchat", "small-1")
    return Place(store=store, folder=tmp_path, monkeypatch=monkeypatch, team=team, config=config)


def another_rule_version(place: Place) -> None:
    changed = replace(rules.RULE_SETS["mathchat"], version=99)
    place.monkeypatch.setattr(rules, "RULE_SETS", {**rules.RULE_SETS, "mathchat": changed})


def another_rubric(place: Place) -> None:
    place.edit(place.rubrics / "verifier.yaml", "the", "that")


def another_prompt(place: Place) -> None:
    prompts = place.team.prompts
    prompt = prompts.prompts["verifier"]
    changed = {**prompts.prompts, "verifier": replace(prompt, template=f"{prompt.template}!")}
    place.team = replace(place.team, prompts=replace(prompts, prompts=changed))


def other_weights(place: Place) -> None:
    file = place.model / "model.safetensors"
    tensors = load_file(file)
    save_file({name: value + 0.001 for name, value in tensors.items()}, file, {"format": "pt"})


def another_template(place: Place) -> None:
    place.edit(place.model / "chat_template.jinja", "assistant", "ASSISTANT")


def another_tokenizer(place: Place) -> None:
    place.edit(
        place.model / "tokenizer.json", '"add_prefix_space": false', '"add_prefix_space": true'
    )


def install(place: Place, library: str) -> None:
    """Another version of a library, found before the one that is installed."""
    site = place.folder / "site"
    info = site / f"{library.replace('-', '_')}-99.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {library}\nVersion: 99\n")
    place.monkeypatch.syspath_prepend(site)


def patched(owner: object, name: str, value: object) -> Callable[[Place], None]:
    return lambda place: place.monkeypatch.setattr(owner, name, value)


def changed(name: str, value: object) -> Callable[[Place], None]:
    return lambda place: setattr(place, name, value)


CHANGES: dict[str, Callable[[Place], None]] = {
    "code": lambda place: install(place, "mappa"),
    "estimators": patched(provenance, "ESTIMATOR_VERSION", "0"),
    "rules": another_rule_version,
    "prompts.verifier": another_prompt,
    "problems.train": changed("problems", TwoProblems(trained="What is 1 + 3?")),
    "problems.held_out": changed("problems", TwoProblems(measured="What is 2 + 4?")),
    "model.config": lambda place: place.edit(
        place.model / "config.json", '"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05'
    ),
    "model.weights": other_weights,
    "model.tokenizer": another_tokenizer,
    "model.chat_template": another_template,
    "sandbox": changed("sandbox", NoPythonHere()),
    "device": patched(torch.backends.cpu, "get_cpu_capability", lambda: "ABACUS"),
    "python": patched(platform, "python_version", lambda: "2.7"),
    **{f"libraries.{name}": lambda place, name=name: install(place, name) for name in LIBRARIES},
}


@pytest.mark.parametrize("part", CHANGES)
def test_two_runs_that_differ_in_one_part_are_told_apart(
    mappa: Mappa, place: Place, part: str
) -> None:
    one, same = place.add(), place.add()
    assert mappa("config", "diff", one.name, same.name)[1].endswith("no difference\n")
    CHANGES[part](place)
    other = place.add()
    code, said, _ = mappa("config", "diff", one.name, other.name, "--json")
    assert code == 0
    assert list(json.loads(said)) == [f"provenance.{part}"]
    assert part in mappa("config", "diff", one.name, other.name)[1]


@pytest.mark.parametrize("which", ["", "second_coach."])
def test_a_word_of_a_rubric_is_another_run(mappa: Mappa, place: Place, which: str) -> None:
    model = {"backend": "gemini", "model": "m", "rubric": str(place.rubrics)}
    place.coach(**({"second": {**model, "share": 0.5}} if which else model))
    one = place.add()
    another_rubric(place)
    other = place.add()
    said = mappa("config", "diff", one.name, other.name, "--json")[1]
    assert list(json.loads(said)) == [f"provenance.{which}rubrics.verifier"]


def test_no_part_is_left_out_of_these_tests(place: Place) -> None:
    parts = current_provenance(place.services(), place.config).parts
    untested = {name for name in parts if name not in CHANGES}
    types = {"engine.dtype", "learner.dtype"}
    assert untested == types | {"prompts.problem_solver", "prompts.code_executor"}


def test_a_run_that_goes_on_otherwise_says_so_and_keeps_it(mappa: Mappa, place: Place) -> None:
    run = place.add()
    assert place.go_on(run) == run.provenance
    assert place.told.notices == []

    patched(provenance, "ESTIMATOR_VERSION", "0")(place)
    install(place, "torch")
    before, after = place.go_on(run)
    assert (before,) == run.provenance
    (estimators, library) = place.told.notices
    assert estimators.endswith(f"estimators: {before.parts['estimators']} -> 0")
    assert library.endswith(f"libraries.torch: {torch.__version__} -> 99")
    assert f"from {after.since} on: estimators: " in mappa("show", run.name)[1]
    story = RunStory(
        run=place.store.runs.get_run(run.name),
        iterations=(), held_out={}, kl={}, examples=(),
    )  # fmt: skip
    assert f"libraries.torch: {torch.__version__} -&gt; 99" in html(story)
    undisturbed = place.add()
    said = json.loads(mappa("config", "diff", undisturbed.name, run.name, "--json")[1])
    assert said["provenance.libraries.torch"] == ["99", f"{torch.__version__}, then 99"]


def other_units(place: Place) -> None:
    """A CPU that has units for bfloat16 where this one has none, and none where it has."""
    units = {} if cpu_has_bfloat16() else {"amx_bf16": True}
    place.monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: units)


def test_auto_goes_on_with_the_type_it_was_played_with(place: Place) -> None:
    run = place.add()
    types = {name: part for name, part in recorded(run).items() if name.endswith(".dtype")}
    native = "bfloat16" if cpu_has_bfloat16() else "float32"
    assert types == {"engine.dtype": native, "learner.dtype": native}
    other_units(place)
    assert played_types(place.config).items() & types.items() == set()
    kept = as_played(run, place.config)
    assert (kept.engine.dtype, kept.learner.dtype) == (native, native)
    place.config = kept
    assert place.go_on(run) == run.provenance
    assert place.told.notices == []


def test_auto_of_a_version_that_did_not_record_it_was_float32_on_a_cpu(
    place: Place, database_url: str
) -> None:
    name = place.add().name
    for gone in ("provenance #- '{0,parts,engine.dtype}' #- '{0,parts,learner.dtype}'", "NULL"):
        execute(database_url, f"UPDATE mappa.run SET provenance = {gone}")
        run = place.store.runs.get_run(name)
        config = as_played(run, place.config)
        assert (config.engine.dtype, config.learner.dtype) == ("float32", "float32")
        assert stored_run(place.services(), config, name) == run


def test_auto_is_the_new_machines_own_on_another_device(place: Place) -> None:
    run = place.add()
    CHANGES["device"](place)
    other_units(place)
    assert as_played(run, place.config) == place.config
    place.go_on(run)
    assert {said.split("another ")[1].split(":")[0] for said in place.told.notices} == {
        "device",
        "engine.dtype",
        "learner.dtype",
    }


def test_a_type_that_is_named_stays_and_what_is_computed_elsewhere_is_not_recorded(
    place: Place,
) -> None:
    run = place.add()
    values = place.config.model_dump()
    engine = {**values["engine"], "dtype": "float32"}
    learner = {**values["learner"], "deployment": "update/gpu", "device": "cuda"}
    elsewhere = TrainConfig.model_validate({**values, "engine": engine, "learner": learner})
    assert played_types(elsewhere) == {"engine.dtype": "float32"}
    assert as_played(run, elsewhere) == elsewhere


def recorded(run: Run) -> dict[str, str]:
    assert run.provenance is not None
    return dict(run.provenance[-1].parts)


def test_a_run_of_before_goes_on_with_one_line(
    mappa: Mappa, place: Place, database_url: str
) -> None:
    old, older = place.add(), place.add()
    execute(database_url, "UPDATE mappa.run SET provenance = NULL")
    assert mappa("config", "diff", old.name, older.name)[1].endswith("no difference\n")
    new = place.add()
    said = json.loads(mappa("config", "diff", old.name, new.name, "--json")[1])
    assert said == {"provenance.everything": [NOT_RECORDED, "recorded"]}

    unknown, known = place.go_on(old)
    assert (unknown, known) == place.go_on(old)
    assert not unknown.parts
    (line,) = place.told.notices
    assert "did not record" in line
    assert "it is recorded" in mappa("show", old.name)[1]
    said = json.loads(mappa("config", "diff", old.name, new.name, "--json")[1])
    assert said["provenance.estimators"][0] == f"{NOT_RECORDED}, then {known.parts['estimators']}"
