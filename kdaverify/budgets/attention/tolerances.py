"""The tolerance of every output of attention, from what the reference ensemble makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.attention.contract import AttentionContract
from kdaverify.budgets.budget import Budget, allow, ensemble_errors
from kdaverify.budgets.ensemble import ContractOverflow
from kdaverify.budgets.finite import OutputRuns, finite_outputs
from kdaverify.budgets.formats import Format
from kdaverify.budgets.statistics import statistics
from oracles.arithmetic import is_finite
from oracles.enclosure import Enclosure

SCORE_ROUNDINGS: Final = 2.0
"""Roundoffs of the accumulator that a score may be wrong by, relative to the sum of the moduli of
its products: matrix units truncate, and align products of 16 terms at a time."""
LSE_ULPS: Final = 2.0
"""Of lse itself: the maximum, and the sum of it and the logarithm, are rounded."""
OUTPUT_ROUNDINGS: Final = 3.0
"""Roundoffs of the accumulator that an element of o may be wrong by, relative to sum_j P_ij |V_j|:
weight, product, sum, rescaling, division and merges round six times or more, about 0.4 of a
roundoff each. Where one key has all the weight the ensemble rounds fewer times: without this,
conforming fp32 kernels of 8 splits were at 1.1 times their tolerance. Where all keys weigh the same
so do the roundings of all rows: 6 splits merged in order were wrong by 3 roundoffs throughout."""
EXPONENT_ROUNDINGS: Final = 2.0
"""Roundoffs of the accumulator that the exponent of a sink may be wrong by, relative to the moduli
of the sink and of the LSE of the keys. All keys of a row share it, and how it rounds depends on the
base, on what is scaled and on splits: without it, conforming fp32 kernels were at 4.3 times their
tolerance; with one roundoff, at 1.1 times."""
SUMS: Final = 8.0
"""Roundoffs of the accumulator that a sum of gradients may be wrong by, relative to the moduli of
its terms: atomic sums come in any order."""
COMPLEMENT_ROUNDINGS: Final = 2.0
"""Roundoffs of the accumulator that P of a sink may be wrong by in the gradient of the sink. Where
o is multiplied by y = sigmoid(LSE - a), automatic differentiation makes P as 1 - y: 1 + exp(a -
LSE) and its reciprocal are rounded next to 1. A right port in JAX had 0 for a P of 1e-12."""


@dataclass(frozen=True)
class OutputTerms:
    """What an output's errors are relative to.

    Args:
        size: of the terms that cancel in every element; None: the element itself.
        floor: an error that an element may have besides.
        relative: the same relative to `size`, for limits of relative errors.
        undefined: elements that have no finite exact value.
        lost: an error that an element may have besides, which relative errors do not count.
    """

    size: Tensor | None = None
    floor: Tensor | None = None
    relative: Tensor | float = 0.0
    undefined: Tensor | None = None
    lost: Tensor | float = 0.0


def output_terms(
    values: Tensor,
    exponents: Tensor,
    largest: Tensor,
    underflow: Tensor,
    contract: AttentionContract,
) -> OutputTerms:
    """Those of o.

    Math: floor = u (3 + 2 P_a (|a| + |LSE|)) sum_j P_ij |V_j| + s sum_j (|V_j| + 1), u the
    accumulator's unit, a the sink and s its smallest normal number, below which P and its products
    with V may be 0, and u_P P_im |V_m|, m the key of the largest P, where the maximum may lag: that
    P is 1 and stored exactly where it does not, else rounded as all others are, by how much depends
    on where blocks begin.

    Args:
        values, exponents, largest, underflow: as in `ForwardTerms`.
    """
    u = contract.accumulate.unit
    relative = OUTPUT_ROUNDINGS * u + EXPONENT_ROUNDINGS * u * exponents
    floor = relative * values + contract.accumulate.min_normal * underflow
    if contract.lazy:
        floor = floor + contract.storage("P").unit * largest
    return OutputTerms(None, floor, relative)


def lse_terms(
    lse: Tensor, scores: Tensor, weights: Tensor, contract: AttentionContract
) -> OutputTerms:
    """Those of lse: its error is that of the scores, plus roundings of lse itself.

    Math: floor = 2 u sum_j P_ij c sum_d |q K| + 2 (2 u) (|lse| + 1), u the accumulator's unit, and
    u_P times the weights where row sums are of rounded P and the maximum may lag: the largest P is
    not 1 then, and is rounded.

    Args:
        lse: exact, 0 where a row sees no key.
        scores, weights: as in `ForwardTerms`.
    """
    u = max(contract.accumulate.unit, contract.storage("lse").unit)
    size = lse.abs() + scores + 1.0
    floor = SCORE_ROUNDINGS * u * scores + LSE_ULPS * 2 * u * (lse.abs() + 1.0)
    if not contract.lazy or contract.row_sum == "unrounded":
        return OutputTerms(size, floor, SCORE_ROUNDINGS * u)
    lagging = contract.storage("P").unit * weights
    return OutputTerms(size, floor + lagging, SCORE_ROUNDINGS * u + lagging / size)


def sum_terms(
    size: Tensor, underflow: Tensor, complements: Tensor, contract: AttentionContract
) -> OutputTerms:
    """Those of a gradient. What underflow takes counts as terms of a size whose roundoff it is, so
    that relative errors of elements near the smallest normal number are not measured either.

    Args:
        size, underflow, complements: `moduli`, `underflow`, `complements` of `GradientTerms`.
    """
    relative = SUMS * contract.accumulate.unit
    size = size + contract.accumulate.min_normal / relative * underflow
    lost = COMPLEMENT_ROUNDINGS * contract.accumulate.unit * complements
    return OutputTerms(size, relative * size, relative, lost=lost)


def attention_tolerances(
    exact: Mapping[str, Enclosure],
    runs: Mapping[str, OutputRuns],
    terms: Mapping[str, OutputTerms],
    contract: AttentionContract,
) -> dict[str, Budget]:
    """The tolerance of each output that the ensemble keeps finite.

    Args:
        exact: outputs or gradients by name, undefined elements 0.
        runs: of the ensemble, laid out as the exact ones.
        terms: by name; an output without has errors relative to itself.
    Raises:
        ContractOverflow: every output overflows in some reference kernel.
    """
    clean = {name: _defined(runs[name], terms.get(name, OutputTerms()).undefined) for name in exact}
    finite = finite_outputs(clean)
    if not finite:
        raise ContractOverflow(
            f"every output overflows in some emulated kernel of {contract.name}; choose milder"
            " values"
        )
    return {
        name: _tolerance(exact[name], clean[name], terms.get(name, OutputTerms()), contract, name)
        for name in finite
    }


def _defined(runs: OutputRuns, undefined: Tensor | None) -> OutputRuns:
    """The runs with 0 where no exact value is, and samples apart where they are finite."""
    if undefined is not None:
        runs = OutputRuns(*([x.masked_fill(undefined, 0.0) for x in some] for some in runs))
    return runs._replace(apart=[x for x in runs.apart if is_finite(x)])


def _tolerance(
    exact: Enclosure, runs: OutputRuns, terms: OutputTerms, contract: AttentionContract, name: str
) -> Budget:
    fmt = contract.storage(name)
    errors = ensemble_errors(exact, *runs, io=fmt, lost=terms.lost, terms=terms.size)
    unit = fmt.unit if name == "lse" else max(contract.operands.unit, fmt.unit)
    allowed = allow(
        exact,
        errors,
        io=fmt,
        unit=unit,
        lost=terms.lost,
        moved=terms.size if name.startswith("d") else None,
        terms=terms.size,
        floor=0.0 if terms.floor is None else terms.floor,
    )
    found, relative = allowed.allowed, _relative(exact, fmt, terms)
    wider = replace(found, median=found.median + relative, tail=found.tail + 2 * relative)
    # Where nothing is rounded but sums, hardware and order choose the error: FlashMLA's LSE on an
    # H100 has 0.7 to 2.9 times that of the nearest reference kernel, its o 0.998 times.
    peers = allowed.peers if unit > contract.accumulate.unit else ()
    return replace(allowed, allowed=wider, peers=peers, undefined=terms.undefined)


def _relative(exact: Enclosure, io: Format, terms: OutputTerms) -> float:
    """What relative errors may have besides: the 99 % quantile of that of the elements. For medians
    too: where half the rows have large errors, the median of all is among theirs.
    """
    if not isinstance(terms.relative, Tensor):
        return terms.relative
    sizes = exact.high.abs()
    sizes = sizes if terms.size is None else torch.maximum(sizes, terms.size)
    return statistics(terms.relative * sizes, exact, io, terms=terms.size).tail
