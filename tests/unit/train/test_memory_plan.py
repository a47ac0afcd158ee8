"""The plan of the paper's preset, by arithmetic done by hand."""

import re
from math import ceil
from pathlib import Path

import pytest

from mappa_core.app.config import TrainConfig
from mappa_core.app.config_files import load_config
from mappa_core.app.fitting import disk_need
from mappa_core.app.memory import plan_memory, planned_on_cpu, shape_for, shared_cache_bytes
from mappa_core.app.memory import planned as plan_of
from mappa_core.app.placement import placed_on
from mappa_core.core.settings import Settings
from mappa_core.models.shape import QWEN3_4B, SMOLLM2_135M, ModelShape
from mappa_core.train import learner_memory, token_logprobs, tree_attention
from mappa_core.train.learner_memory import LearnerNeeds
from mappa_core.train.memory_items import GB

PRESET = Path(__file__).parents[3] / "configs/mathchat_paper.yaml"
TINY = ModelShape(
    layers=2,
    hidden=8,
    heads=4,
    kv_heads=2,
    head_width=2,
    intermediate=16,
    vocabulary=10,
    tied=True,
)


def test_three_agents_of_4b_fit_on_one_gpu_of_80_gb() -> None:
    config = load_config(PRESET)
    planned = plan_of(config, QWEN3_4B, 3, 80 * GB)
    assert planned.fits
    # Servers take 0.66 of 80 GB, weights of 2 bytes and a cache among it; a rank's context stays.
    assert planned.peak("rollout") == pytest.approx(0.66 * 80 * GB + 0.8 * GB)
    cache = 0.22 * 80 * GB - 2 * 4_022_468_096 - 1.5 * GB
    assert planned.cached_tokens == int(cache / 147_456) == 54_626
    # Contexts 2.4, weights and gradients 4 bytes each, 28,672 tokens of 36 layer inputs (5,120
    # bytes each) and twice one layer (139,264), mask 1.64 and copies 0.81, logits 0.16 and
    # twice the output weights (1.56), the largest tensor's gradient as it is reduced (2 bytes of
    # 388,956,160), one process 0.8: in GB.
    assert 2 * (4 * 2560 + 2 * 4096 + 2 * 1024 + 4 * 9728) + 8 * 2560 == 139_264
    activations = 28_672 * (36 * 5_120 + 2 * 139_264) / GB
    reduced = 2 * 0.38895616
    by_hand = 2.4 + 4 * 4.022468096 + activations + 1.644 + 0.805 + 0.156 + 2 * 1.5558 + 0.8
    by_hand += reduced
    assert planned.peak("update") / GB == pytest.approx(by_hand, abs=0.01)
    # Masters, gradients and moments of one agent, three sleeping servers' weights: 22 bytes a
    # weight, 88 GB.
    assert planned.host_bytes == (16 + 3 * 2) * 4_022_468_096


@pytest.mark.parametrize("preset", sorted(PRESET.parent.glob("*.yaml")), ids=lambda file: file.stem)
def test_a_preset_fits_the_machine_that_it_names(preset: Path, tmp_path: Path) -> None:
    settings = Settings.model_validate({"MAPPA_HOME": tmp_path})
    config = load_config(preset)
    named = re.search(r"one\s+(?:#\s+)?GPU of (\d+) GB", preset.read_text())
    gpu = int(named[1]) * GB if named else None
    # Without a GPU, the machine that README asks for.
    (planned,) = plan_memory(config, settings, gpu, 20 * GB)
    assert (planned.machine_bytes is None) == (named is not None)
    assert planned.fits, planned
    # A machine that is too small is planned for, too, but not where no CPU is large enough.
    (small,) = plan_memory(config, settings, gpu, 8 * GB)
    assert (small.machine_bytes, small.fits) == ((None, True) if named else (8 * GB, False))
    on_cpu = load_config(preset, ["engine.device=cpu", "learner.device=cpu"])
    if on_cpu.learner.backend == "torch":
        (refused,) = plan_memory(on_cpu, settings, gpu, 8 * GB)
        assert (refused.machine_bytes, refused.fits) == (8 * GB, False)
    text = preset.read_text()
    need = disk_need(config, shape_for(config.model, settings.models), 3, on_gpu=named is not None)
    disks = re.findall(r"(\d+) GB of(?:\s+#)? disk", text)
    assert disks == [str(ceil(need.total / GB))] or preset.stem == "quickstart_llm_coach"
    beside = re.findall(r"(\d+) GB of the CPU's memory", text)
    assert all(int(each) == ceil(planned.host_bytes / GB) for each in beside)


@pytest.mark.parametrize("preset", sorted(PRESET.parent.glob("*.yaml")), ids=lambda file: file.stem)
def test_without_a_gpu_what_is_made_for_one_is_planned_for_one(
    preset: Path, tmp_path: Path
) -> None:
    settings, text = Settings.model_validate({"MAPPA_HOME": tmp_path}), preset.read_text()
    (planned,) = plan_memory(load_config(preset), settings, None, 8 * GB)
    gpu = "GPU of " in text.replace("\n# ", " ")
    assert (planned.machine_bytes, planned.fits) == ((None, True) if gpu else (8 * GB, False))
    # As it is by --gpus, or where a GPU is named.
    forced, named = load_config(preset), load_config(preset, ["engine.device=cuda"])
    for config, machine in ((forced, None), (named, 8 * GB)):
        (planned,) = plan_memory(config, settings, None, machine)
        assert planned.machine_bytes is None


def test_on_a_cpu_everything_is_float32_and_stays() -> None:
    config = load_config(PRESET.with_name("quickstart.yaml"))
    planned = planned_on_cpu(config, SMOLLM2_135M, 3, 20 * GB)
    # 134.5 million weights: four times as they are served and read; caches of half a GiB.
    weights = 4 * 134_515_008
    rollout = 4 * weights + 3 * (2**29 + 1.15 * GB) + 0.8 * GB
    assert planned.host_peak("rollout") == pytest.approx(rollout)
    assert planned.peak("update") == planned.peak("rollout") == 0
    # A longer sequence is read whole, however small a micro-batch is.
    longer = load_config(PRESET.with_name("quickstart.yaml"), ["engine.max_model_length=4096"])
    more = planned_on_cpu(longer, SMOLLM2_135M, 3, 20 * GB).host_bytes - planned.host_bytes
    per_token = 2 * 30 * (2 * (4 * 576 + 2 * 576 + 2 * 192 + 4 * 1536) + 8 * 576)
    assert more == pytest.approx((4096 - 1536) * per_token)


@pytest.mark.parametrize("preset", sorted(PRESET.parent.glob("*.yaml")), ids=lambda file: file.stem)
def test_adapters_learn_at_a_rate_of_their_own(preset: Path) -> None:
    learner = load_config(preset).learner
    assert (learner.learning_rate >= 1e-5) == (learner.weights == "lora")


def test_a_torch_learners_model_stays_on_the_gpu_while_agents_play() -> None:
    given = ["learner.backend=torch", "learner.weights=lora", "engine.serving=adapters"]
    adapter = QWEN3_4B.adapter_parameters(16)
    for share, fits in ((0.85, True), (0.95, False)):
        config = load_config(PRESET, [*given, f"engine.gpu_memory_utilization={share}"])
        planned = plan_of(config, QWEN3_4B, 3, 80 * GB)
        staying = 2 * 4_022_468_096 + 4 * adapter + 0.8 * GB
        assert planned.peak("rollout") == pytest.approx(share * 80 * GB + staying)
        assert planned.fits is fits
    # What is read is the moments of one adapter; the servers' base sleeps on the CPU, adapters too.
    assert planned.host_bytes == 2 * 4_022_468_096 + 3 * 2 * adapter + 16 * adapter


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("weights", ["full", "lora"])
def test_every_rank_reads_what_it_keeps(weights: str, stage: int) -> None:
    config = load_config(PRESET, [f"learner.weights={weights}", f"learner.deepspeed.stage={stage}"])
    rank = tuple(LearnerNeeds(TINY, config.learner).checkpoints())
    # A fresh adapter in float32, and below stage 3 the whole frozen base in bfloat16.
    adapter, base = (0, 0) if weights == "full" else (2 * 128 * 16, TINY.parameters)
    read = 4 * adapter + (2 * base if stage == 2 else 0)
    assert sum(item.host_bytes for item in rank) == read


def test_awake_servers_and_a_learner_without_offload_do_not_fit() -> None:
    preset = load_config(PRESET)
    awake = load_config(PRESET, ["engine.colocate=false"])
    heavy = load_config(PRESET, ["learner.deepspeed.offload=false"])
    assert not plan_of(awake, QWEN3_4B, 3, 80 * GB).fits
    assert not plan_of(heavy, QWEN3_4B, 3, 80 * GB).fits
    assert not plan_of(preset, QWEN3_4B, 3, 40 * GB).fits


def test_adapters_share_one_base_and_leave_room() -> None:
    config = TrainConfig.model_validate(
        {
            "engine": {"serving": "adapters", "max_model_length": 28672},
            "learner": {"gradient_checkpointing": True, "micro_batch_tokens": 8192},
        }
    )
    planned = plan_of(config, QWEN3_4B, 3, 80 * GB)
    assert planned.fits
    whats = [item.what for item in planned.items]
    assert "1 x weights" in whats
    assert "frozen base" in whats


@pytest.mark.parametrize(
    ("given", "cached"),
    [
        # A third of 0.66 of 80 GB, less weights in bfloat16 and a step.
        ((), int(0.22 * 80 * GB - 2 * 4_022_468_096 - 1.5 * GB)),
        # One server for all adapters measures for itself,
        (("learner.weights=lora", "engine.serving=adapters"), None),
        # unless the coach's is beside it.
        (
            (
                *("learner.weights=lora", "learner.lora.rank=16", "engine.serving=adapters"),
                *("coach.backend=local", "coach.model=judge"),
            ),
            int(
                0.66 * 80 * GB
                - 2 * 4_022_468_096
                - 3 * 2 * QWEN3_4B.adapter_parameters(16)
                - 1.5 * GB
            ),
        ),
        (("engine.dtype=float32",), None),
        # Its share holds not even the weights: vLLM says by how much.
        (("engine.gpu_memory_utilization=0.2",), None),
        (("model=unheard-of",), None),
    ],
)
def test_servers_that_share_a_gpu_are_told_their_cache(
    given: tuple[str, ...], cached: int | None, tmp_path: Path
) -> None:
    settings, config = Settings.model_validate({"MAPPA_HOME": tmp_path}), load_config(PRESET, given)
    placed = placed_on(config, 3, ("0",))
    assert shared_cache_bytes(config, settings, 3, placed, 80 * GB) == cached


def test_the_plan_counts_what_the_code_holds() -> None:
    assert learner_memory.LOGIT_ROWS == token_logprobs.ROWS
    assert learner_memory.COPIED_KEYS == tree_attention.COPIED
