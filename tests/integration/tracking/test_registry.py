"""Checkpoints become model versions once, whatever is repeated or interrupted."""

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from mappa_core.core.errors import TrackerError, TrackerUnreachable
from mappa_core.core.outage import OutageRetry
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.runs import Run
from mappa_core.core.records.updates import Checkpoint
from mappa_core.models import tensor_files
from mappa_core.models.layout import layout_of
from mappa_core.tracking.mlflow.client import open_client
from mappa_core.tracking.mlflow.registry import MlflowRegistry, identity_tags
from mappa_core.tracking.mlflow.tracker import MlflowTracker
from tests.adapter_files import write_adapter
from tests.builders import make_policy
from tests.tiny_model import save_tiny_model
from tests.trained_weights import loaded_plainly, write_trained

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

NAME = "mappa-mathchat-solver"


@pytest.fixture
def tracker_run_id(tracker: MlflowTracker, run: Run) -> str:
    return tracker.start(run)


@pytest.fixture
def client(tracking_uri: str) -> "MlflowClient":
    return open_client(tracking_uri)


def register(
    registry: MlflowRegistry, policy: PolicyVersion, checkpoint: Checkpoint, tracker_run_id: str
) -> str:
    return registry.register(
        NAME,
        policy,
        checkpoint,
        tracker_run_id=tracker_run_id,
        tags={"mappa.iteration": str(policy.step), "prefect.flow_run_id": ""},
        alias="candidate",
    )


def test_a_version_links_to_its_run_its_rows_and_its_files(
    registry: MlflowRegistry,
    client: "MlflowClient",
    policy: PolicyVersion,
    checkpoint: Checkpoint,
    tracker_run_id: str,
    artifacts: Path,
) -> None:

    assert register(registry, policy, checkpoint, tracker_run_id) == "1"

    version = client.get_model_version_by_alias(NAME, "candidate")
    assert int(version.version) == 1
    assert version.run_id == tracker_run_id
    assert version.tags == identity_tags(policy, checkpoint) | {"mappa.iteration": "1"}
    stored = Path(version.source or "")
    assert stored.is_relative_to(artifacts)
    assert {path.name for path in stored.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    (model,) = client.search_logged_models([client.get_run(tracker_run_id).info.experiment_id])
    assert model.source_run_id == tracker_run_id
    assert model.status == "READY"


def test_nothing_lands_beside_the_given_places(
    registry: MlflowRegistry,
    policy: PolicyVersion,
    checkpoint: Checkpoint,
    tracker_run_id: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    register(registry, policy, checkpoint, tracker_run_id)
    assert list(elsewhere.iterdir()) == []
    assert "MLFLOW_TRACKING_URI" not in os.environ


def test_registering_one_checkpoint_twice_returns_its_version(
    registry: MlflowRegistry,
    client: "MlflowClient",
    policy: PolicyVersion,
    checkpoint: Checkpoint,
    tracker_run_id: str,
) -> None:
    first = register(registry, policy, checkpoint, tracker_run_id)
    again = register(registry, policy, checkpoint, tracker_run_id)
    assert first == again == "1"
    assert len(client.search_model_versions(f"name = '{NAME}'")) == 1


def test_a_registration_cut_short_is_completed_by_the_next(
    registry: MlflowRegistry,
    client: "MlflowClient",
    policy: PolicyVersion,
    checkpoint: Checkpoint,
    tracker_run_id: str,
) -> None:
    experiment = client.get_run(tracker_run_id).info.experiment_id
    # As a kill after the first call leaves it: a logged model without files or version.
    left = client.create_logged_model(
        experiment, source_run_id=tracker_run_id, tags=identity_tags(policy, checkpoint)
    )

    register(registry, policy, checkpoint, tracker_run_id)

    (model,) = client.search_logged_models([experiment])
    assert model.model_id == left.model_id
    assert model.status == "READY"
    assert client.get_model_version_by_alias(NAME, "candidate").source == left.artifact_location


def test_an_mlflow_that_is_away_when_it_is_first_needed_is_waited_for() -> None:
    told: list[str] = []
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, never listening: every connection is refused
        uri = f"http://127.0.0.1:{held.getsockname()[1]}"
        registry = MlflowRegistry(uri, OutageRetry(seconds=0.3, tell=told.append))
        with pytest.raises(TrackerUnreachable, match="not reachable"):
            registry.models()
    assert [line for line in told if line.endswith("waiting up to 0 s")]


def test_models_are_listed_past_mlflows_first_page(
    registry: MlflowRegistry, client: "MlflowClient"
) -> None:
    names = [f"mappa-team{number:03}-solver" for number in range(101)]
    for name in [*names, "anothers"]:
        client.create_registered_model(name)
    assert registry.models() == tuple(names)


def test_a_lost_alias_is_set_again_and_an_old_repeat_does_not_take_it_back(
    registry: MlflowRegistry,
    client: "MlflowClient",
    run: Run,
    tmp_path: Path,
    tracker_run_id: str,
) -> None:
    policies = [make_policy(run, "solver", step) for step in (1, 2)]
    checkpoints = [write_adapter(tmp_path, policy) for policy in policies]
    for policy, checkpoint in zip(policies, checkpoints, strict=True):
        register(registry, policy, checkpoint, tracker_run_id)
    register(registry, policies[0], checkpoints[0], tracker_run_id)
    assert int(client.get_model_version_by_alias(NAME, "candidate").version) == 2

    client.delete_registered_model_alias(NAME, "candidate")
    register(registry, policies[1], checkpoints[1], tracker_run_id)
    assert int(client.get_model_version_by_alias(NAME, "candidate").version) == 2


def test_weights_that_changed_on_disk_are_refused(
    registry: MlflowRegistry,
    client: "MlflowClient",
    policy: PolicyVersion,
    checkpoint: Checkpoint,
    tracker_run_id: str,
) -> None:
    (Path(checkpoint.directory) / "adapter_model.safetensors").write_bytes(b"flipped")
    with pytest.raises(TrackerError, match="is not what the store recorded"):
        register(registry, policy, checkpoint, tracker_run_id)
    assert client.search_registered_models() == []


def test_a_checkpoint_without_weights_is_refused_in_one_line(
    registry: MlflowRegistry,
    policy: PolicyVersion,
    checkpoint: Checkpoint,
    tracker_run_id: str,
) -> None:
    (Path(checkpoint.directory) / "adapter_model.safetensors").unlink()
    with pytest.raises(TrackerError, match=r"lacks adapter_model\.safetensors") as raised:
        register(registry, policy, checkpoint, tracker_run_id)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("weights", ["lora", "full"])
def test_what_is_downloaded_by_alias_is_the_policy_that_was_registered(
    policy: PolicyVersion,
    tracker_run_id: str,
    tracking_uri: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    weights: Literal["lora", "full"],
    dtype: Literal["float32", "bfloat16"],
) -> None:
    import mlflow.artifacts
    import torch

    registry = MlflowRegistry(tracking_uri, dtype=dtype)
    base = save_tiny_model(tmp_path / "base")
    checkpoint = write_trained(base, tmp_path / "trained", policy, weights, size=0.05)
    register(registry, policy, checkpoint, tracker_run_id)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri)  # as a person would say it
    champion = mlflow.artifacts.download_artifacts(
        f"models:/{NAME}@candidate", dst_path=str(tmp_path / "downloaded")
    )

    assert not (Path(champion) / "optimizer.safetensors").exists()
    tokens = torch.tensor([[1, 2, 3]])
    plain, trained, untrained = (
        loaded_plainly(base, folder) for folder in (champion, checkpoint.directory, None)
    )
    # torch's rounding is another's than the registry's, and the checkpoint stays exact.
    rounded = getattr(torch, dtype)
    exact = dict(trained.named_parameters())
    for name, parameter in plain.named_parameters():
        registered = weights == "full" or "lora_" in name
        kept = exact[name].to(rounded).float() if registered else exact[name]
        assert torch.equal(parameter, kept)
    file, read = layout_of(Path(champion)).weights, tensor_files.read
    assert {tensor.dtype for tensor in read(Path(champion) / file).values()} == {rounded}
    if dtype == "float32":
        torch.testing.assert_close(plain(tokens).logits, trained(tokens).logits)
    assert not torch.allclose(plain(tokens).logits, untrained(tokens).logits)


def test_full_weights_that_are_not_whole_are_refused(
    registry: MlflowRegistry,
    policy: PolicyVersion,
    checkpoint: Checkpoint,
    tracker_run_id: str,
) -> None:
    (Path(checkpoint.directory) / "config.json").write_text("{}")
    with pytest.raises(TrackerError, match=r"lacks model\.safetensors: train it again"):
        register(registry, policy, checkpoint, tracker_run_id)
