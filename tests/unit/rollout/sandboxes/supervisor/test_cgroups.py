"""The files written, on a pretend /sys: version 2 with controllers is not on every machine."""

from pathlib import Path

import pytest

from mappa_core.core.records.tools import Limits
from mappa_core.rollout.sandboxes.supervisor.cgroups import Group, find_hierarchy


def group(version: int, folder: Path) -> Group:
    return Group(version=version, folders=dict.fromkeys(("memory", "pids", "cpuacct"), folder))


def test_version_2_writes_its_limits_and_reads_its_figures(tmp_path: Path):
    made = group(2, tmp_path / "mappa-1")
    made.create(Limits(memory_bytes=1000, processes=5))
    written = {path.name: path.read_text() for path in (tmp_path / "mappa-1").iterdir()}
    assert written == {"pids.max": "7", "memory.max": "1000", "memory.oom.group": "1"}
    (tmp_path / "mappa-1/cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (tmp_path / "mappa-1/memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    assert made.cpu_seconds() == 2.5
    assert made.out_of_memory()
    assert made.peak_memory_bytes() is None  # before Linux 5.19
    (tmp_path / "mappa-1/memory.peak").write_text("900\n")
    assert made.peak_memory_bytes() == 900


def test_version_1_reads_its_figures(tmp_path: Path):
    made = group(1, tmp_path)
    (tmp_path / "cpuacct.usage").write_text("1500000000\n")
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    (tmp_path / "memory.max_usage_in_bytes").write_text("12\n")
    figures = made.cpu_seconds(), made.out_of_memory(), made.peak_memory_bytes()
    assert figures == (1.5, False, 12)


@pytest.mark.parametrize("listing", ["0::/user.slice\n", "3:cpu:/\n"])
def test_a_machine_without_controllers_has_no_hierarchy(tmp_path: Path, listing: str):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(listing)
    assert find_hierarchy(tmp_path) is None
