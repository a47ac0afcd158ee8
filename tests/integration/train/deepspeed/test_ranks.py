"""Ranks live as long as what started them, and no longer."""

import logging
import os
import select
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from mappa_core.core.errors import ConfigError, LearnerError
from mappa_core.core.ids import policy_version_id
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.updates import UpdateReport
from mappa_core.train.config import DeepspeedConfig, LearnerConfig
from mappa_core.train.learners.checkpoint_learner import UpdateJob
from mappa_core.train.learners.deepspeed.exchange import RankReply, RankTask, written_task
from mappa_core.train.learners.deepspeed.launch import Ranks
from mappa_core.train.learners.deepspeed.learner import DeepspeedLearner, devices_of
from mappa_core.train.learners.torch_learner import TorchLearner
from tests.integration.train.deepspeed.updates import (
    ALGORITHM,
    CONFIG,
    Zero,
    assert_same,
    batch,
    spread,
    updates,
    updates_beside,
)
from tests.integration.train.learner.samples import BASE, actions
from tests.tiny_model import save_tiny_model

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed here")


def test_ranks_that_do_not_get_on_are_given_up(tiny_model: Path, tmp_path: Path) -> None:
    hurried = DeepspeedConfig(ranks=1, timeout_seconds=0.1)
    config = CONFIG.model_copy(update={"deepspeed": hurried})
    learner = DeepspeedLearner(tiny_model, tmp_path, config, threads=1)
    with pytest.raises(LearnerError, match=r"not get on for 0 s: read .*deepspeed\.log"):
        learner.update(BASE, batch(), ALGORITHM, total_steps=4, seed=3)


class Steady:
    """Ranks that do a part of their task every 0.1 s, and all of it in 1 s."""

    alive = True

    def __init__(self) -> None:
        self._parts = 0

    def hand_over(self, number: int, task: Path) -> None:
        """Begin."""

    def progress(self, task: Path) -> int:
        """Count its looks: each part has five."""
        self._parts += 1
        return self._parts // 5

    def reply(self, number: int, task: Path) -> bytes | None:
        """Reply once ten parts are done."""
        return TypeAdapter(RankReply).dump_json(RankReply()) if self._parts == 50 else None

    def close(self) -> None:
        """Nothing runs."""


def test_an_update_may_take_any_time_while_its_ranks_get_on(tmp_path: Path) -> None:
    slow = DeepspeedConfig(ranks=1, timeout_seconds=0.4)
    launched = {"threads": 1, "launcher": lambda *_: Steady()}
    with closing(Ranks(slow, tmp_path, tmp_path / "log", **launched)) as ranks:
        started = time.monotonic()
        assert ranks.reply_to(tmp_path / "job.json") == RankReply()
        assert time.monotonic() - started > slow.timeout_seconds


LAUNCH = "mappa_core.train.learners.deepspeed.launch"
LONG_MS = 120_000
PARENT = """
import sys
from pathlib import Path
from mappa_core.train.learners.deepspeed.launch import Ranks
from mappa_core.train.config import DeepspeedConfig

job = Path(sys.argv[1])
Ranks(DeepspeedConfig(ranks=1), job.parent, job.with_suffix(".log"), threads=1).reply_to(job)
"""


def test_ranks_do_not_outlive_a_process_that_is_killed(tmp_path: Path) -> None:
    # A job that is never written holds its rank, and tells when it has come and when it is gone.
    os.mkfifo(job := tmp_path / "job.json")
    words = [sys.executable, "-c", PARENT, str(job)]
    with subprocess.Popen(words) as parent, job.open("wb") as rank:
        parent.kill()
        gone = select.poll()
        gone.register(rank, 0)
        assert gone.poll(LONG_MS) == [(rank.fileno(), select.POLLERR)]
    assert not list(tmp_path.glob(".ranks-*"))


def task_of(policy: PolicyVersion, directory: Path) -> RankTask:
    update = UpdateJob(
        policy=policy,
        samples=tuple(batch()),
        algorithm=ALGORITHM,
        total_steps=4,
        seed=3,
        directory=str(directory),
    )
    return RankTask(base_model="", policy=policy, learner=spread(2, 1), update=update)


def test_an_update_taken_up_again_takes_the_job_from_an_earlier_attempt(tmp_path: Path) -> None:
    mine = task_of(BASE, tmp_path)
    another = task_of(replace(BASE, id=policy_version_id(BASE.run_id, "critic", 0)), tmp_path)
    with (
        written_task(tmp_path, mine) as earlier,
        written_task(tmp_path, another) as other,
    ):
        with written_task(tmp_path, mine) as again:
            assert [file.exists() for file in (earlier, other, again)] == [
                False,
                True,
                True,
            ]
        assert not again.exists()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_ranks_whose_job_is_gone_save_nothing(tiny_model: Path, tmp_path: Path) -> None:
    job = replace(task_of(BASE, tmp_path / "saved"), base_model=str(tiny_model))
    os.mkfifo(file := tmp_path / "job.json")
    ranks = Ranks(job.learner.deepspeed, tmp_path, tmp_path / "ranks.log", threads=1)
    with closing(ranks), ThreadPoolExecutor() as learner:
        running = learner.submit(ranks.reply_to, file)
        with file.open("wb") as rank:
            rank.write(TypeAdapter(RankTask).dump_json(job))
            file.unlink()
        reply = running.result()
    assert "nothing was saved" in str(reply.error)
    assert not (tmp_path / "saved").exists()


@pytest.mark.slow
def test_what_fails_on_a_rank_is_one_line(zero: Zero, tmp_path: Path) -> None:
    away = replace(BASE, step=4, adapter_uri=str(tmp_path / "gone" / "4"))
    learner = zero(spread(1, 2))
    with pytest.raises(LearnerError, match=r"gone/4/.*mappa train --fork "):
        learner.update(away, batch(), ALGORITHM, total_steps=4, seed=3)


@pytest.mark.slow
def test_a_run_starts_its_ranks_once_and_leaves_nothing_in_them(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = spread(3, 2, weights="full")
    learner = DeepspeedLearner(tiny_model, tmp_path / "zero", config, threads=1)
    torch_learner = TorchLearner(tiny_model, tmp_path, config, threads=1)
    agents = [replace(BASE, agent=name) for name in ("solver", "executor", "verifier")]
    latest: dict[str, list[UpdateReport]] = {}
    with closing(learner), caplog.at_level(logging.INFO, LAUNCH):
        for _ in range(3):
            for base in agents:
                before = latest[base.agent][-1].policy if base.agent in latest else base
                learner.logprobs(base, actions(2))
                report = learner.update(before, batch(), ALGORITHM, total_steps=4, seed=3)
                latest.setdefault(base.agent, []).append(report)
    assert [one.getMessage().split(",")[0] for one in caplog.records] == ["started 2 ranks"]
    # Agents whose batches are equal end with equal weights: nothing of one was left to the next.
    expected = updates_beside(latest["solver"], torch_learner)
    for reports in latest.values():
        assert_same(reports, expected)
        assert reports[2].checkpoint.sha256 == latest["solver"][2].checkpoint.sha256


@pytest.mark.slow
def test_an_update_leaves_nothing_in_a_ranks_memory(tmp_path: Path) -> None:
    base = save_tiny_model(tmp_path / "wide", hidden=384, layers=24)
    learner = DeepspeedLearner(base, tmp_path, spread(3, 1, weights="full"), threads=1)
    with closing(learner):
        _, second, third = updates(learner, 3)
    peaks = [one.metrics["peak_memory_bytes"] for one in (second, third)]
    # What DeepSpeed keeps of an ended engine made it 1.25 times.
    assert peaks[1] < 1.1 * peaks[0], peaks


@pytest.mark.slow
def test_a_rank_holds_only_its_part(tmp_path: Path) -> None:
    """Its share of a model that is large beside an update's activations, loading included."""
    base = save_tiny_model(tmp_path / "wide", hidden=384, layers=24)
    peaks: list[float] = []
    rows: list[dict[str, float]] = []
    for ranks in (2, 1):
        config = spread(3, ranks, weights="full")
        learner = DeepspeedLearner(base, tmp_path / str(ranks), config, threads=1)
        with closing(learner):
            reports = updates(learner, 2)
        peaks.append(max(one.metrics["peak_extra_memory_bytes"] for one in reports))
        rows.append({name: reports[-1].metrics[name] for name in ("loss", "grad_norm")})
    assert peaks[0] < 0.65 * peaks[1], peaks
    assert rows[0] == pytest.approx(rows[1], rel=2e-5)


def test_updates_at_once_have_gpus_of_their_own() -> None:
    config = LearnerConfig(updates_at_once=2, deepspeed=DeepspeedConfig(ranks=2))
    seen = ("0", "2", "3", "5")
    assert [devices_of(slot, config, seen) for slot in (0, 1)] == [("0", "2"), ("3", "5")]
    assert devices_of(1, config, ()) == ()
    with pytest.raises(ConfigError, match="needs 4 GPUs, and the learner has 3: lower one"):
        devices_of(0, config, seen[:3])
