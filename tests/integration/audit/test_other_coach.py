"""Another coach's scores of a run: `mappa rescore` says how far they agree with those that trained,
`mappa audit RUN --against COACH` what they would have taught."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Protocol

import psycopg
import pytest
from typer.testing import CliRunner, Result

from mappa_cli.main import app
from mappa_core.app.config import TrainConfig
from mappa_core.core.errors import ConfigError
from mappa_core.store.connection import for_psql

ACTIONS = 72


class Mappa(Protocol):
    """The command on the run; `keys` are what a person types."""

    def __call__(self, *arguments: str, keys: str | None = None) -> Result: ...


@pytest.fixture
def stand_in() -> Iterator[str]:
    """A provider on this machine; yields its address."""
    command = [sys.executable, "-m", "mappa_cli.provider_stub", "--latency", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@pytest.fixture
def mappa(biased_url: str, monkeypatch: pytest.MonkeyPatch) -> Mappa:
    """The command on the biased run, which a configuration of the mathchat team is said to be."""
    config = TrainConfig().model_dump_json()
    with psycopg.connect(for_psql(biased_url), autocommit=True) as connection:
        connection.execute("UPDATE mappa.run SET config = %s, team = 'mathchat'", [config])
        connection.execute("UPDATE mappa.action SET agent = 'verifier'")
    monkeypatch.setenv("MAPPA_DATABASE_URL", biased_url)
    monkeypatch.setenv("GOOGLE_API_KEY", "very-secret")

    def call(*arguments: str, keys: str | None = None) -> Result:
        result = CliRunner().invoke(app, ["audit", "biased-1", *arguments], input=keys)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


def test_a_coach_without_stored_scores_is_asked_first(
    mappa: Mappa, stand_in: str, biased_url: str
) -> None:
    other = ("--against", "gemini:test-model", "--set", f"coach.base_url={stand_in}")
    refused = mappa(*other, keys="n\n")
    assert refused.exit_code == 1
    assert f"about {ACTIONS} calls" in refused.stderr

    asked = mappa(*other, "--yes", "--json")
    said = json.loads(asked.stdout)
    assert said["coach"].startswith("gemini test-model")
    assert sum(update["actions"] for update in said["updates"]) == ACTIONS
    with psycopg.connect(for_psql(biased_url)) as connection:
        query = "SELECT count(*) FROM audit.action_scores WHERE coach = 'gemini' AND NOT trained"
        assert connection.execute(query).fetchone() == (ACTIONS,)

    # Stored now: nobody is asked, and no question either.
    again = mappa("--against", "gemini:test-model", "--json")
    assert json.loads(again.stdout) == said
    table = mappa("--against", "gemini").stdout
    assert f"of {ACTIONS} advantages change sign" in table
    assert "had its own coach been asked again, is not known" in table

    # The same model and rubric, asked otherwise: another scorer, and each is known by its name.
    solved = mappa(*other, "--set", "coach.own_solution=true", "--yes", "--json")
    name = json.loads(solved.stdout)["coach"]
    assert name != said["coach"]
    assert name.partition("+")[0] == said["coach"].partition("+")[0]
    kept = mappa(*other, "--json")
    assert (kept.exit_code, json.loads(kept.stdout)) == (0, said)


def test_a_name_that_is_no_coach_is_refused(mappa: Mappa) -> None:
    with pytest.raises(ConfigError, match="no stored second coach is called grok"):
        mappa("--against", "grok")


AGREEMENT = """SELECT count(*), corr(a.score, b.score), avg(b.score - a.score)
FROM audit.action_scores a JOIN audit.action_scores b USING (action_id)
WHERE a.trained AND b.coach = 'gemini' AND NOT b.trained"""


def test_rescoring_says_how_two_coaches_agree(
    mappa: Mappa, stand_in: str, biased_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mappa  # its run is of a team that can be scored again

    def rescore(*arguments: str) -> Result:
        command = ["rescore", "biased-1", "--coach", "gemini:test-model", "--yes"]
        monkeypatch.setenv("COLUMNS", "200")
        return CliRunner().invoke(app, [*command, f"coach.base_url={stand_in}", *arguments])

    said = json.loads(rescore("--json").stdout)
    assert (said["run"], said["coach"]["model"]) == ("biased-1", "test-model")
    (line,) = said["agreement"]
    with psycopg.connect(for_psql(biased_url)) as connection:
        found = connection.execute(AGREEMENT).fetchone()
    assert found is not None
    assert (line["agent"], line["actions"]) == ("verifier", found[0]) == ("verifier", ACTIONS)
    assert line["correlation"] == pytest.approx(found[1])
    assert line["difference"]["value"] == pytest.approx(float(found[2]))
    low, high = line["interval"]
    assert low < line["difference"]["value"] < high
    # Nothing is asked again, and the table is of what is stored.
    table = rescore().stdout
    assert "gemini test-model beside the coach that trained" in table
    assert f"{line['correlation']:+.2f}" in table
    assert f"{line['difference']['value']:+.2f} ({low:+.2f} to {high:+.2f})" in table
