"""The quickstart's bench takes finished runs of the preset and nothing else."""

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from mappa_cli.benches import run_bench
from mappa_cli.benches.quickstart import RepeatedResult, quickstart_figures, read_result
from mappa_core.audit.exam.cases import KINDS, RIGHT_OVER_WRONG
from mappa_core.audit.statistics.ordering import CHANCE
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings
from mappa_core.evaluate.comparison import compare

DOCS = Path(__file__).parents[3] / "docs"
both = pytest.mark.parametrize("stored", ["quickstart", "quickstart_llm_coach"])


def results_of(stored: str) -> RepeatedResult:
    return read_result(DOCS / f"{stored}.json")


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


@both
def test_every_stored_gain_is_that_of_its_own_counts(stored: str) -> None:
    for one in results_of(stored).results:
        right = {(line.phase, line.iteration): line.right for line in one.iterations}
        last = max(line.iteration for line in one.iterations)
        of = one.held_out.episodes
        gained = (right["held_out", last] - right["held_out", 0]) / of
        assert one.held_out.difference == pytest.approx(gained)
        assert one.held_out.low < one.held_out.difference < one.held_out.high


@both
def test_every_stored_interval_is_that_of_its_own_counts(stored: str) -> None:
    for one in results_of(stored).results:
        held_out = one.held_out
        # One episode of each problem on each side: those that changed rose or fell by one.
        assert held_out.episodes == held_out.problems
        gained = round(held_out.difference * held_out.problems)
        risen, odd = divmod(held_out.changed + gained, 2)
        assert (odd, 0 <= risen <= held_out.changed) == (0, True)
        moves = [1.0] * risen + [-1.0] * (held_out.changed - risen)
        moves += [0.0] * (held_out.problems - held_out.changed)
        before = {UUID(int=number): [0.0] for number in range(held_out.problems)}
        after = {UUID(int=number): [move] for number, move in enumerate(moves)}
        again = compare(before, after, resamples=20_000, seed=0)
        # Other resamples: an end may be another problem's worth away.
        assert held_out.low == pytest.approx(again.low, abs=1.5 / held_out.problems)
        assert held_out.high == pytest.approx(again.high, abs=1.5 / held_out.problems)


def test_every_stored_mark_is_that_of_its_own_kinds() -> None:
    for one in results_of("quickstart_llm_coach").results:
        assert one.coach is not None
        mark = one.coach.exam
        assert mark is not None
        kinds = [line for line in mark.lines if line.of in KINDS]
        pairs = sum(line.pairs for line in kinds)
        assert mark.share == pytest.approx(sum(line.share * line.pairs for line in kinds) / pairs)
        assert mark.low < mark.share < mark.high
        deciding = [mark.low, *(line.low for line in kinds if line.of == RIGHT_OVER_WRONG)]
        assert mark.passed == (min(deciding) > CHANCE)


@both
def test_every_stored_run_is_one_of_its_own(stored: str) -> None:
    results = results_of(stored).results
    for names in zip(*((one.run, one.seed, one.iterations) for one in results), strict=True):
        assert len(set(names)) == len(results)


@both
def test_every_stored_run_reached_what_it_is_to_reach(stored: str) -> None:
    figures = list(quickstart_figures(results_of(stored)))
    assert [figure.name for figure in figures if figure.met is False] == []
    aims = {figure.name.partition(": ")[2] for figure in figures if figure.aim is not None}
    assert {"gain", "lower end of its 95 % interval"} <= aims


def test_a_seed_that_gained_too_little_or_took_too_long_is_told() -> None:
    stored = results_of("quickstart_llm_coach")
    first = stored.results[0]
    less = replace(first.held_out, difference=0.1, low=0.01)
    worse = replace(first, command_minutes=21.0, held_out=less)
    missed = [
        figure.name
        for figure in quickstart_figures(replace(stored, results=(worse,)))
        if figure.met is False
    ]
    assert missed == ["seed 1: gain", "seed 1: the whole command"]
