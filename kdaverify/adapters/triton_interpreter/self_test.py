"""Proof, at start-up, that interpreted bf16 is bf16: bits are compared with torch's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import Tensor

BF16: Final = torch.bfloat16
LOWER_HALVES: Final = (0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF)
"""On, just above, just below and at the tie between two bf16 numbers."""
PATTERNS: Final = 1 << 16
SIDE: Final = 16
SPECIAL: Final = (
    0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x0080, 0x3F80, 0xBF80, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80,
    0x7FC0,
)  # fmt: skip
"""Zeros, subnormals and the smallest normal, ones, the largest, infinities, NaN."""


def self_test() -> dict[str, str | None]:
    """Every check by name: None where it holds, or the first bits that differ."""
    return {name: check() for name, check in _CHECKS.items()}


def _down() -> str | None:
    """fp32 to bf16: all 65536 upper halves with every kind of lower half."""
    upper = torch.arange(PATTERNS, dtype=torch.int64)[:, None] << 16
    patterns = upper + torch.tensor(LOWER_HALVES)
    return _first(_converted(_fp32(part), BF16) for part in patterns.T)


def _down_random() -> str | None:
    """fp32 to bf16: random bits."""
    bits = torch.randint(0, 1 << 32, (PATTERNS,), generator=_seed())
    return _first([_converted(_fp32(bits), BF16)])


def _up() -> str | None:
    """bf16 to fp32: all patterns."""
    return _first([_converted(_patterns(), torch.float32)])


def _across() -> str | None:
    """bf16 to fp16 and to int32, and integers to bf16, by way of fp32 as torch does."""
    small = torch.arange(-PATTERNS // 2, PATTERNS // 2, dtype=torch.int32)
    finite = _patterns().clamp(-1e6, 1e6).nan_to_num()
    return _first(
        [
            _converted(_patterns(), torch.float16),
            _converted(finite, torch.int32),
            _converted(small, BF16),
        ]
    )


def _arithmetic() -> str | None:
    """Sum, product, order and maximum of bf16 numbers: random and all special pairs."""
    from kdaverify.adapters.triton_interpreter import probes

    special = torch.tensor(SPECIAL, dtype=torch.int64)
    pairs = torch.randint(0, PATTERNS, (2, PATTERNS), generator=_seed())
    pairs[:, : len(special) ** 2] = torch.cartesian_prod(special, special).T
    # whether a signalling NaN is a number is the platform's
    a, b = (torch.where(x.isnan(), torch.nan, x) for x in map(_bf16, pairs))
    total, product, larger = (torch.empty_like(a) for _ in range(3))
    less = torch.empty_like(a, dtype=torch.int32)
    _launch(probes.arithmetic, a, b, total, product, N=PATTERNS)
    _launch(probes.order, a, b, less, larger, N=PATTERNS)
    fmax = torch.fmax(a.float(), b.float()).to(BF16)
    # either zero may win
    return _first(
        [(total, a + b), (product, a * b), (less, (a < b).int()), (larger + 0.0, fmax + 0.0)]
    )


def _constant() -> str | None:
    """A bf16 constant."""
    from kdaverify.adapters.triton_interpreter import probes

    got = torch.empty(SIDE, dtype=BF16)
    _launch(probes.constant, got, N=SIDE)
    return _first([(got, torch.full_like(got, 1 / 3))])


def _product() -> str | None:
    """A matrix product of small integers, exact in fp32 in any order, rounded once."""
    from kdaverify.adapters.triton_interpreter import probes

    a, b = torch.randint(-99, 100, (2, SIDE, SIDE), generator=_seed()).to(BF16)
    got = torch.empty_like(a)
    _launch(probes.product, a, b, got, N=SIDE)
    return _first([(got, (a.double() @ b.double()).to(BF16))])


def _reduction() -> str | None:
    """Sums that round after every addition of a balanced tree, and largest elements."""
    from kdaverify.adapters.triton_interpreter import probes

    rows = torch.randn(SIDE, 64, generator=_seed()).to(BF16)
    total, largest = torch.empty(SIDE, dtype=BF16), torch.empty(SIDE, dtype=BF16)
    _launch(probes.reduction, rows, total, largest, M=SIDE, N=64)
    tree = rows
    while tree.shape[1] > 1:
        half = tree.shape[1] // 2
        tree = tree[:, :half] + tree[:, half:]
    return _first([(total, tree[:, 0]), (largest, rows.max(dim=1).values)])


_CHECKS: Final[dict[str, Callable[[], str | None]]] = {
    "fp32 to bf16": _down,
    "random fp32 to bf16": _down_random,
    "bf16 to fp32": _up,
    "bf16 to and from other formats": _across,
    "bf16 arithmetic": _arithmetic,
    "bf16 constant": _constant,
    "bf16 matrix product": _product,
    "bf16 reductions": _reduction,
}


def _converted(source: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    from kdaverify.adapters.triton_interpreter import probes

    got = torch.empty_like(source, dtype=dtype)
    _launch(probes.convert, source, got, N=len(source))
    return got, source.to(dtype)


def _launch(kernel: Any, *tensors: Tensor, **sizes: int) -> None:
    kernel[(1,)](*tensors, **sizes)


def _first(pairs: Iterable[tuple[Tensor, Tensor]]) -> str | None:
    """The first difference of any pair (interpreted, torch's); NaN equals NaN of any payload."""
    for got, wanted in pairs:
        bits: Any = {2: torch.int16, 4: torch.int32}[got.itemsize]
        wrong = (got.view(bits) != wanted.view(bits)) & ~(got.isnan() & wanted.isnan())
        if bool(wrong.any()):
            at = int(wrong.flatten().nonzero()[0])
            one, other = got.flatten()[at].item(), wanted.flatten()[at].item()
            return (
                f"{int(wrong.sum())} of {got.numel()} differ, the first {one!r} instead of"
                f" {other!r}"
            )
    return None


def _seed() -> torch.Generator:
    return torch.Generator().manual_seed(20)


def _patterns() -> Tensor:
    return _bf16(torch.arange(PATTERNS, dtype=torch.int64))


def _bf16(bits: Tensor) -> Tensor:
    return bits.to(torch.int32).to(torch.int16).view(BF16)


def _fp32(bits: Tensor) -> Tensor:
    return bits.to(torch.int32).view(torch.float32)
