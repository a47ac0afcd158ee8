"""Where things are does not depend on the current folder."""

from pathlib import Path

import pytest

from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings


def test_a_home_is_absolute_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/person")
    for given, meant in (("state", tmp_path / "state"), ("~/state", "/home/person/state")):
        monkeypatch.setenv("MAPPA_HOME", given)
        assert Settings().checkpoints == Path(meant) / "checkpoints"


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAPPA_HOME", "")
    monkeypatch.setenv("GOOGLE_API_KEY", "")
    settings = Settings()
    assert settings.home != Path.cwd()
    assert settings.secret("GOOGLE_API_KEY") is None


def test_a_variable_with_an_impossible_value_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAPPA_OUTAGE_SECONDS", "abc")
    with pytest.raises(ConfigError, match=r"MAPPA_OUTAGE_SECONDS=abc in the environment: .*num"):
        Settings()


@pytest.mark.parametrize("name", ["MAPPA_OUTAGE_SECONDS", "MAPPA_PATIENCE_SECONDS"])
def test_how_long_a_run_waits_is_read_by_its_new_and_its_old_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "30")
    assert Settings().outage_seconds == 30
    monkeypatch.setenv("MAPPA_OUTAGE_SECONDS", "40")
    assert Settings().outage_seconds == 40


@pytest.mark.parametrize(
    ("pages", "tracking", "found"),
    [
        ("", "", "http://127.0.0.1:5000"),
        ("", "postgresql+psycopg://mappa:secret@db/mlflow", "http://127.0.0.1:5000"),
        ("", "https://me:secret@mlflow.example:8443/team/", "https://mlflow.example:8443/team"),
        ("http://localhost:5000/", "http://mlflow:5000", "http://localhost:5000"),
    ],
)
def test_links_lead_to_pages_that_a_browser_finds_and_carry_no_password(
    pages: str, tracking: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAPPA_MLFLOW_PAGES", pages)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking)
    assert Settings().mlflow_pages == found
