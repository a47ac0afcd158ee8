"""A fork has its source's weights by reference, and the source leaves them there."""

from dataclasses import replace
from pathlib import Path

import pytest

from mappa_core.core.errors import LearnerError
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.runs import Run
from mappa_core.store.store import Store
from mappa_core.train.forking import adopt, newest_whole_step
from mappa_core.train.retention import superseded
from tests.builders import make_policy, make_run, make_update


@pytest.fixture
def source(store: Store, tmp_path: Path) -> Run:
    """Four updates of one agent, each of which played better than the one before."""
    run = make_run("source")
    store.runs.add_run(run)
    store.policies.add_policy_version(make_policy(run, "solver", 0))
    for step in (1, 2, 3, 4):
        update, policy, checkpoint = make_update(run, "solver", step)
        folder = tmp_path / str(step)
        folder.mkdir()
        store.updates.add_update(
            replace(update, metrics={"score_mean": float(step)}),
            replace(policy, adapter_uri=str(folder)),
            replace(checkpoint, directory=str(folder)),
        )
    return run


def retired(store: Store, run: Run) -> list[str]:
    return [Path(old.directory).name for old in superseded(store, run.id, "solver", 1, 0)]


def test_weights_that_a_fork_goes_on_from_are_kept(store: Store, source: Run) -> None:
    assert retired(store, source) == ["1", "2"]
    fork, fork_of_it = make_run("fork"), make_run("fork-of-it")
    for run in (fork, fork_of_it):
        store.runs.add_run(run)
    adopt(source, fork.id, store, 2)
    assert retired(store, source) == []
    assert retired(store, fork) == []
    adopt(fork, fork_of_it.id, store, 1)
    theirs = {
        policy.step: policy.adapter_uri for policy in store.policies.list_policy_versions(source.id)
    }
    assert [
        policy.adapter_uri for policy in store.policies.list_policy_versions(fork_of_it.id)
    ] == [None, theirs[1]]
    assert store.policies.checkpoints_shared_with_forks(fork.id) == {theirs[1], theirs[2]}


def test_the_newest_whole_weights_are_found_without_reading_all(store: Store, source: Run) -> None:
    read: list[int] = []

    def check(policy: PolicyVersion) -> None:
        read.append(policy.step)
        if policy.step == 4:
            raise LearnerError("damaged")

    assert newest_whole_step(store, source.id, check) == 3
    assert read == [4, 3]
