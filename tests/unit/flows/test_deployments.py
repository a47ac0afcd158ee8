"""prefect.yaml: presets as they are in configs/, and a form that refuses what is out of bounds."""

import importlib
import re
from math import ceil
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from prefect import Flow
from prefect.events import DeploymentEventTrigger
from prefect.events.schemas.automations import AutomationCore
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate

from mappa_core.app.config import TrainConfig
from mappa_core.app.config_files import load_config
from mappa_core.app.memory import plan_memory
from mappa_core.core.settings import Settings
from mappa_core.train.memory_items import GB, PHASES

ROOT = Path(__file__).parents[3]
DEPLOYMENTS = {
    each["name"]: each
    for each in yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
}
PRESETS = ("quickstart", "quickstart_llm_coach", "mathchat", "dsbench", "dsbench_paper")


def flow_of(name: str) -> Flow[..., Any]:
    module, _, function = DEPLOYMENTS[name]["entrypoint"].rpartition(".")
    return getattr(importlib.import_module(module), function)


def refusals(name: str, parameters: dict[str, Any]) -> list[str]:
    """What Prefect's server answers to such a run, by its own check of the form."""
    schema = parameter_schema(flow_of(name)).model_dump()
    errors = validate(parameters, schema, raise_on_error=False, preprocess=True)
    return [error.message for error in errors]


def test_the_deployments_have_their_fixed_names() -> None:
    names = {f"{flow_of(name).name}/{name}" for name in DEPLOYMENTS}
    assert {
        "train/quickstart",
        "train/mathchat",
        "train/dsbench",
        "evaluate/held-out",
        "audit/nightly",
        "update/gpu",
    } <= names


@pytest.mark.parametrize("name", PRESETS)
def test_a_deployment_holds_the_preset_of_its_name(name: str) -> None:
    config = TrainConfig.model_validate(DEPLOYMENTS[name]["parameters"]["config"])
    assert config == load_config(ROOT / "configs" / f"{name}.yaml")


def test_memory_is_stated_as_the_plan_has_it(tmp_path: Path) -> None:
    settings = Settings.model_validate({"MAPPA_HOME": tmp_path})
    stated: dict[str, int] = {}
    for name, each in DEPLOYMENTS.items():
        if each["entrypoint"] == "flows.train.train" and each["work_pool"]["name"] == "cpu":
            config = TrainConfig.model_validate(each["parameters"]["config"])
            (planned,) = plan_memory(config, settings, None, 23 * 2**30)
            (said,) = re.findall(r"(\d+) GB of memory", each["description"])
            assert int(said) == ceil(planned.host_bytes / GB), name
            stated[name] = int(said)
    assert stated.keys() >= {"quickstart", "quickstart_llm_coach", "dsbench"}
    most = f"at most {max(stated.values())} GB there"
    assert most in (ROOT / "docs" / "deploy.md").read_text()
    preset = (ROOT / "configs" / "quickstart_llm_coach.yaml").read_text()
    assert f"Memory: {stated['quickstart_llm_coach']} GB" in preset


@pytest.mark.parametrize("name", ["mathchat", "dsbench_paper"])
def test_on_a_gpu_the_plan_fits_it_and_the_memory_that_is_stated_beside(
    name: str, tmp_path: Path
) -> None:
    settings = Settings.model_validate({"MAPPA_HOME": tmp_path})
    each = DEPLOYMENTS[name]
    assert each["work_pool"]["name"] == "gpu"
    (stated,) = re.findall(r"GPU of (\d+) GB, with (\d+) GB of memory", each["description"])
    gpu, beside = (int(size) * GB for size in stated)
    config = TrainConfig.model_validate(each["parameters"]["config"])
    (planned,) = plan_memory(config, settings, int(gpu))
    assert planned.fits
    assert 0 < max(map(planned.host_peak, PHASES)) <= beside
    (short,) = plan_memory(config, settings, int(gpu / 2))
    assert not short.fits


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_what_is_deployed_passes_its_own_form(name: str) -> None:
    needed = {"run_name": "r"} if name in ("held-out", "audit") else {}
    needed |= {"event": "e"} if name == "audit" else {}
    needed |= {"run": "r"} if name == "champion" else {}
    if name == "gpu":
        needed |= {"run_id": str(uuid4()), "agent": "a", "iteration": 1, "config": {}}
    assert refusals(name, DEPLOYMENTS[name].get("parameters", {}) | needed) == []
    assert DEPLOYMENTS[name]["enforce_parameter_schema"] is True


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"rollout": {"iterations": 0}}, "0 is less than the minimum of 1"),
        ({"rollout": {"iteratons": 3}}, "'iteratons' was unexpected"),
        ({"algorithm": {"clip": 1.0}}, "1.0 is greater than or equal to the maximum of 1"),
        ({"coach": {"backend": "rul"}}, "'rul' is not one of"),
    ],
)
def test_the_form_refuses_what_is_out_of_bounds(config: object, said: str) -> None:
    (refusal,) = refusals("quickstart", {"config": config})
    assert said in refusal


def test_the_audits_margin_is_above_zero() -> None:
    assert refusals("nightly", {"margin": 0.0}) == ["0.0 is less than or equal to the minimum of 0"]


def test_triggers_and_automations_are_ones_that_prefect_understands() -> None:
    found = [trigger for each in DEPLOYMENTS.values() for trigger in each.get("triggers", ())]
    assert [DeploymentEventTrigger.model_validate(each).expect for each in found] == [
        {"mappa.update.registered"},
        {f"mappa.audit.{what}" for what in ("drift", "biased", "suspected", "cannot_tell")},
    ]
    file = yaml.safe_load((ROOT / "infra" / "automations.yaml").read_text())
    assert [AutomationCore.model_validate(each).enabled for each in file["automations"]] == [True]


def test_every_parameter_of_the_form_is_described() -> None:
    schema = parameter_schema(flow_of("quickstart")).model_dump()
    rollout = schema["definitions"]["RolloutConfig"]["properties"]
    assert rollout["iterations"]["description"] == "Rounds of rollout and update."
    assert rollout["iterations"]["minimum"] == 1
