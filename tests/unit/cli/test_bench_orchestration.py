"""What a task run costs is told beside what the run takes it for."""

from mappa_cli.benches.orchestration import task_run_figures
from mappa_cli.benches.task_runs import TaskRunCost
from mappa_core.app.recording import CALLER_SECONDS, RECORDER_SECONDS


def test_a_task_run_that_costs_more_than_is_taken_for_granted_misses_its_aim() -> None:
    cost = TaskRunCost(caller=CALLER_SECONDS, server=RECORDER_SECONDS)
    *_, beside = task_run_figures(cost, cores=2)
    assert (beside.value, beside.met) == (1.0, True)
    *_, beside = task_run_figures(TaskRunCost(caller=0.004, server=0.05), cores=2)
    assert beside.met is False
