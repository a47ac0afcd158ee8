"""The quickstart's bench takes finished runs of the preset and nothing else."""

from pathlib import Path

import pytest

from mappa_cli.benches import run_bench
from mappa_cli.benches.quickstart import read_result
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings

STORED = Path(__file__).parents[3] / "docs" / "quickstart.json"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("seed=1",), r"takes preset=NAME, seeds=1,2,3, homes=DIR,DIR, file=FILE and keys"),
        (("seeds=",), r"takes preset=NAME, seeds=1,2,3"),
        (("preset=no_such",), r"no_such"),
        (("rollout.problem=3",), r"rollout.problem"),
        (("seeds=1,two",), r"seeds=1,two are no numbers"),
        (("homes=/no/such/home",), r"there is no folder /no/such/home"),
        (("file=/no/such/folder/a.json",), r"there is no folder /no/such/folder, make it first"),
    ],
)
def test_what_it_cannot_do_is_refused_before_a_run(
    overrides: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        run_bench(
            "quickstart", overrides, Settings.model_validate({"MAPPA_HOME": tmp_path / "home"})
        )
    assert not (tmp_path / "home").exists()


def test_a_file_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"machine": "this one"}')
    for file in (other, tmp_path / "absent.json"):
        with pytest.raises(ConfigError, match="holds no result of bench quickstart"):
            read_result(file)


def test_every_stored_gain_is_that_of_its_own_counts() -> None:
    for one in read_result(STORED).results:
        right = {(line.phase, line.iteration): line.right for line in one.iterations}
        last = max(line.iteration for line in one.iterations)
        of = one.held_out.episodes
        gained = (right["held_out", last] - right["held_out", 0]) / of
        assert one.held_out.difference == pytest.approx(gained)
        assert one.held_out.low < one.held_out.difference < one.held_out.high
