"""What `mappa doctor` says of this machine."""

import pytest

from mappa_cli.doctor import coach_keys, find_cluster, find_credentials
from mappa_core.coach.config import CoachConfig
from mappa_core.coach.provider_table import PROVIDERS
from mappa_core.core.settings import Settings


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in PROVIDERS.values():
        for name in filter(None, (row.needs, *row.also_reads)):
            monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", [row.needs for row in PROVIDERS.values() if row.needs])
def test_the_key_of_any_provider_is_enough(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "very-secret")
    found = find_credentials(Settings())
    assert (found.works, found.found, found.advice) == (True, f"{name} set", "")


def test_without_a_key_it_says_which_ones_there_are() -> None:
    found = find_credentials(Settings())
    assert not found.works
    assert found.found == "none: rule and local coaches need none"
    assert all(row.needs in found.advice for row in PROVIDERS.values() if row.needs)


def test_a_coach_is_told_the_key_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    asked = CoachConfig(backend="gemini", model="m")
    assert coach_keys(asked, Settings()) == ("coach gemini m needs GOOGLE_API_KEY: not set",)
    monkeypatch.setenv("GOOGLE_API_KEY", "key")
    assert coach_keys(asked, Settings()) == ("coach gemini m needs GOOGLE_API_KEY: set",)
    keyless = CoachConfig(backend="openai", model="m", base_url="http://127.0.0.1:1")
    assert coach_keys(keyless, Settings()) == coach_keys(CoachConfig(), Settings()) == ()


def test_without_an_address_there_is_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    found = find_cluster(Settings())
    assert (found.works, found.found) == (False, "none: RAY_ADDRESS is not set")
