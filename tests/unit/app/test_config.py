"""Configuration: every slip is one line that says which key, and what would have been right."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from pydantic import ValidationError

from mappa_core.app.config import RESUMABLE, TrainConfig
from mappa_core.app.config_files import differences, keys, load_config, with_overrides
from mappa_core.app.config_reference import page, reference
from mappa_core.core.errors import ConfigError

PRESETS = sorted((Path(__file__).parents[3] / "configs").glob("*.yaml"))


def dotted(values: object, prefix: str = "") -> Iterator[str]:
    if isinstance(values, dict):
        for name, value in values.items():
            yield f"{prefix}{name}"
            yield from dotted(value, f"{prefix}{name}.")


def complaint(path: Path | None, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_no_file_and_no_overrides_are_the_defaults() -> None:
    assert load_config(None) == TrainConfig()


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_presets_load(preset: Path) -> None:
    assert load_config(preset).name == preset.stem.replace("_", "-")


def test_overrides_beat_the_file_and_later_ones_earlier_ones(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("seed: 5\nrollout:\n  iterations: 7\n  problems: 3\n")
    config = load_config(file, ["rollout.iterations=8", "rollout.iterations=9"])
    assert (config.seed, config.rollout.iterations, config.rollout.problems) == (5, 9, 3)


def test_override_values_are_yaml() -> None:
    config = load_config(
        None, ["problems.levels=[1,2]", "problems.drop_overlap=true", "learner.learning_rate=3e-4"]
    )
    assert config.problems.levels == (1, 2)
    assert config.problems.drop_overlap is True
    assert config.learner.learning_rate == 3e-4


def test_overrides_on_a_configuration_keep_the_rest() -> None:
    config = load_config(None, ["seed=5"])
    changed = with_overrides(config, ["learner.lora.rank=8"])
    assert (changed.seed, changed.learner.lora.rank, changed.learner.lora.alpha) == (5, 8, 32)
    assert with_overrides(config, []) == config


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "rollout.iteratons=3",
            "unknown key rollout.iteratons: did you mean rollout.iterations?",
        ),
        ("learner.lora.rnk=3", "unknown key learner.lora.rnk: did you mean learner.lora.rank?"),
        ("iterations=3", "unknown key iterations: did you mean rollout.iterations?"),
        (
            "coach.visibility.verifier=outcome",
            "coach.visibility.verifier=outcome: input should be 'never', 'outcome_only' or 'full': "
            "did you mean outcome_only?",
        ),
        ("engine.backend=zzz", "engine.backend=zzz: input should be 'vllm' or 'transformers'"),
        ("zzz=1", "unknown key zzz: see `mappa train --dry-run` for all keys"),
        ("seed", "'seed' is no override: write key=value, e.g. seed=3"),
        ("=3", "'=3' is no override: write key=value, e.g. seed=3"),
        (
            "rollout.iterations=0",
            "rollout.iterations=0: input should be greater than or equal to 1",
        ),
        ("rollout.temperature=0", "rollout.temperature=0: input should be greater than 0"),
        ("rollout.top_p=1.5", "rollout.top_p=1.5: input should be less than or equal to 1"),
        ("algorithm.clip=1", "algorithm.clip=1: input should be less than 1"),
        (
            "algorithm.estimator=grup",
            "algorithm.estimator=grup: input should be 'reinforce++', 'reinforce++-baseline', ",
        ),
        (
            "learner.learning_rate=.nan",
            "learner.learning_rate=nan: input should be a finite number",
        ),
        (
            "learner.learning_rate=.inf",
            "learner.learning_rate=inf: input should be a finite number",
        ),
        ("learner.betas=[0.9,1.0]", "learner.betas.1=1.0: input should be less than 1"),
        ("seed=2147483648", "seed=2147483648: input should be less than 2147483648"),
        ("seed=", "seed=None: input should be a valid integer"),
        ("problems.levels=[]", "problems.levels=[]: tuple should have at least 1 item"),
        ("name=Bad Name", "name=Bad Name: string should match pattern"),
        ("rollout=3", "rollout=3: input should be a valid dictionary"),
        ("seed=[", "the overrides cannot be understood: "),
        ("seed=${x}", "the overrides cannot be understood: Interpolation key 'x' not found"),
    ],
)
def test_a_wrong_override(override: str, message: str) -> None:
    assert complaint(None, override).startswith(message)
    with pytest.raises(ConfigError) as caught:
        with_overrides(TrainConfig(), [override])
    assert str(caught.value).startswith(message)


def test_several_slips_say_how_many_more() -> None:
    assert complaint(None, "seed=-1", "rollout.problems=0").endswith("(and 1 more)")


def test_the_group_baseline_needs_a_group() -> None:
    message = complaint(None, "rollout.episodes_per_problem=1")
    assert message.startswith(
        "algorithm.estimator=reinforce++-baseline compares a problem's episodes: "
    )
    alone = load_config(None, ["rollout.episodes_per_problem=1", "algorithm.estimator=reinforce++"])
    assert alone.rollout.episodes_per_problem == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [", "cannot be understood: line "),
        (b"a: 1\nb: [\n", "cannot be understood: line "),
        (b"\t\tseed: 1", "cannot be understood: line "),
        (b"seed: 1\nseed: 2", "cannot be understood: line 2: found duplicate key seed"),
        (b"seed: !!python/object:os.system x", "cannot be understood: line 1: could not"),
        (b"seed: ${x}", "cannot be understood: Interpolation key 'x' not found"),
        (b"[1, 2]", "is a list: write key: value"),
        (b"\xff\xfe", "is not UTF-8 text"),
    ],
)
def test_a_broken_file(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(content)
    assert complaint(file).startswith(f"{file} {message}")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    assert complaint(file).startswith(f"no configuration file {file}: the presets are dsbench, ")
    assert complaint(tmp_path).startswith(f"{tmp_path} cannot be read: ")


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("")
    assert load_config(file) == TrainConfig()


def test_keys_reach_into_every_section() -> None:
    assert {"seed", "rollout.iterations", "learner.lora.rank"} <= set(keys())
    assert not {"rollout", "learner.lora"} & set(keys())


@pytest.mark.parametrize("key", keys())
def test_every_key_is_documented(key: str) -> None:
    (found,) = (each for each in reference() if each.path == key)
    assert found.description


@settings(max_examples=200)
@given(st.sampled_from(keys()), st.text(st.characters(), max_size=20))
def test_any_value_is_taken_or_refused_in_one_line(key: str, value: str) -> None:
    try:
        message = load_config(None, [f"{key}={value}"]).model_dump_json()
    except ConfigError as error:
        message = str(error)
    assert "\n" not in message


def test_a_resumed_run_may_change_how_its_coach_is_asked_where_it_learns_and_no_more() -> None:
    config = TrainConfig()
    richer = TrainConfig.model_validate(
        {
            "coach": {"budget": {"dollars": 50}, "deadline_seconds": 5, "concurrency": 1},
            "learner": {
                "deployment": "update/gpu",
                "micro_batch_tokens": 512,
                "deepspeed": {"timeout_seconds": 9},
            },
            "engine": {"urls": ["http://10.0.0.5:8000"]},
        }
    )
    assert config.same_experiment(richer) == ()
    assert {f"{section}.{name}" for section, names in RESUMABLE.items() for name in names} <= {
        *keys(),
        "coach.budget",
    }
    other = TrainConfig.model_validate(
        {"coach": {"repeats": 2}, "learner": {"epochs": 2}, "seed": 4}
    )
    assert config.same_experiment(other) == ("coach", "learner", "seed")
    ranks = TrainConfig.model_validate({"learner": {"deepspeed": {"ranks": 2}}})
    assert config.same_experiment(ranks) == ("learner",)


def test_a_model_coach_needs_a_model() -> None:
    with pytest.raises(ValidationError, match="needs a model"):
        TrainConfig.model_validate({"coach": {"backend": "gemini"}})
    second = {"backend": "openai", "share": 0.1}
    with pytest.raises(ValidationError, match="needs a model"):
        TrainConfig.model_validate({"coach": {"second": second}})


@pytest.mark.parametrize(
    ("older", "estimator", "truncated"),
    [
        ({"baseline": "none", "drop_truncated": True}, "reinforce++", "mask"),
        ({"baseline": "group"}, "reinforce++-baseline", "keep"),
        ({"drop_truncated": False}, "reinforce++-baseline", "keep"),
    ],
)
def test_a_run_of_an_earlier_version_is_read_as_it_was(
    older: dict[str, object], estimator: str, truncated: str
) -> None:
    config = TrainConfig.model_validate({"algorithm": older}).algorithm
    assert (config.estimator, config.truncated) == (estimator, truncated)


def test_whole_weights_are_not_served_as_adapters() -> None:
    message = complaint(None, "learner.weights=full", "engine.serving=adapters")
    assert message.startswith("learner.weights=full trains no adapters: set engine.serving")


def test_an_iteration_says_which_policies_play_it() -> None:
    on_policy, one_off = load_config(None), load_config(None, ["rollout.async_level=1"])
    assert [on_policy.policy_step(k) for k in (1, 2, 3, 4)] == [0, 1, 2, 3]
    assert [one_off.policy_step(k) for k in (1, 2, 3, 4)] == [0, 0, 1, 2]
    forked = with_overrides(one_off, ["start.run=another", "start.step=3"])
    assert [forked.policy_step(k) for k in (4, 5, 6)] == [3, 3, 4]


def test_no_episode_is_played_on_an_engine_that_sleeps() -> None:
    message = complaint(None, "rollout.async_level=1", "engine.colocate=true")
    assert "set one of them back" in message


def test_a_fork_has_something_left_to_do() -> None:
    assert "name it in start.run" in complaint(None, "start.step=1")
    message = complaint(None, "start.run=a", "start.step=3", "rollout.iterations=3")
    assert "raise rollout.iterations" in message


def test_the_reference_page_is_what_the_models_say() -> None:
    written = Path(__file__).parents[3] / "docs" / "configuration.md"
    assert written.read_text() == page(), "run: mappa config docs > docs/configuration.md"
    assert {key.path for key in reference()} == set(keys())


def test_the_reference_says_kinds_and_bounds_in_words() -> None:
    values = {key.path: key.values for key in reference()}
    assert values["rollout.iterations"] == "integer, at least 1"
    assert values["rollout.temperature"] == "number, above 0, at most 2"
    assert values["algorithm.ratio"] == "`token`, `sequence`"
    assert values["coach.budget.dollars"] == "number, above 0 or null"
    assert values["learner.betas"] == "list of 2: number, at least 0, below 1"
    assert values["problems.levels"] == "list (at least 1) of integer, at least 1"


def test_every_number_is_bounded() -> None:
    bounds = ("at least", "above", "at most", "below")
    numbers = [key for key in reference() if "integer" in key.values or "number" in key.values]
    assert [key.path for key in numbers if not any(word in key.values for word in bounds)] == []


def test_differences_are_by_key_and_a_later_key_had_its_default() -> None:
    one = TrainConfig().model_dump(mode="json")
    other = load_config(
        None, ["rollout.iterations=4", "coach.visibility.verifier=full"]
    ).model_dump(mode="json")
    assert differences(one, other) == (
        ("coach.visibility", {}, {"verifier": "full"}),
        ("rollout.iterations", 10, 4),
    )
    del one["tracking"]
    one["gone"] = {"key": 3}
    assert differences(one, one) == ()
    assert differences(one, other)[1] == ("gone.key", 3, None)


def test_every_key_is_used_by_a_preset_or_shown_by_a_test_to_do_something() -> None:
    """Keys of the same last name (`coach.second.model`) are shown by one test."""
    in_presets = {
        key for preset in PRESETS for key in dotted(OmegaConf.to_container(OmegaConf.load(preset)))
    }
    tests = "\n".join(
        file.read_text()
        for file in Path(__file__).parents[2].rglob("*.py")
        if file != Path(__file__)
    )

    def shown(key: str) -> bool:
        leaf = key.rpartition(".")[2]
        # As an override, in a mapping, as an argument, or read.
        return (
            re.search(rf"\b{re.escape(key)}\b|[\"']{leaf}[\"']:|\b{leaf}=|\.{leaf}\b", tests)
            is not None
        )

    assert [key for key in keys() if key not in in_presets and not shown(key)] == []
