"""How dot products are made: order of terms, format of the sum, operands' conversion."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.contract import Contract
from kdaverify.budgets.formats import FORMATS, Format
from kdaverify.budgets.solves import Dot

PARTS: Final = 16
"""Partial sums that are added in order, where a plain loop adds every term: fewer steps take less
time. Chosen: a conforming kernel in chunks that is rejected for the order of its sums would show it
too small."""
# Terms that a matrix unit adds before it rounds the sum.
STEP: Final = 16
# Elements of terms that a core computes together.
AT_ONCE: Final = 2**16


def library(contract: Contract) -> Dot:
    """Sums as a library makes them, as far as the contract leaves that open."""
    if contract.order == "in-order":
        return term_by_term(contract)
    if contract.narrow_sums:
        return functools.partial(_kept, keep=contract.accumulate.round, step=STEP)
    return torch.matmul


def ordered(contract: Contract) -> Dot:
    """Sums made in order, in at most 16 partial sums, instead of by a library's tree."""
    if contract.order == "free" and not contract.narrow_sums:
        return sequential
    return term_by_term(contract)


def term_by_term(contract: Contract) -> Dot:
    """Sums made in order, term by term, as a plain loop does."""
    if contract.narrow_sums:
        return functools.partial(_kept, keep=contract.accumulate.round, step=1)
    return one_by_one


def matrix_units(fmt: Format, contract: Contract) -> dict[str, Dot]:
    """Ways of matrix units that the contract allows: operands in `fmt`, its accumulator."""
    free = contract.operand_rounding == "free"
    cut = contract.operand_rounding == "truncate" or (free and fmt.name == "tf32")
    ways = {"matrix units": fmt.round} if contract.operand_rounding != "truncate" else {}
    if cut:
        ways["matrix units that truncate"] = fmt.truncate
    return {name: _with_operands(bring, library(contract)) for name, bring in ways.items()}


def _with_operands(bring: Callable[[Tensor], Tensor], dot: Dot) -> Dot:
    return lambda a, b: dot(bring(a), bring(b))


def three_products(a: Tensor, b: Tensor) -> Tensor:
    """A product of fp32 operands on bf16 units: both split, the small parts' product left out."""
    bf16 = FORMATS["bf16"].round
    (a_large, a_small), (b_large, b_small) = ((bf16(x), bf16(x - bf16(x))) for x in (a, b))
    return a_large @ b_large + (a_large @ b_small + a_small @ b_large)


def sequential(a: Tensor, b: Tensor) -> Tensor:
    """A dot product summed in order, in at most 16 partial sums."""
    return _in_parts(a, b, min(a.shape[-1], PARTS))


def one_by_one(a: Tensor, b: Tensor) -> Tensor:
    """A dot product summed in order, term by term."""
    return _in_parts(a, b, a.shape[-1])


def from_last(a: Tensor, b: Tensor) -> Tensor:
    """A dot product summed term by term from the last."""
    return one_by_one(a.flip(-1), b.flip(-2))


def onto_first(contract: Contract) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Sums that begin with the state, or with what o reads of it, and take what the chunk adds term
    by term, as a loop of multiply-adds on vector units does: it rounds the state once a token.
    """
    return (
        functools.partial(_onto, keep=contract.accumulate.round) if contract.narrow_sums else _onto
    )


def _onto(
    total: Tensor, a: Tensor, b: Tensor, keep: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    for column, row in zip(a.split(1, dim=-1), b.split(1, dim=-2), strict=True):
        total = torch.addcmul(total, column, row)
        total = total if keep is None else keep(total)
    return total


def _kept(a: Tensor, b: Tensor, *, keep: Callable[[Tensor], Tensor], step: int) -> Tensor:
    return _in_parts(a, b, -(-a.shape[-1] // step), keep)


def _in_parts(
    a: Tensor, b: Tensor, parts: int, keep: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    if not parts:
        return a @ b
    total = None
    for product in _single(a, b) if parts == a.shape[-1] else _several(a, b, parts):
        total = product if total is None else total + product
        total = total if keep is None else keep(total)
    assert total is not None  # there is at least one part
    return total


def _several(a: Tensor, b: Tensor, parts: int) -> Iterator[Tensor]:
    """The dot product of each of so many parts of the terms."""
    parts_of_a, parts_of_b = a.tensor_split(parts, dim=-1), b.tensor_split(parts, dim=-2)
    return (left @ right for left, right in zip(parts_of_a, parts_of_b, strict=True))


def _single(a: Tensor, b: Tensor) -> Iterator[Tensor]:
    """Every term, many at once: the numbers of one-term products, two to five times faster."""
    columns, rows, terms = a.mT[..., None], b[..., None, :], a.shape[-1]
    several = max(1, AT_ONCE // max(1, a[..., 0].numel() * b.shape[-1]))
    if terms <= several:
        yield from (columns * rows).unbind(-3)
        return
    pieces = columns.split(several, dim=-3), rows.split(several, dim=-3)
    for column, row in zip(*pieces, strict=True):
        yield from (column * row).unbind(-3)


def tree(fmt: Format) -> Callable[[Tensor], Tensor]:
    """Sums over the last axis that never leave `fmt`: products, pairs, pairs of pairs."""

    def total(products: Tensor) -> Tensor:
        terms = fmt.round(products)
        while terms.shape[-1] > 1:
            if terms.shape[-1] % 2 == 0:
                even = terms
            else:
                even = torch.cat((terms, torch.zeros_like(terms[..., :1])), dim=-1)
            terms = fmt.round(even[..., ::2] + even[..., 1::2])
        return terms.squeeze(-1)

    return total


def running(fmt: Format) -> Callable[[Tensor], Tensor]:
    """Sums over the last axis from the first term to the last that never leave `fmt`."""

    def total(products: Tensor) -> Tensor:
        return functools.reduce(
            lambda so_far, term: fmt.round(so_far + term), fmt.round(products).unbind(-1)
        )

    return total
