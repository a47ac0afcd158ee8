"""What a local coach's server takes is in the plan, and whether its weights are there is said."""

from pathlib import Path

import pytest

from mappa_cli.doctor import local_coaches
from mappa_core.app.coach_plan import coach_items, coach_need
from mappa_core.app.config_files import load_config
from mappa_core.app.memory import plan_memory
from mappa_core.coach.config import CoachConfig
from mappa_core.core.settings import Settings
from mappa_core.models.package_table import PACKAGED
from mappa_core.train.memory_items import GB, PHASES


def local(model: str, **server: object) -> CoachConfig:
    return CoachConfig.model_validate({"backend": "local", "model": model, "server": server})


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("MAPPA_HOME", str(tmp_path))
    return Settings()


@pytest.fixture
def weights(tmp_path: Path) -> str:
    folder = tmp_path / "judge"
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(3 * 10**9)
    return str(folder)


def test_a_server_on_a_cpu_holds_its_weights_twice_beside_the_cache(
    weights: str, settings: Settings
) -> None:
    config = local(weights, device="cpu", kv_cache_gib=2)
    items = list(coach_items(config, settings.models, 80 * GB))
    assert [item.phase for item in items] == ["rollout", "update"]
    assert {item.gpu_bytes for item in items} == {0}
    assert items[0].host_bytes == pytest.approx(6.5e9 + 2 * 2**30)
    assert "weights are there (3.0 GB" in coach_need(config, settings)
    assert "8.6 GB of memory on a CPU" in coach_need(config, settings)


def test_a_server_on_a_gpu_holds_weights_and_cache_and_coaches_of_one_model_share_it(
    weights: str, settings: Settings
) -> None:
    one = {"backend": "local", "model": weights, "server": {"kv_cache_gib": 4}}
    config = CoachConfig.model_validate(one | {"second": one | {"share": 0.5}})
    items = list(coach_items(config, settings.models, 80 * GB))
    expected = 3 * GB + 4 * 2**30 + 1.5 * GB
    assert [item.gpu_bytes for item in items] == [expected, expected]


@pytest.mark.parametrize(
    ("changes", "servers"),
    [((), 1), (("server.rationale_characters=90",), 1), (("server.calls=4",), 2)],
)
def test_plan_and_doctor_count_the_servers_that_run(
    changes: tuple[str, ...], servers: int, settings: Settings
) -> None:
    model = load_config(PRESET).coach.model
    second = ("backend=local", f"model={model}", "share=0.5", "max_output_tokens=400", *changes)
    coach = load_config(PRESET, [f"coach.second.{change}" for change in second]).coach
    assert len(list(coach_items(coach, settings.models, 0))) == len(PHASES) * servers
    assert len(local_coaches(coach, settings)) == servers


def test_weights_that_are_not_there_are_said_with_how_they_are_had(settings: Settings) -> None:
    need = coach_need(local("qwen2.5-coder-1.5b-instruct"), settings)
    assert need.startswith("weights are not there; `mappa coach-model qwen2.5-coder-1.5b")
    assert "needs 6 GB of disk; its server takes 6.1 GB of a GPU, or 8.7 GB of memory" in need
    assert "the first run fetches them" in coach_need(local("Qwen/Qwen3-4B"), settings)


@pytest.mark.parametrize("page", ["README.md", "docs/coach.md"])
def test_the_pages_say_what_the_presets_coach_takes_of_the_disk(page: str) -> None:
    model = PACKAGED[load_config(PRESET).coach.model]
    needed, stays = model.needed_bytes / GB, model.weights_bytes / GB
    said = f"fetches {model.gguf_bytes / GB:.1f} GB, takes {needed:.0f} GB of disk meanwhile"
    assert f"{said} and {stays:.1f} GB after" in (PRESET.parents[1] / page).read_text()


def test_the_presets_plan_counts_its_coach_before_its_weights_are_fetched(
    settings: Settings,
) -> None:
    config = load_config(PRESET)
    before, *_ = plan_memory(config, settings, None, 23 * 2**30)
    folder = settings.models / config.coach.model
    folder.mkdir(parents=True)
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(3_554_214_752)
    after, *_ = plan_memory(config, settings, None, 23 * 2**30)
    assert before.host_bytes == after.host_bytes > 16 * GB


PRESET = Path(__file__).parents[3] / "configs" / "quickstart_llm_coach.yaml"


def test_a_rule_coach_takes_nothing(settings: Settings) -> None:
    assert list(coach_items(CoachConfig(), settings.models, 80 * GB)) == []
