"""The exam before training: sat once, stored, and heeded."""

import asyncio
import io
import random
import sys
from dataclasses import dataclass, field

import pytest

from mappa_cli.commands.train import consented
from mappa_core.app.config import TrainConfig
from mappa_core.app.exam import check_exam
from mappa_core.audit.records import Exam
from mappa_core.audit.store import AuditStore
from mappa_core.coach.protocols import Coach
from mappa_core.coach.rules.coach import RuleCoach
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.scores import CoachCase, CoachScore, Unscored
from mappa_core.core.settings import Settings
from mappa_core.rollout.teams import load_team
from mappa_core.store.store import Store
from tests.builders import RULE_COACH

TEAM = load_team("mathchat", "small-1")


@dataclass
class Dice:
    """Scores at random and counts how often it was asked."""

    unscored: float = 0.0
    asked: int = 0
    identity = RULE_COACH
    dice: random.Random = field(default_factory=lambda: random.Random(3))

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        self.asked += 1
        if self.dice.random() < self.unscored:
            return Unscored(reason="timeout", detail="no answer")
        return CoachScore(value=float(self.dice.randint(0, 10)), rationale="a die \x00 says")


@pytest.fixture
def audit(store: Store) -> AuditStore:
    return AuditStore(store.database)


def config(**coach: object) -> TrainConfig:
    return TrainConfig.model_validate({"coach": coach})


def checked(
    coach: Coach, config: TrainConfig, audit: AuditStore, heard: list[str] | None = None
) -> Exam | None:
    tell = (heard if heard is not None else []).append
    return asyncio.run(check_exam(coach, TEAM, config, audit, tell))


def test_a_mark_is_made_once_and_read_back_whole(audit: AuditStore) -> None:
    heard: list[str] = []
    first = checked(RuleCoach("mathchat"), config(), audit, heard)
    assert first is not None
    assert first.passed
    assert "the coach sits its exam" in heard[0]
    assert "passed" in heard[1]
    # Whoever answers under this identity now is not asked.
    silent = Dice()
    assert checked(silent, config(), audit, heard) == first
    assert (silent.asked, len(heard)) == (0, 3)


def test_another_coach_or_rubric_or_temperature_sits_its_own(audit: AuditStore) -> None:
    checked(RuleCoach("mathchat"), config(), audit)
    local = {"backend": "openai", "model": "m", "base_url": "http://127.0.0.1:9/v1"}
    asked = []
    for more in ({}, {"temperature": 0.5}, {"model": "n"}, {"correction": True}, {}):
        dice = Dice()
        with pytest.raises(ConfigError):
            checked(dice, config(**{**local, **more}), audit)
        asked.append(dice.asked > 0)
    assert asked == [True, True, True, True, False]


def test_under_a_coach_that_fails_nothing_is_trained_without_consent(audit: AuditStore) -> None:
    with pytest.raises(ConfigError) as refused:
        checked(Dice(), config(), audit)
    said = str(refused.value)
    assert "cannot tell good work from bad" in said
    assert "--yes" in said
    assert "\n" not in said
    with pytest.raises(ConfigError, match="cannot tell"):
        checked(Dice(), config(exam="require"), audit)
    heard: list[str] = []
    exam = checked(Dice(), config(exam="advise"), audit, heard)
    assert exam is not None
    assert not exam.passed
    assert "failed" in heard[-1]
    assert checked(Dice(), config(exam="never"), audit) is None


def test_a_coach_that_costs_money_is_asked_only_when_told_to(audit: AuditStore) -> None:
    paid, dice, heard = {"backend": "gemini", "model": "g"}, Dice(), list[str]()
    assert checked(dice, config(**paid), audit, heard) is None
    assert dice.asked == 0
    assert "has sat no exam" in heard[0]
    with pytest.raises(ConfigError, match="cannot tell"):
        checked(dice, config(**paid, exam="require"), audit)
    # Its mark is known from now on, and heeded.
    with pytest.raises(ConfigError, match="cannot tell"):
        checked(Dice(), config(**paid), audit)


def test_an_exam_that_was_broken_off_is_no_mark(audit: AuditStore) -> None:
    with pytest.raises(ConfigError):
        checked(Dice(unscored=0.5), config(), audit)
    again = Dice(unscored=0.05)
    with pytest.raises(ConfigError):
        checked(again, config(), audit)
    assert again.asked > 0
    last = Dice()
    with pytest.raises(ConfigError):
        checked(last, config(), audit)
    assert last.asked == 0


def agreed(config: TrainConfig, *, yes: bool = False, asks: bool = False) -> str:
    return consented(config, Settings(), yes=yes, asks=asks).coach.exam


def test_yes_lets_a_coach_teach_that_fails() -> None:
    assert agreed(config(), yes=True) == "advise"
    assert agreed(config(exam="never"), yes=True) == "never"
    assert agreed(config()) == "auto"


def test_a_person_is_asked_once_about_an_exam_that_costs_money(
    audit: AuditStore,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MAPPA_DATABASE_URL", database_url)
    paid = {"backend": "gemini", "model": "g", "prices": {"input_usd": 1.0, "output_usd": 5.0}}
    for typed, exam in (("y\n", "require"), ("n\n", "never")):
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        assert agreed(config(**paid), asks=True) == exam
        said = capsys.readouterr().err
        assert "exam of the coach g: about " in said
        assert "dollars" in said
    assert agreed(config(**paid), asks=False) == "auto"
    with pytest.raises(ConfigError):
        checked(Dice(), config(**paid, exam="require"), audit)
    assert agreed(config(**paid), asks=True) == "auto"
    assert capsys.readouterr().err == ""
