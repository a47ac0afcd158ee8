"""A run that could not go well is refused before it starts."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from mappa_core.app.checks import (
    check_caps,
    check_effects,
    check_inputs,
    check_sampling,
)
from mappa_core.app.config import TrainConfig
from mappa_core.app.config_files import load_config
from mappa_core.app.services import open_services
from mappa_core.coach import rubrics
from mappa_core.coach.config import CoachConfig
from mappa_core.core.errors import ConfigError, ModelNotFound
from mappa_core.core.records.scores import LabelVisibility
from mappa_core.core.settings import Settings
from mappa_core.rollout.config import ProblemsConfig, RolloutConfig
from mappa_core.rollout.teams import load_team
from tests.tiny_model import save_tiny_model

TEAM = load_team("mathchat", "small-1")


def test_a_nucleus_in_training_is_refused_with_the_reason() -> None:
    check_sampling(RolloutConfig(temperature=0.7))
    with pytest.raises(
        ConfigError, match=r"rollout\.top_p=0\.9 cuts tokens .* no importance ratio"
    ):
        check_sampling(RolloutConfig(top_p=0.9))


def test_the_rule_coach_may_not_teach_what_it_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, held_out = tmp_path / "aime_1990.json", tmp_path / "amc_2023.json"
    for file in (train, held_out):
        prompt = f"Find $n$ with $n^2 = {len(file.name)}$, as {file.stem} asks."
        file.write_text(json.dumps([{"prompt": prompt, "answer": "7"}]))
    problems = ProblemsConfig(source="json", train_files=(train,), held_out_files=(held_out,))
    config = TrainConfig(problems=problems, rollout=RolloutConfig(problems=1))
    home = tmp_path / "home"
    monkeypatch.setenv("MAPPA_HOME", str(home))
    with pytest.raises(ConfigError, match="cannot read 1 of 1 problems of aime: name a coach"):
        check_inputs(config, Settings())
    assert not home.exists()


def test_a_rubric_that_caps_some_kinds_of_training_tasks_alone_is_refused() -> None:
    team = load_team("dsbench", "small-1")

    def coach(rubric: str) -> CoachConfig:
        told = {"analyst": LabelVisibility.OUTCOME_ONLY}
        return CoachConfig(backend="local", model="judge", rubric=rubric, visibility=told)

    tasks = ("classification", "extraction")
    with pytest.raises(ConfigError, match="agent analyst by what was measured, and not extraction"):
        check_caps(coach("paper-1"), team, tasks)
    check_caps(coach("paper-2"), team, tasks)
    check_caps(coach("paper-1"), team, ("classification", "regression"))
    check_caps(CoachConfig(), team, tasks)
    check_caps(coach("paper-1"), TEAM, ("aime early",))


JUDGE = {"backend": "local", "model": "judge"}


@pytest.mark.parametrize(
    "coach",
    [
        JUDGE,
        {**JUDGE, "visibility": {"modeler": "full", "analyst": "never"}},
        {"second": {**JUDGE, "share": 0.1}},
    ],
)
def test_a_rubric_that_caps_by_what_its_coach_is_not_told_is_refused(
    coach: Mapping[str, object],
) -> None:
    team, tasks = load_team("dsbench", "small-1"), ("regression", "classification")
    with pytest.raises(ConfigError) as refused:
        check_caps(CoachConfig.model_validate(coach), team, tasks)
    assert str(refused.value) == (
        "rubric set paper-1 caps agent analyst by roc_auc and rmse_over_sd, which its coach is not "
        "told: set coach.visibility.analyst=outcome_only"
    )
    for told in ("outcome_only", "full"):
        check_caps(
            CoachConfig.model_validate({**coach, "visibility": {"analyst": told}}), team, tasks
        )


def test_a_cap_by_a_figure_that_is_not_measured_is_refused(tmp_path: Path) -> None:
    packaged = Path(rubrics.__file__).parent / "dsbench" / "paper-1"
    for file in packaged.glob("*.yaml"):
        (tmp_path / file.name).write_text(file.read_text().replace("rmse_over_sd", "spearman"))
    told = {"visibility": {"analyst": "full"}, "rubric": str(tmp_path)}
    coach = CoachConfig.model_validate({**JUDGE, **told})
    team = load_team("dsbench", "small-1")
    with pytest.raises(ConfigError, match="analyst by spearman, which is not measured of such"):
        check_caps(coach, team, ("regression",))
    check_caps(coach, team, ("classification",))


def test_caps_are_looked_at_before_anything_is_started_and_not_again_when_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAPPA_HOME", str(tmp_path / "home"))
    model = str(save_tiny_model(tmp_path / "model"))
    config = TrainConfig.model_validate(
        {
            "team": "dsbench",
            "model": model,
            "problems": {"source": "tabular", "train_size": 4, "held_out_size": 2},
            "rollout": {"problems": 2},
            "sandbox": {"runtime": "data-science"},
            "coach": {**JUDGE, "model": model},
        }
    )
    with pytest.raises(ConfigError, match=r"coach\.visibility\.analyst=outcome_only"):
        check_inputs(config, Settings())
    assert not (tmp_path / "home").exists()
    check_inputs(config, Settings(), resumes=True)
    check_inputs(config, Settings(), trains=False)


def test_measuring_asks_for_no_coachs_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAPPA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    model = str(save_tiny_model(tmp_path / "model"))
    coach = {"backend": "gemini", "model": "gemini-2.5-flash"}
    coached = TrainConfig.model_validate({"coach": coach, "model": model})
    with pytest.raises(ConfigError, match="needs GOOGLE_API_KEY"):
        check_inputs(coached, Settings())
    check_inputs(coached, Settings(), trains=False)


def test_a_local_coach_whose_model_is_nowhere_is_refused_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("MAPPA_HOME", str(home))
    model = str(save_tiny_model(tmp_path / "model"))
    coach = {"backend": "local", "model": str(tmp_path / "nowhere")}
    coached = TrainConfig.model_validate({"coach": coach, "model": model})
    with pytest.raises(ModelNotFound, match=r"nowhere: give coach\.model="):
        check_inputs(coached, Settings(), despite=("memory", "disk"))
    assert not home.exists()
    check_inputs(coached, Settings(), trains=False)


def test_what_is_refused_is_refused_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a worker of Prefect opens a run, which no command has checked before."""
    monkeypatch.setenv("MAPPA_HOME", str(tmp_path / "home"))
    few = TrainConfig(rollout=RolloutConfig(problems=2000))

    async def opened() -> None:
        async with open_services(few, Settings()):
            raise AssertionError("it was opened")

    with pytest.raises(ConfigError, match=r"rollout\.problems"):
        asyncio.run(opened())
    assert not (tmp_path / "home").exists()


PRESETS = sorted((Path(__file__).parents[3] / "configs").glob("*.yaml"))


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.stem)
def test_a_preset_of_problem_files_names_a_coach_that_reads_them(preset: Path) -> None:
    config = load_config(preset)
    bundled = config.problems.source in {"arithmetic", "tabular"}
    assert bundled or config.coach.backend != "rule"


def test_a_key_that_came_later_is_no_other_measurement_at_its_default() -> None:
    plain = TrainConfig().held_out_settings()
    assert "agent_tokens" not in plain
    assert "sample" not in plain
    thinking = RolloutConfig(agent_tokens={"verifier": 9})
    assert '"agent_tokens": {"verifier": 9}' in TrainConfig(rollout=thinking).held_out_settings()


OF_TRAINING = {
    *("iterations", "problems", "draw", "episodes_per_problem", "temperature", "top_p"),
    *("concurrency", "async_level", "granularity"),
}
"""Keys of `rollout` that no held-out episode is otherwise for."""


def test_episodes_under_any_other_key_of_play_are_another_measurement() -> None:
    other = {
        "max_tokens": 7,
        "agent_tokens": {"verifier": 9},
        "thought_tokens": 5,
        "agent_thought_tokens": {"verifier": 5},
        "chat_template_kwargs": {"enable_thinking": False},
        "agent_turns": {"code_executor": 3},
        "debaters": 4,
    }
    assert set(RolloutConfig.model_fields) == OF_TRAINING | set(other)
    plain = TrainConfig().held_out_settings()
    for key, value in other.items():
        rollout = RolloutConfig.model_validate({key: value})
        assert TrainConfig(rollout=rollout).held_out_settings() != plain, key


def test_a_limit_of_thoughts_above_all_that_is_sampled_is_refused() -> None:
    rollout = RolloutConfig(max_tokens=96, thought_tokens=96)
    with pytest.raises(ConfigError, match=r"thought_tokens=96 closes no thought of .* have 96"):
        check_effects(TrainConfig(rollout=rollout), TEAM)
    # Every agent's: one whose actions are shorter would never be done with thinking.
    shorter = rollout.model_copy(update={"max_tokens": 97, "agent_tokens": {"verifier": 20}})
    with pytest.raises(ConfigError, match=r"thought of verifier, .* have 20 tokens"):
        check_effects(TrainConfig(rollout=shorter), TEAM)
    own = shorter.model_copy(update={"agent_thought_tokens": {"verifier": 19}})
    check_effects(TrainConfig(rollout=own), TEAM)
    too_long = shorter.model_copy(update={"agent_thought_tokens": {"verifier": 20}})
    with pytest.raises(ConfigError, match=r"^rollout.agent_thought_tokens.verifier=20 closes no"):
        check_effects(TrainConfig(rollout=too_long), TEAM)


@pytest.mark.parametrize(
    ("changes", "every"),
    [
        ([], False),
        (["learner.weights=full"], False),
        (["tracking.versions=every"], True),
        # What an earlier version wrote with its runs.
        (["tracking.versions=auto"], False),
    ],
)
def test_the_best_and_the_last_are_registered_unless_all_are_asked_for(
    changes: list[str], every: bool
) -> None:
    assert load_config(None, changes).registers_every is every


def test_a_start_without_a_memory_plan_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MAPPA_HOME", str(tmp_path / "home"))
    config = TrainConfig(model=str(tmp_path / "nowhere"))

    async def opened() -> None:
        async with open_services(config, Settings()):
            pass

    with pytest.raises(ModelNotFound):
        asyncio.run(opened())
    assert f"no memory plan: the shape of {config.model} is not known here" in caplog.text
