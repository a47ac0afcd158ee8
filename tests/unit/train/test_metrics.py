from mappa_core.train.config import GuardConfig
from mappa_core.train.metrics import out_of_band


def test_the_guard_names_the_figure_and_its_bound() -> None:
    guard = GuardConfig(mismatch_kl_max=0.1, entropy_min=0.5)
    assert out_of_band({"mismatch_kl": 0.05, "entropy": 0.6, "grad_norm": 99.0}, guard) is None
    assert out_of_band({"mismatch_kl": 0.25}, guard) == (
        "mismatch_kl 0.25 is above algorithm.guard.mismatch_kl_max=0.1"
    )
    assert out_of_band({"entropy": 0.25}, guard) == (
        "entropy 0.25 is below algorithm.guard.entropy_min=0.5"
    )
    assert out_of_band({"entropy": 0.25, "mismatch_kl": 0.4}, GuardConfig()) is None


def test_a_sampler_of_another_model_is_noticed_unless_a_run_was_stored_without_the_band() -> None:
    assert "mismatch_kl 9 is above" in str(out_of_band({"mismatch_kl": 9.0}, GuardConfig()))
    stored = GuardConfig.model_validate({"mismatch_kl_max": None})
    assert out_of_band({"mismatch_kl": 9.0}, stored) is None


def test_a_band_has_two_sides_and_holds_the_clip() -> None:
    guard = GuardConfig(entropy_min=0.5, entropy_max=2.0, clip_fraction_max=0.3)
    assert out_of_band({"entropy": 1.0, "clip_fraction": 0.3}, guard) is None
    assert out_of_band({"entropy": 2.5}, guard) == (
        "entropy 2.5 is above algorithm.guard.entropy_max=2"
    )
    assert out_of_band({"entropy": 1.0, "clip_fraction": 0.4}, guard) == (
        "clip_fraction 0.4 is above algorithm.guard.clip_fraction_max=0.3"
    )
