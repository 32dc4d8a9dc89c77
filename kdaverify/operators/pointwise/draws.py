"""The inputs of the operations beside the kernel: values that overflow, vanish or saturate,
parameters that differ in every head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from kdaverify.problems.portable import Array, Stream, log, unit

Shape = tuple[int, ...]
Values = Callable[[Stream, Shape, str], Array]
Parameters = Callable[[Stream, Shape], Array]

WIDEST: Final = 1e4
# Where implementations change their way, or fp32 its behaviour: thresholds of softplus, where 1 +
# exp(x) or 1 - s rounds to 1, and where exp(x) or exp(-x) leaves the normal numbers or all numbers.
EDGES: Final = (20.0, 0.0, 2.0, -17.0, 17.0, -88.0, 88.0, -104.0, 104.0)
# Norms of rows whose squares vanish, stand beside eps, or fill fp32: 2^58 squared and summed over
# 128 channels does.
NORMS: Final = (1.0, 1.0, 0.0, 2.0**-10, 2.0**-100, 2.0**58)
# The same inside fp16, whose squares overflow past 2^8 where they are formed in fp16.
FP16_NORMS: Final = (1.0, 1.0, 0.0, 2.0**-10, 2.0**-20, 2.0**12)


def _signed(stream: Stream, size: Array) -> Array:
    return np.where(stream.integers(2, *size.shape) == 0, size, -size)


def _powers(stream: Stream, shape: Shape, lowest: int, highest: int) -> Array:
    """2^k m, k uniform in [lowest, highest), m uniform in [1, 2), either sign."""
    mantissa = 1 + stream.uniform(*shape)
    exponent = stream.integers(highest - lowest, *shape) + lowest
    return _signed(stream, np.ldexp(mantissa, exponent))


def _normal(stream: Stream, shape: Shape, _: str) -> Array:
    return 2 * stream.normal(*shape)


def _uniform(stream: Stream, shape: Shape, _: str) -> Array:
    return WIDEST * (2 * stream.uniform(*shape) - 1)


def _spaced(stream: Stream, shape: Shape, _: str) -> Array:
    return np.clip(_powers(stream, shape, -12, 14), -WIDEST, WIDEST)


def _edges(stream: Stream, shape: Shape, _: str) -> Array:
    return np.asarray(EDGES)[stream.integers(len(EDGES), *shape)] + stream.normal(*shape) / 2


def _tiny(stream: Stream, shape: Shape, _: str) -> Array:
    return _powers(stream, shape, -120, -12)


def _zero(_stream: Stream, shape: Shape, _: str) -> Array:
    return np.zeros(shape)


def _mixed(stream: Stream, shape: Shape, dtype: str) -> Array:
    """Every element of its own kind: neighbours must not disturb each other."""
    kinds = np.stack(
        [draw(stream, shape, dtype) for draw in (_normal, _uniform, _spaced, _edges, _tiny, _zero)]
    )
    return np.take_along_axis(kinds, stream.integers(len(kinds), *shape)[None], axis=0)[0]


def _rows(stream: Stream, shape: Shape, dtype: str) -> Array:
    """Every row of a norm of its own, a quarter of them with one element alone."""
    norms = np.asarray(FP16_NORMS if dtype == "fp16" else NORMS)[
        stream.integers(len(NORMS), *shape[:-1])
    ]
    directions = unit(stream.normal(*shape))
    alone = _signed(
        stream,
        (np.arange(shape[-1]) == stream.integers(shape[-1], *shape[:-1])[..., None]).astype(
            np.float64
        ),
    )
    return norms[..., None] * np.where(
        stream.integers(4, *shape[:-1])[..., None] == 0, alone, directions
    )


VALUES: Final[dict[str, Values]] = {
    "normal": _normal,
    "mixed": _mixed,
    "uniform": _uniform,
    "log-spaced": _spaced,
    "edges": _edges,
    "tiny": _tiny,
    "zero": _zero,
}
"""Distributions of z and of logits, simplest first."""

ROWS: Final[dict[str, Values]] = {"normal": _normal, "mixed": _rows, "tiny": _tiny, "zero": _zero}
"""Distributions of x."""


RATES: Final[dict[str, Parameters]] = {
    "usual": lambda stream, shape: log(1 + 15 * stream.uniform(*shape)),
    "wide": lambda stream, shape: 16 * stream.uniform(*shape) - 8,
    "extreme": lambda stream, shape: 200 * stream.uniform(*shape) - 100,
}
"""Distributions of A_log: the logarithm of 1 to 16 as models begin, and beyond what they learn."""

BIASES: Final[dict[str, Callable[[Stream, Shape], Array | None]]] = {
    "absent": lambda _stream, _shape: None,
    "normal": lambda stream, shape: stream.normal(*shape),
    "wide": lambda stream, shape: 200 * stream.uniform(*shape) - 100,
}
"""Distributions of dt_bias."""

COTANGENTS: Final[dict[str, Parameters]] = {
    "normal": lambda stream, shape: stream.normal(*shape),
    "large": lambda stream, shape: 2.0**20 * stream.normal(*shape),
    "small": lambda stream, shape: 2.0**-25 * stream.normal(*shape),
    "one-signed": lambda stream, shape: stream.uniform(*shape),
    "zero": lambda _stream, shape: np.zeros(shape),
}
"""Distributions of the gradient that comes back."""
