"""The files of infra and docker-compose.yml agree with Ray and with what MAPPA sets."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from mappa_core.core.heap import TUNABLES

ROOT = Path(__file__).parents[3]


def text(name: str) -> str:
    return (ROOT / name).read_text()


def test_every_place_that_names_rays_version_names_the_same() -> None:
    asked, *_ = tomllib.loads(text("pyproject.toml"))["project"]["optional-dependencies"]["ray"]
    version = asked.removeprefix("ray[default]==")
    for name in (
        *("docker-compose.yml", "infra/Dockerfile", "infra/ray/kuberay.yaml"),
        *("requirements/dev.lock", "requirements/gpu.lock"),
    ):
        named = re.findall(r"(?:ray==|rayVersion: \")([\d.]+)", text(name))
        assert set(named) == {version}, name


def test_rays_cluster_launcher_reads_the_file_for_plain_machines() -> None:
    util = pytest.importorskip("ray.autoscaler._private.util")
    given = yaml.safe_load(text("infra/ray/vms.yaml"))
    prepared = util.prepare_config(given)
    util.validate_config(prepared)
    (kind,) = prepared["available_node_types"].values()
    assert kind["min_workers"] == len(given["provider"]["worker_ips"])
    with pytest.raises(Exception, match="not of type 'string'"):
        util.validate_config({**prepared, "cluster_name": 3})


def test_the_worker_in_kubernetes_finds_the_clusters_head() -> None:
    parts = {each["kind"]: each for each in yaml.safe_load_all(text("infra/ray/kuberay.yaml"))}
    (worker,) = parts["Deployment"]["spec"]["template"]["spec"]["containers"]
    address = {each["name"]: each["value"] for each in worker["env"]}["RAY_ADDRESS"]
    # KubeRay's name for it.
    assert address == f"{parts['RayCluster']['metadata']['name']}-head-svc:6379"
    mounts = {each["mountPath"] for each in worker["volumeMounts"]}
    (group,) = parts["RayCluster"]["spec"]["workerGroupSpecs"]
    (node,) = group["template"]["spec"]["containers"]
    assert "/var/lib/mappa" in mounts & {each["mountPath"] for each in node["volumeMounts"]}


def test_kuberay_can_ask_the_image_for_the_nodes_health() -> None:
    # Its probes call wget, and the agent that answers them comes with Ray's dashboard.
    (line,) = re.findall(r"apt-get install .*", text("infra/Dockerfile"))
    assert "wget" in line.split()
    locked = {line.partition("==")[0] for line in text("requirements/gpu.lock").splitlines()}
    assert {"aiohttp-cors", "colorful", "opencensus"} <= locked


def test_a_worker_in_compose_learns_with_the_heap_of_a_command() -> None:
    services = yaml.safe_load(text("docker-compose.yml"))["services"]
    assert services["worker"]["environment"].items() >= TUNABLES.items()
