"""Equations between the tensors that a kernel itself wrote: these need no oracle.

    o = scale qg h + Aqk v_new        v_new = u - w h        R (I + Akk) = I

A difference is bounded term by term: each side is made of stored tensors, so what may be lost is
the rounding of the result, of operands on their way into a product, and of its sum. No conforming
result exceeds the bound, and a wrong factor, sign, row or layout does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.contract import Contract
from kdaverify.budgets.formats import Format
from oracles.chunk import Chunk
from oracles.inputs import Inputs
from oracles.stages import Named, over_chunks


@dataclass(frozen=True)
class Closure:
    """One equation.

    Args:
        tensors: what it is between.
        sides: what it leaves over in exact arithmetic [C, ...], 0 where it holds.
        terms: the sum of the sizes of all terms [C, ...].
        result: the tensor that was rounded into its storage format last.
    """

    tensors: tuple[str, ...]
    sides: Callable[[Chunk], Tensor]
    terms: Callable[[Chunk], Tensor]
    result: str


def _inverse(c: Chunk) -> Tensor:
    whole = torch.eye(c.R.shape[-1], dtype=c.R.dtype, device=c.R.device) + c.Akk
    return (c.R @ whole).tril(-1)


def _inverse_terms(c: Chunk) -> Tensor:
    whole = torch.eye(c.R.shape[-1], dtype=c.R.dtype, device=c.R.device) + c.Akk.abs()
    # A substitution's error in R passes through the system once more.
    return (c.R.abs() @ whole @ c.R.abs() @ whole).tril(-1)


CLOSURES: Final[Mapping[str, Closure]] = {
    "R (I + Akk) = I": Closure(("Akk", "R"), _inverse, _inverse_terms, "R"),
    "v_new = u - w h": Closure(
        ("w", "u", "h", "v_new"),
        lambda c: c.v_new - (c.u - c.w @ c.h),
        lambda c: c.v_new.abs() + c.u.abs() + c.w.abs() @ c.h.abs(),
        "v_new",
    ),
    "o = scale qg h + Aqk v_new": Closure(
        ("qg", "h", "Aqk", "v_new", "o"),
        lambda c: c.o - (c.scale * (c.qg @ c.h) + c.Aqk @ c.v_new),
        lambda c: c.o.abs() + abs(c.scale) * (c.qg.abs() @ c.h.abs()) + c.Aqk.abs() @ c.v_new.abs(),
        "o",
    ),
}
"""The equations, by how they read."""


def closures(
    written: Named, inputs: Inputs, contract: Contract, formats: Callable[[str], Format]
) -> dict[str, float]:
    """How far every equation is from holding, as a fraction of what roundings do, or inf.

    Math: bound = (u_result + 2 u_operands + (n + 2) u_sum) terms + n smallest normal, n the terms
    of the longest sum; u_operands is 0 where products take what is stored as it is.

    Args:
        written: the kernel's own tensors, in the layout of `oracles.stages`.
        inputs: the call that made them.
        contract, formats: the arithmetic declared.
    """
    return {
        name: _excess(closure, written, inputs, contract, formats)
        for name, closure in CLOSURES.items()
        if written.keys() >= set(closure.tensors)
    }


def _excess(
    closure: Closure,
    written: Named,
    inputs: Inputs,
    contract: Contract,
    formats: Callable[[str], Format],
) -> float:
    given = {name: written[name].double() for name in closure.tensors}
    left = over_chunks(inputs, given, closure.sides, chunk_size=contract.chunk_size)
    terms = over_chunks(inputs, given, closure.terms, chunk_size=contract.chunk_size)
    longest = inputs.K + contract.chunk_size + 2
    unit = (
        formats(closure.result).unit
        + 2 * _operands(contract, closure)
        + longest * contract.accumulate.unit
    )
    # Subnormal operands and results keep fewer digits, or none.
    allowed = unit * terms + longest * formats(closure.result).min_normal
    worst = (left.abs() / allowed).nan_to_num(nan=torch.inf)
    return float(worst.max()) if worst.numel() else 0.0


def _operands(contract: Contract, closure: Closure) -> float:
    """Unit roundoff of operands that a product narrows; stored ones are taken as they are."""
    if "R" in closure.tensors:
        return (contract.solve or contract.operands).unit
    return contract.operands.unit if contract.operands.name == "tf32" else 0.0
