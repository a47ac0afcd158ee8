import sys
from pathlib import Path

import pytest

from mappa_cli.benches import learner
from mappa_cli.benches.learner import TRL_SCRIPT, Measured, bench_learner, ratios, roofline
from mappa_core.core.errors import ConfigError, LearnerError
from mappa_core.core.heap import TUNABLES
from mappa_core.core.settings import Settings
from mappa_core.train.learners.roofline import Peak, Products
from tests.tiny_model import save_tiny_model


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("sequence=3", "bench learner has no option sequence: choose from trl_python, sequences"),
        ("settings=lora,fulll", "no setting fulll: choose from lora, full, shared"),
        ("micro_batches=1,two", "micro_batches=1,two names no sizes"),
        ("micro_batches=", "micro_batches= names no sizes"),
        ("turns=two", "turns=two is no number above 0"),
        ("turns=0", "turns=0 is no number above 0"),
        ("turns=1,2", "turns=1,2 is no number above 0"),
        ("turns=", "turns= is no number above 0"),
        ("sequences=", "sequences= is no number above 0"),
        ("micro_batch_tokens=many", "micro_batch_tokens=many is no number above 0"),
        ("micro_batch_tokens=", "micro_batch_tokens= is no number above 0"),
        ("gradient_checkpointing=yes", "gradient_checkpointing=yes is neither true nor false"),
        ("gradient_checkpointing=true,false", "=true,false is neither true nor false"),
        ("trl_gradient_checkpointing=true,1", "=true,1 is neither true nor false"),
        ("trl_python=/nowhere/python", "trl_python=/nowhere/python is no interpreter"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_measured(
    tmp_path: Path, option: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        bench_learner([option], Settings(MAPPA_HOME=tmp_path))


def test_the_script_that_measures_trl_is_where_the_bench_looks() -> None:
    assert "GRPOTrainer" in TRL_SCRIPT.read_text()


@pytest.mark.parametrize("own", [None, "glibc.malloc.check=0"])
def test_an_update_is_measured_with_the_heap_of_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str | None
) -> None:
    (name,) = TUNABLES
    if own is None:
        monkeypatch.delenv(name, raising=False)
    else:
        monkeypatch.setenv(name, own)
    says = f"import os, sys; sys.exit(os.environ['{name}'])"
    monkeypatch.setattr(learner, "MAPPA", (sys.executable, "-c", says))
    model = save_tiny_model(tmp_path / "model")
    with pytest.raises(LearnerError) as raised:
        bench_learner(["settings=lora", f"model={model}"], Settings(MAPPA_HOME=tmp_path))
    assert str(raised.value).endswith(own or TUNABLES[name])


UPDATE = """
import json, sys

spec = json.load(open(sys.argv[1]))
size, again = spec["micro_batch"], spec["gradient_checkpointing"]
peaks = {"bfloat16": {"kept_up": 1.0, "best": 1.0}}
products = {"flops": {"bfloat16": 1.0}, "seconds": 2.0, "work_seconds": 4.0, "peaks": peaks}
print(json.dumps({
    "tokens_per_second": size + 4 * again if size else spec["micro_batch_tokens"] * again,
    "tokens_per_cpu_second": 1.0,
    "extra_bytes": 1.0,
    "products": None if size else products,
}))
"""
"""Stands for both learners' scripts: says what was asked for in the place of a speed."""


def test_ours_and_trl_compute_layers_again_where_each_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "update.py"
    script.write_text(UPDATE)
    monkeypatch.setattr(learner, "MAPPA", (sys.executable, str(script)))
    monkeypatch.setattr(learner, "TRL_SCRIPT", script)
    model, settings = save_tiny_model(tmp_path / "model"), Settings(MAPPA_HOME=tmp_path)

    def figures(*options: str) -> dict[str, float]:
        given = [f"trl_python={sys.executable}", "settings=lora", f"model={model}", *options]
        return {each.name: each.value for each in bench_learner(given, settings).figures}

    usual = figures()
    assert usual["lora: MAPPA"] == 8192
    assert usual["lora: TRL, bfloat16, micro-batch 2"] == 2
    assert usual["lora: tokens/s over TRL's best"] == 4096
    both = figures("trl_dtypes=bfloat16", "trl_gradient_checkpointing=false,true")
    sizes = ("1", "1, checkpointed", "2", "2, checkpointed")
    assert [both[f"lora: TRL, bfloat16, micro-batch {size}"] for size in sizes] == [1, 5, 2, 6]
    assert both["lora: tokens/s over TRL's best"] == pytest.approx(8192 / 6)
    assert figures("gradient_checkpointing=false", "micro_batch_tokens=8")["lora: MAPPA"] == 0


def test_ratios_are_of_all_turns_together() -> None:
    def measured(speed: float, gib: float) -> Measured:
        return Measured(
            tokens_per_second=speed, tokens_per_cpu_second=speed / 2, extra_bytes=gib * 2**30
        )

    # 1,200 tokens take ours 4 and 6 s, TRL 8 and 12 s.
    turns = [(measured(300, 1.0), measured(150, 2.0)), (measured(200, 1.5), measured(100, 3.0))]
    figures = {each.name: each for each in ratios("lora", turns)}
    speed = figures["lora: tokens/s over TRL's best"]
    assert (speed.value, speed.met) == (pytest.approx(2.0), True)
    assert figures["lora: tokens/CPU s over that TRL's"].value == pytest.approx(2.0)
    assert figures["lora: peak extra memory over that TRL's"].value == pytest.approx(0.5)
    uneven = ratios("lora", [turns[0], (measured(60, 1.0), measured(150, 2.0))])
    assert uneven[1].value == pytest.approx((2 / (1 / 300 + 1 / 60)) / 150)


def test_products_are_held_against_the_peaks_of_their_own_turns() -> None:
    def measured(seconds: float, kept_up: float, best: float) -> Measured:
        products = Products(
            flops={"bfloat16": 12e9},
            seconds=seconds,
            work_seconds=2 * seconds,
            peaks={"bfloat16": Peak(kept_up=kept_up, best=best)},
        )
        return Measured(
            tokens_per_second=1, tokens_per_cpu_second=1, extra_bytes=1, products=products
        )

    # At what the peaks keep up they would take 2 and 4 s, and take 3 and 9.
    turns = [measured(3, 6e9, 8e9), measured(9, 3e9, 7e9)]
    figures = {each.name: each.value for each in roofline("lora", turns)}
    assert figures == {
        "lora: peak in bfloat16": 4.5,
        "lora: peak in bfloat16, best moment": 8,
        "lora: products": 2,
        "lora: an update's time in products": 0.5,
        "lora: whole update over the peak": 0.25,
        "lora: products over the peak": 0.5,
    }
