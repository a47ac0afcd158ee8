"""The deployments on a real server with real workers: from `prefect deploy` to rows."""

import json
from pathlib import Path

import pytest

from tests.integration.platform.deployed import Platform, kill_machine, stop, tiny, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

UPDATES = "SELECT count(*) FROM mappa.update"


def test_a_deployed_run_survives_its_worker_and_the_form_refuses_nonsense(
    platform: Platform, tmp_path: Path
) -> None:
    config = tiny(tmp_path, iterations=2)
    refused = platform.start("train/quickstart", config=config | {"rollout": {"iterations": 0}})
    assert refused.status_code in (409, 422)
    assert "less than the minimum of 1" in refused.text

    flow_run = platform.start("train/quickstart", config=config).raise_for_status().json()["id"]
    first = platform.worker("first")
    wait_for("the first update", lambda: platform.rows(UPDATES) >= 1)
    kill_machine(first)
    assert platform.state(flow_run) == "RUNNING"  # no process is left to say otherwise
    assert platform.rows(UPDATES) < 6
    # infra/automations.yaml, after 100 seconds without a heartbeat.
    wait_for("the silence to be noticed", lambda: platform.state(flow_run) == "CRASHED")
    platform.done("flow-run", "retry", flow_run)
    platform.tell("mappa.audit.drift", "tiny", cause="coach", since=2, estimate=-0.7, limit=None)
    second = platform.worker("second")
    try:
        wait_for("the run to end", lambda: platform.state(flow_run) in ("COMPLETED", "FAILED"))
        wait_for("the alert", lambda: alerts(platform) == ["COMPLETED"])
    finally:
        stop(second)
    log = (tmp_path / "second.log").read_text()
    assert platform.state(flow_run) == "COMPLETED", log[-3000:]
    assert platform.rows("SELECT count(*) FROM mappa.run") == 1
    assert platform.rows("SELECT count(*) FROM mappa.run WHERE status = 'completed'") == 1
    assert platform.rows(UPDATES) == 6
    assert platform.rows("SELECT count(model_version) FROM mappa.checkpoint") == 6
    promoted(platform)


def promoted(platform: Platform) -> None:
    """Two updates of a tiny model prove nothing, and an override is what it takes."""
    refused = platform.mappa("promote", "tiny")
    assert refused.returncode == 1
    assert "is not promoted: the gain over the base model is not certified" in refused.stderr
    assert platform.mappa("promote", "tiny", "--override", "a test").returncode == 0
    listed = json.loads(platform.mappa("promote", "--list", "--json").stdout)
    champions = [each for each in listed if "champion" in each["aliases"]]
    assert {each["agent"]: each["step"] for each in champions} == {
        "problem_solver": 2,
        "code_executor": 2,
        "verifier": 2,
    }
    assert {each["promotion"]["override"] for each in champions} == {"a test"}


def alerts(platform: Platform) -> list[str]:
    found = platform.runs("alert")
    assert all(each["parameters"]["run_name"] == "tiny" for each in found)
    return [each["state_type"] for each in found]


def test_limits_and_pauses_of_pools_stay_when_the_stack_comes_up_again(platform: Platform) -> None:
    platform.done("work-pool", "set-concurrency-limit", "gpu", "1")
    platform.done("work-pool", "pause", "cpu")
    platform.set_up()
    pools = {name: platform.api.get(f"/work_pools/{name}").json() for name in ("cpu", "gpu")}
    assert pools["gpu"]["concurrency_limit"] == 1
    assert pools["cpu"]["is_paused"]
    assert not pools["gpu"]["is_paused"]


def test_updates_go_to_gpu_workers_and_every_update_is_evaluated(
    platform: Platform, tmp_path: Path
) -> None:
    platform.switch_on("evaluate every update")
    assert platform.automations().count("runs that fell silent have crashed") == 1
    config = tiny(tmp_path, iterations=1, deployment="update/gpu")
    flow_run = platform.start("train/quickstart", config=config).raise_for_status().json()["id"]
    workers = [platform.worker("cpu")]
    missing = "no worker of the pool gpu is there, `prefect worker start --pool gpu`"
    try:
        wait_for("a word about the worker", lambda: missing in platform.log(flow_run))
        workers.append(platform.worker("gpu", "gpu"))
        wait_for("the run to end", lambda: platform.state(flow_run) in ("COMPLETED", "FAILED"))
        wait_for("the evaluation", lambda: evaluations(platform) == [(1, "COMPLETED")])
    finally:
        stop(*workers)
    assert platform.state(flow_run) == "COMPLETED", (tmp_path / "cpu.log").read_text()[-3000:]
    sent = platform.runs("update")
    assert {(each["work_pool_name"], each["state_type"]) for each in sent} == {("gpu", "COMPLETED")}
    assert len(sent) == platform.rows(UPDATES) == 3
    assert all(each["parent_task_run_id"] for each in sent)
    assert platform.rows("SELECT count(model_version) FROM mappa.checkpoint") == 3


def evaluations(platform: Platform) -> list[tuple[int, str]]:
    """Step and state of each run of `evaluate`."""
    return [(each["parameters"]["step"], each["state_type"]) for each in platform.runs("evaluate")]
