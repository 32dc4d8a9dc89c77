"""The rules of drift on errors made up to obey a law: what they find is the law."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kdaverify.budgets.drift import Curve
from kdaverify.budgets.formats import FORMATS
from kdaverify.checks.growth import Growth, pooled

LENGTHS = (64, 256, 1024, 4096)
SAMPLES = 8


def curve(
    name: str, *, size: float = 1e-3, slope: float = 0.0, bias: float = 0.0, seed: int = 0
) -> Curve:
    """Errors that grow as T^slope, `size` at first, spread by a tenth from sample to sample."""
    rng = torch.Generator().manual_seed(seed)
    spread = 1 + 0.1 * torch.randn(SAMPLES, 1, generator=rng, dtype=torch.float64)
    rms = size * spread * (torch.tensor(LENGTHS, dtype=torch.float64) / LENGTHS[0]) ** slope
    return Curve(name, rms, bias * rms)


def growth(kernel: Curve, *conforming: Curve, lengths: tuple[int, ...] = LENGTHS) -> Growth:
    return Growth(
        "o", lengths, kernel, conforming or (curve("conforming", seed=1),), FORMATS["fp32"]
    )


@pytest.mark.parametrize("slope", [0.0, 0.3, 0.65, 1.08])
def test_the_slope_is_the_power_of_the_law(slope: float) -> None:
    found = growth(curve("kernel", slope=slope), curve("conforming"))
    assert (
        found.slope == pytest.approx(slope, abs=1e-9) and found.slope_limit <= found.slope + 1e-12
    )
    assert (found.ratios["slope"] > 1) is (slope > 0.05)


def test_the_slope_is_taken_beside_the_conforming_kernel_that_grows_fastest() -> None:
    found = growth(
        curve("kernel", slope=0.5), curve("flat", size=1e-2), curve("steep", size=1e-4, slope=0.5)
    )
    assert found.slope == pytest.approx(0.0, abs=1e-9) and max(found.ratios.values()) <= 1


def test_a_kernel_better_than_every_conforming_one_cannot_drift() -> None:
    assert growth(curve("kernel", size=1e-6, slope=0.65)).ratios["slope"] == 0
    assert growth(curve("kernel", size=1e-4, slope=0.65)).ratios["slope"] > 1


def test_an_error_that_only_reaches_the_band_does_not_drift() -> None:
    """Operands in more bits than declared: less error at first, that of the carried state later."""
    share = torch.tensor([0.68, 0.91, 0.98, 0.99], dtype=torch.float64)
    conforming = curve("conforming", slope=0.3)
    found = growth(replace(conforming, rms=share * conforming.rms), conforming)
    assert found.own_slope > 0.38 and found.ratios["slope"] == 0


def test_an_error_that_leaves_the_band_drifts() -> None:
    share = torch.tensor([0.68, 1.0, 1.3, 1.9], dtype=torch.float64)
    conforming = curve("conforming", seed=1)
    found = growth(replace(conforming, rms=share * conforming.rms), conforming)
    assert found.ratios["level"] < 1 < found.ratios["slope"]


def test_no_slope_is_judged_below_six_octaves() -> None:
    short = growth(curve("kernel", slope=0.65), lengths=(64, 128, 256, 512))
    assert short.ratios["slope"] == 0 and short.ratios["level"] > 1


def test_the_level_is_twice_the_worst_conforming_error() -> None:
    conforming = curve("conforming", seed=1), curve("other", size=5e-4)
    assert growth(
        Curve("kernel", 1.9 * conforming[0].rms, 0 * conforming[0].rms), *conforming
    ).ratios["level"] == pytest.approx(0.95)
    assert growth(
        Curve("kernel", 2.1 * conforming[0].rms, 0 * conforming[0].rms), *conforming
    ).ratios["level"] == pytest.approx(1.05)


def test_a_shared_error_is_a_bias_unless_conforming_kernels_share_theirs() -> None:
    kernel = curve("kernel", bias=0.9)
    assert growth(kernel).bias == pytest.approx(0.9, abs=0.02) and growth(kernel).ratios["bias"] > 1
    assert growth(kernel, curve("conforming", bias=-0.95)).ratios["bias"] <= 1


def test_a_bias_of_a_small_error_is_none() -> None:
    assert growth(curve("kernel", size=1e-5, bias=1.0)).ratios["bias"] < 0.1


def test_no_error_is_taken_for_less_than_one_rounding() -> None:
    nothing = Curve(
        "exact",
        torch.zeros(SAMPLES, len(LENGTHS), dtype=torch.float64),
        torch.zeros(SAMPLES, len(LENGTHS), dtype=torch.float64),
    )
    found = growth(nothing, nothing)
    assert found.ratios == {"level": 0.5, "slope": 0.0, "bias": 0.0}


def test_limits_are_the_same_at_every_call() -> None:
    found = growth(curve("kernel", slope=0.3), curve("conforming", seed=5))
    assert found.slope_limit == found.slope_limit and found.bias_limit == found.bias_limit


def test_pooled_parts_are_judged_as_one() -> None:
    parts = [
        growth(curve("kernel", seed=seed), curve("conforming", seed=seed + 10)) for seed in range(3)
    ]
    whole = pooled(parts)
    rms: Tensor = whole.kernel.rms
    assert rms.shape == (3 * SAMPLES, len(LENGTHS)) and torch.equal(
        rms[:SAMPLES], parts[0].kernel.rms
    )
    assert whole.conforming[0].rms.shape == rms.shape
