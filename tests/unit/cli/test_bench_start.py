"""What `mappa bench start` reads of a start, and what it makes of several."""

import pytest
from rich.console import Console

from mappa_cli.benches.start import AIM_SECONDS, PLAYS, STAGES, stages_of, start_figures
from mappa_cli.printing.progress import TerminalProgress
from mappa_core.core.errors import OutsideError

PRINTED = ("Prefect", "model", "sandbox", "database", "coach", "engines")


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    progress = TerminalProgress(Console())
    for message in PRINTED:
        progress.on_starting(message)
    progress.on_phase_started("held_out", 0, 64)
    return capsys.readouterr().out.splitlines()


def test_it_reads_what_a_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    lines = list(enumerate([*printed(capsys), "and more"], start=1))
    assert stages_of((float(number), line) for number, line in lines) == {
        "starting Prefect": 1.0,
        "starting model": 2.0,
        "starting sandbox": 3.0,
        "starting database": 4.0,
        "starting engines": 6.0,
        PLAYS: 7.0,
    }


def test_a_start_that_ends_early_is_told_with_its_last_words() -> None:
    with pytest.raises(OutsideError, match=r"never said `held-out 0:`, but at last: no space left"):
        stages_of([(1.0, "starting model ..."), (2.0, "no space left\n"), (2.5, "\n")])


def test_the_parts_add_up_to_the_medians() -> None:
    def start(*seconds: float) -> dict[str, float]:
        return dict(zip(STAGES, seconds, strict=True))

    alone = [start(2, 9, 10, 11, 12, second) for second in (20.0, 16.0, 40.0)]
    beside = [start(1, 5, 6, 7, 8, second) for second in (11.0, 10.0, 14.0)]
    found = {figure.name: figure for figure in start_figures(alone, beside)}
    assert found["by itself, to the first episodes"].value == 20.0
    left = found["beside mappa serve --engines"]
    assert (left.value, left.met) == (11.0, AIM_SECONDS >= 11.0)
    assert found["the second over the first"].value == 11.0 / 20.0
    parts = [figure.value for name, figure in found.items() if name.startswith("of the second")]
    assert parts == [1, 4, 1, 1, 1, 3]
    assert sum(parts) == left.value
