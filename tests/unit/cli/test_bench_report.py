from dataclasses import asdict

from rich.console import Console

from mappa_cli.benches.report import BenchReport, Figure
from mappa_cli.commands.bench import bench_table


def test_what_could_not_be_measured_is_named_with_its_reason() -> None:
    reason = "docker: there is no image"
    figure = Figure(name="print(1)", value=41.0, unit="ms")
    report = BenchReport(bench="sandbox", machine="here", figures=(figure,), absent=(reason,))
    console = Console(width=200)
    with console.capture() as printed:
        console.print(bench_table(report))
    assert f"not measured: {reason}" in printed.get()
    assert asdict(report)["absent"] == (reason,)
