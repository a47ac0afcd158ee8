"""A damaged checkpoint is found before it is used, and the run goes on from the one before it."""

import sys
from pathlib import Path

import pytest
import yaml

from mappa_cli.commands.train import forked_config
from mappa_cli.main import main
from mappa_core.app.config import TrainConfig
from mappa_core.core.errors import CoachError, ConfigError, LearnerError
from mappa_core.core.records.runs import RunStatus
from mappa_core.core.settings import Settings
from mappa_core.store.store import Store
from tests.e2e.conftest import MakeServices
from tests.e2e.test_resume import Dying, run, weights


@pytest.fixture
def config(toy_config: TrainConfig) -> TrainConfig:
    shorter = toy_config.rollout.model_copy(update={"iterations": 4, "episodes_per_problem": 2})
    return toy_config.model_copy(update={"rollout": shorter})


def damage(store: Store, run_id: object, step: int) -> Path:
    """Flip one bit of a checkpoint's weights."""
    (folder,) = [
        Path(checkpoint.directory)
        for policy, checkpoint in store.policies.list_checkpoints(
            store.runs.get_run(str(run_id)).id
        )
        if policy.step == step
    ]
    file = folder / "adapter_model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    return file


def forked_by_the_command(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> TrainConfig:
    """What the command of an error message would start.

    It is printed before the team, which only these tests know, is refused.
    """
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", [*command.split(), "--dry-run"])
    with pytest.raises(SystemExit) as left:
        main()
    said = capsys.readouterr()
    assert left.value.code == 2
    assert "no team is called 'monologue'" in said.err
    return TrainConfig.model_validate(yaml.safe_load(said.out))


def test_a_damaged_checkpoint_costs_one_iteration_and_no_row(
    store: Store,
    make_services: MakeServices,
    config: TrainConfig,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(make_services(config), config)
    undisturbed = weights(store)
    with pytest.raises(CoachError):
        run(make_services(config, Dying(calls_left=4 * 3 + 2)), config)
    (broken, *_) = store.runs.list_runs()
    rows = store.episodes.list_episodes(broken.id), store.policies.list_checkpoints(broken.id)
    file = damage(store, broken.id, 3)

    with pytest.raises(LearnerError, match="SHA-256") as caught:
        run(make_services(config), config, broken.name)
    message = str(caught.value)
    assert message.startswith(f"checkpoint file {file} is damaged")
    command = message.rpartition(": ")[2]
    assert command == f"mappa train --fork {broken.id}"
    assert store.runs.get_run(broken.name).status is RunStatus.FAILED

    monkeypatch.setenv("MAPPA_DATABASE_URL", database_url)
    forked = forked_by_the_command(command, monkeypatch, capsys)
    assert (forked.start.run, forked.start.step) == (str(broken.id), 2)
    assert forked.model_copy(update={"start": config.start}) == config
    with pytest.raises(ConfigError, match="trains other weights"):
        forked_config(broken.name, None, ["learner.lora.rank=3"], Settings())
    run(make_services(forked), forked)
    (fork, *_) = store.runs.list_runs()
    assert (fork.status, fork.id == broken.id) == (RunStatus.COMPLETED, False)
    # It does what the damaged run would have done, from there on.
    assert weights(store) == undisturbed[2:]
    assert (
        store.episodes.list_episodes(broken.id),
        store.policies.list_checkpoints(broken.id),
    ) == rows
    assert store.updates.get_update(fork.id, "speaker", 2) is None

    full = forked.learner.model_copy(update={"weights": "full"})
    with pytest.raises(ConfigError, match="trains other weights"):
        run(make_services(config), forked.model_copy(update={"learner": full}))
    with pytest.raises(ConfigError, match="after 0 to 3 updates, not 4"):
        run(make_services(config), with_start(config, str(broken.id), 4))
    with pytest.raises(LearnerError, match="mappa train --fork"):
        run(make_services(config), with_start(config, broken.name, 3))
    assert len(store.runs.list_runs()) == 3


def with_start(config: TrainConfig, source: str, step: int) -> TrainConfig:
    """Longer than the run it goes on from."""
    return TrainConfig.model_validate(
        config.model_dump()
        | {
            "start": {"run": source, "step": step},
            "rollout": config.rollout.model_dump() | {"iterations": 6},
        }
    )
