"""`mappa audit` as a person or CI runs it."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import TypeAlias

import psycopg
import pytest
from typer.testing import CliRunner, Result

from mappa_cli.main import app
from mappa_core.audit.store import AuditStore
from mappa_core.core.errors import ConfigError, NotFound
from mappa_core.store import backup
from mappa_core.store.connection import for_psql
from tests.builders import make_run
from tests.conftest import execute

RUN = "biased-1"
CHAMP = {
    "problems": {
        "P_1": {
            "_text": "How many even numbers are prime?",
            "fws_annotations": {
                "one": {"text": "Only 2 is, so 1.", "start_idx": None, "end_idx": None},
                "other": {"text": "None is, so 0.", "start_idx": 0, "end_idx": 7},
            },
        }
    }
}
Mappa: TypeAlias = Callable[..., Result]


@pytest.fixture
def mappa(biased_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Mappa:
    monkeypatch.setenv("MAPPA_DATABASE_URL", biased_url)
    monkeypatch.setenv("MAPPA_HOME", str(tmp_path / "home"))

    def call(*arguments: str) -> Result:
        result = CliRunner().invoke(app, ["audit", *arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


def test_a_biased_coach_is_exit_code_3(mappa: Mappa) -> None:
    result = mappa(RUN, "--json", "--simulations", "5")
    assert result.exit_code == 3
    said = json.loads(result.stdout)
    assert said["verdict"] == "biased"
    # It may be the coach or the work: no rate takes a side.
    assert said["rates"] == {}
    assert set(said["unknowable_rates"]) == {
        "a bias of 0.5 is found",
        "an honest coach is called biased",
        "an honest coach is suspected",
    }
    (overall,) = [f for f in said["findings"] if f["kind"] == "task_type" and f["stratum"] == "all"]
    # The only bias is the planted one of three points, for regression.
    assert overall["subject"] == "regression"
    assert overall["low"] <= 3.0 <= overall["high"]
    (onset,) = [f for f in said["findings"] if f["kind"] == "onset"]
    assert onset["iteration"] == 1
    assert onset["detail"]["could_be"].split(", ")[0] == "1"
    drift = said["drift"]
    assert (drift["cause"], drift["task_types"], drift["model_changes"]) == ("none", [], [])


def test_a_wide_margin_calls_the_same_coach_equivalent(mappa: Mappa) -> None:
    result = mappa(RUN, "--json", "--margin", "4", "--simulations", "0")
    assert (result.exit_code, json.loads(result.stdout)["verdict"]) == (0, "equivalent")


def test_people_read_tables_and_the_findings_are_rows(mappa: Mappa, biased_url: str) -> None:
    result = mappa(RUN, "--simulations", "0")
    assert "verdict: biased" in result.stdout
    with psycopg.connect(for_psql(biased_url)) as connection:
        rows = connection.execute(
            "SELECT kind, sql FROM audit.findings WHERE run = %s", [RUN]
        ).fetchall()
        assert {"task_type", "onset", "update_share", "health", "drift"} <= {row[0] for row in rows}
        for kind, query in rows:
            assert connection.execute(query.encode()).fetchall(), kind


def test_the_report_is_one_page_with_a_query_for_every_number(mappa: Mappa, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    mappa(RUN, "--report", str(page), "--simulations", "5")
    text = page.read_text()
    HTMLParser().feed(text)
    assert not re.findall(r"(?:src|href)=[\"']?http", text)
    assert text.count("<svg") >= 4
    rows = text.count("<tr><td>")
    assert rows > 8
    assert text.count("FROM audit.findings WHERE finding_id") == rows


def test_debias_is_refused_on_a_regression_alone(mappa: Mappa, biased_url: str) -> None:
    with pytest.raises(ConfigError, match="a correction takes an experiment"):
        mappa(RUN, "--debias", "--simulations", "0")
    audit = AuditStore.open(biased_url)
    with pytest.raises(NotFound, match="no correction"):
        audit.correction(RUN)
    audit.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name one run"),
        ([RUN, "--self-test"], "name one run"),
        ([RUN, "--margin", "0"], "above 0"),
        ([RUN, "--debias", "--database", "postgresql://x"], "writes nothing"),
    ],
)
def test_bad_input_is_refused(mappa: Mappa, arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        mappa(*arguments)


def test_an_unknown_run_or_second_coach_is_named(mappa: Mappa) -> None:
    with pytest.raises(NotFound, match="no run is called nothing"):
        mappa("nothing")


def test_a_fair_coach_passes_before_training(mappa: Mappa, tmp_path: Path) -> None:
    preset = tmp_path / "preset.yaml"
    preset.write_text("problems: {levels: [1], train_size: 60, held_out_size: 8}\n")
    champ = tmp_path / "v0.json"
    champ.write_text(json.dumps(CHAMP))
    result = mappa("--before", "--config", str(preset), "--champ", str(champ), "--json")
    said = json.loads(result.stdout)
    assert (said["exam"]["passed"], said["exam"]["pairs"]) == (True, 54)
    # No rule reads an argument: what it says of two solutions is a guess.
    assert (said["champ"]["passed"], said["champ"]["pairs"]) == (False, 1)
    assert {null["policy"] for null in said["null_policies"]} == {
        "empty",
        "constant",
        "majority",
        "random",
        "crashing",
    }
    assert {null["verdict"] for null in said["null_policies"]} == {"equivalent"}
    features = {probe["feature"] for probe in said["probes"]}
    assert {"padding", "task relabelled", "role swapped", "order of earlier turns"} <= features
    assert {"outcome flipped to right", "outcome flipped to wrong"} <= features
    assert said["noise"]["within_deviation"] == 0.0
    assert result.exit_code == (3 if said["verdict"] == "biased" else 0)
    printed = mappa("--before", "--config", str(preset)).stdout
    assert "What doing nothing earns" in printed
    assert "Work whose order is known" in printed
    assert "91% of 54 pairs of work in their known order (82% to 96%" in printed
    assert "verdict: " in printed


def test_a_run_is_audited_without_what_trains_or_draws() -> None:
    code = (
        "import sys, mappa_cli.main, mappa_core.audit.run_audit, mappa_cli.printing.audits; "
        "print({'torch', 'prefect', 'mlflow', 'matplotlib'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


def test_the_self_test_prints_its_rates(mappa: Mappa) -> None:
    result = mappa("--self-test", "--simulations", "2", "--json")
    assert len(json.loads(result.stdout)) == 16


def test_a_restored_backup_gives_the_same_audit_and_is_not_written_to(
    mappa: Mappa,
    biased_url: str,
    new_database: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Years later: only the views of a restored dump, and no store of our own."""
    here = json.loads(mappa(RUN, "--json", "--simulations", "0").stdout)
    dump, other = tmp_path / "years-ago.dump", new_database()
    backup.backup(biased_url, dump)
    backup.restore(other, dump)
    execute(other, "DELETE FROM mappa.audit_finding")
    monkeypatch.delenv("MAPPA_DATABASE_URL")
    there = json.loads(mappa(RUN, "--json", "--simulations", "0", "--database", other).stdout)
    assert there["findings"] == here["findings"]
    assert (here["look_counted"], there["look_counted"]) == (True, False)
    audit = AuditStore.open(other)
    assert audit.findings(make_run(RUN).id) == ()
    audit.close()
