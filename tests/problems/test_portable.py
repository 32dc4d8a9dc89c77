"""The random numbers are pinned to the bit, and the elementary functions are right."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kdaverify.problems.portable import Stream, dot, log, unit

UNIFORM = ["0x1.f4a63e3217bc0p-3", "0x1.ad58e3016022ap-2", "0x1.00292238b91b0p-3"]
NORMAL = ["0x1.bcdf8531cb920p-3", "-0x1.3ebc7e0407f00p-4", "-0x1.e0410db100400p-7"]
INTEGERS = [75, 162, 83]


def test_a_stream_is_pinned_to_the_bit() -> None:
    assert [x.hex() for x in Stream(0, "v", "pin").uniform(3).tolist()] == UNIFORM
    assert [x.hex() for x in Stream(0, "v", "pin").normal(3).tolist()] == NORMAL
    assert Stream(0, "v", "pin").integers(1000, 3).tolist() == INTEGERS


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_a_longer_draw_begins_with_the_shorter_one(kind: str) -> None:
    short, long = (getattr(Stream("x"), kind)(tokens, 3) for tokens in (5, 9))
    assert np.array_equal(long[:5], short)


@pytest.mark.parametrize(
    "other", [(1, "v", "b"), (0, "w", "b"), (0, "v", "c"), (0, "vb"), (0, "v", "b", 0)]
)
def test_streams_of_different_names_share_nothing(other: tuple[object, ...]) -> None:
    assert not set(Stream(0, "v", "b").uniform(200)) & set(Stream(*other).uniform(200))


def test_normal_draws_have_mean_0_variance_1_and_stay_within_6() -> None:
    x = Stream("moments").normal(200_000)
    assert abs(x.mean()) < 0.01
    assert abs(x.var() - 1.0) < 0.02
    assert 4.0 < np.abs(x).max() < 6.0


def test_normal_draws_use_all_the_bits_of_a_double() -> None:
    x = Stream("bits").normal(1000)
    assert np.mean(x.astype(np.float32) == x) < 0.01


def test_log_is_good_to_four_ulp_at_every_magnitude() -> None:
    x = np.ldexp(
        0.5 + 0.5 * Stream("mantissa").uniform(20_000),
        Stream("exponent").integers(2000, 20_000) - 1000,
    )
    x = np.concatenate([x, 1.0 + np.ldexp(Stream("near").uniform(5000) - 0.5, -8), [1.0]])
    exact = np.array([math.log(value) for value in x])
    assert np.all(np.abs(log(x) - exact) <= 4 * np.spacing(np.abs(exact)))


def test_dot_adds_from_the_first_element_to_the_last() -> None:
    x = np.ldexp(Stream("dot").normal(50, 300), Stream("scale").integers(60, 50, 300) - 30)
    one = np.ones_like(x)
    in_order = [sum(row.tolist(), 0.0) for row in x]
    assert dot(x, one).tolist() == in_order
    assert x.sum(axis=-1).tolist() != in_order, (
        "the data do not distinguish one order of summation from another"
    )


def test_unit_rows_have_norm_1() -> None:
    rows = unit(Stream("unit").normal(100, 48))
    assert np.allclose(np.sqrt((rows * rows).sum(-1)), 1.0, rtol=4e-16, atol=0)
