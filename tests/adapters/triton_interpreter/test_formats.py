"""bf16 and TF32 as integers and fp32 carry them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kdaverify.adapters.triton_interpreter.formats import Bits, Floats, narrow, to_tf32, widen


def patterns(seed: int = 0) -> Floats:
    """fp32 numbers of every exponent and both signs, ties of both formats among them."""
    bits = np.random.default_rng(seed).integers(0, 2**32, 2**16, dtype=np.uint64).astype(np.uint32)
    ties = np.concatenate([bits & 0xFFFF0000 | 0x8000, bits & 0xFFFFE000 | 0x1000])
    return np.concatenate([bits, ties]).view(np.float32)


def as_torch(values: Floats) -> Bits:
    return torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)


def truncated(values: Floats) -> Bits:
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def test_narrowing_rounds_as_torch_does_and_truncation_does_not() -> None:
    values = patterns()
    numbers = values[~np.isnan(values)]
    assert np.array_equal(narrow(numbers), as_torch(numbers))
    assert not np.array_equal(truncated(numbers), as_torch(numbers))


def test_nan_stays_nan() -> None:
    nan = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF], dtype=np.uint32).view(np.float32)
    assert np.isnan(widen(narrow(nan))).all()


def test_widening_is_exact() -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    numbers = bits[~np.isnan(widen(bits))]
    assert np.array_equal(narrow(widen(numbers)), numbers)


def nearest_tf32(value: float) -> float:
    """By its definition: 11 significant bits, ties to even, exponents of fp32."""
    mantissa, exponent = np.frexp(np.float64(value))
    unit = np.ldexp(1.0, max(int(exponent), -125) - 11)
    return float(np.rint(np.ldexp(mantissa, int(exponent)) / unit) * unit)


def test_tf32_keeps_eleven_significant_bits() -> None:
    values = patterns(1)[::16]
    finite = values[np.isfinite(values) & (np.abs(values) < 3e38)]
    wanted = np.array([nearest_tf32(value) for value in finite.tolist()], dtype=np.float32)
    assert np.array_equal(to_tf32(finite), wanted)
    assert not np.array_equal((finite.view(np.uint32) & 0xFFFFE000).view(np.float32), wanted)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_tf32_leaves_what_is_not_finite(value: float) -> None:
    assert np.array_equal(to_tf32(np.array([value], dtype=np.float32)), [value], equal_nan=True)
