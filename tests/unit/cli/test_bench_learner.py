from pathlib import Path

import pytest

from mappa_cli.benches.learner import TRL_SCRIPT, bench_learner
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("sequence=3", "bench learner has no option sequence: choose from trl_python, sequences"),
        ("settings=lora,fulll", "no setting fulll: choose from lora, full, shared"),
        ("micro_batches=1,two", "micro_batches=1,two is no number"),
        ("trl_python=/nowhere/python", "trl_python=/nowhere/python is no interpreter"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_measured(
    tmp_path: Path, option: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        bench_learner([option], Settings(MAPPA_HOME=tmp_path))


def test_the_script_that_measures_trl_is_where_the_bench_looks() -> None:
    assert "GRPOTrainer" in TRL_SCRIPT.read_text()
