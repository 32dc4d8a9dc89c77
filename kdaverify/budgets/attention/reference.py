"""Exact values and tolerances of a call of attention: the one entry for operators.

A call is a list of segments, one a request; `Layout` puts what is made of them where the call
returns it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.attention.contract import AttentionContract
from kdaverify.budgets.attention.ensemble import (
    ReferenceKernel,
    differentiated_kernels,
    grouped_kernels,
    rounded_kernels,
    sampled_kernels,
    samples_apart,
    sink_kernels,
    summed_maximum_kernels,
)
from kdaverify.budgets.attention.forwards import ForwardRun, LatestForwards
from kdaverify.budgets.attention.terms import ForwardTerms, forward_terms, gradient_terms
from kdaverify.budgets.attention.tolerances import (
    OutputTerms,
    attention_tolerances,
    lse_terms,
    output_terms,
    sum_terms,
)
from kdaverify.budgets.finite import OutputRuns
from kdaverify.budgets.sampled import ExactValues
from kdaverify.budgets.standard import Reference
from oracles.attention.segment import Segment
from oracles.enclosure import Enclosure

STORED: Final = ("dq", "dk", "dv", "dsink")
"""Gradients that the backward of a segment stores itself; others are sums of several."""
LATEST: Final = LatestForwards()
Layout = Callable[[Sequence[tuple[Tensor, ...]]], Mapping[str, Tensor]]
"""Puts one tuple of tensors a segment, (o, lse) or (dq, dk, dv), into tensors as a call returns
them, by name."""


@dataclass(frozen=True)
class Loss:
    """Cotangents of one segment: do [H, s_q, d_v], dlse [H, s_q] or None."""

    do: Tensor
    dlse: Tensor | None


@torch.inference_mode()
def attention_reference(
    segments: Sequence[Segment],
    exact: Mapping[str, Enclosure],
    layout: Layout,
    contract: AttentionContract,
    *,
    method: str,
) -> Reference:
    """The reference of the outputs.

    Args:
        segments: of the call.
        exact: o, and lse where returned, each with a radius; 0 where there is no finite value.
        layout: (o, lse) of every segment as the call returns them.
        contract: that the kernel declares.
        method: how the exact values were computed.
    Raises:
        ContractOverflow: every output overflows in some reference kernel.
    """
    sunk = any(segment.sink is not None for segment in segments)
    kernels = (
        _nearest(segments, contract),
        sampled_kernels(contract),
        samples_apart(contract, sunk=sunk),
    )
    rounded, drawn, apart = (
        [layout([one.forward(segment) for segment in segments]) for one in group]
        for group in kernels
    )
    terms = _output_terms(exact, [forward_terms(s) for s in segments], layout, contract)
    if "lse" in exact and bool((empty := torch.isinf(rounded[0]["lse"])).any()):
        terms["lse"] = replace(terms["lse"], undefined=empty)
    runs = _runs(exact, rounded, drawn, apart)
    return Reference(ExactValues(exact, method), attention_tolerances(exact, runs, terms, contract))


@torch.inference_mode()
def attention_gradient_reference(
    segments: Sequence[Segment],
    losses: Sequence[Loss],
    exact: Mapping[str, Enclosure],
    layout: Layout,
    contract: AttentionContract,
    *,
    method: str,
) -> Reference:
    """The same for gradients; reference kernels recompute P from their lse, delta from their o."""

    def groups() -> tuple[Sequence[ReferenceKernel], ...]:
        samples = (*sampled_kernels(contract), *differentiated_kernels(contract))
        grouped = any(len(s.q) > len(s.k) for s in segments)
        nearest = (
            *_nearest(segments, contract),
            *(grouped_kernels(contract) if grouped else ()),
            *summed_maximum_kernels(contract),
        )
        return nearest, samples

    def gradients(run: ForwardRun) -> Mapping[str, Tensor]:
        one = run.resumed()
        parts = zip(segments, run.outputs, losses, strict=True)
        found = layout([one.backward(s, made, loss.do, loss.dlse) for s, made, loss in parts])
        return {n: x if n in STORED else one.arithmetic.store(n, x) for n, x in found.items()}

    runs_of = LATEST.of(segments, contract, groups)
    rounded, drawn = ([gradients(run) for run in group] for group in runs_of)
    pairs = zip(segments, losses, strict=True)
    found = [gradient_terms(segment, loss.do, loss.dlse) for segment, loss in pairs]
    sizes, lost, complements = (
        layout([getattr(x, kind) for x in found]) for kind in ("moduli", "underflow", "complements")
    )
    terms = {n: sum_terms(sizes[n], lost[n], complements[n], contract) for n in exact}
    runs = _runs(exact, rounded, drawn)
    return Reference(ExactValues(exact, method), attention_tolerances(exact, runs, terms, contract))


def _nearest(segments: Sequence[Segment], contract: AttentionContract) -> list[ReferenceKernel]:
    """The reference kernels that round to nearest."""
    found = [*rounded_kernels(contract).values()]
    if any(segment.sink is not None for segment in segments):
        found += sink_kernels(contract).values()
    return found


def _output_terms(
    exact: Mapping[str, Enclosure],
    found: Sequence[ForwardTerms],
    layout: Layout,
    contract: AttentionContract,
) -> dict[str, OutputTerms]:
    """Of o and lse, laid out as they are."""
    scores = layout([(one.values, one.scores) for one in found])
    weights = layout([(one.values, one.weights) for one in found])
    largest = layout([(one.largest, one.weights) for one in found])
    underflow = layout([(one.underflow, one.weights) for one in found])
    exponents = layout([(one.exponents, one.weights) for one in found])
    parts = (scores["o"], exponents["o"], largest["o"], underflow["o"])
    terms = {"o": output_terms(*parts, contract)}
    if "lse" not in exact:
        return terms
    lse = exact["lse"].high.nan_to_num(neginf=0.0)
    return terms | {"lse": lse_terms(lse, scores["lse"], weights["lse"], contract)}


def _runs(
    exact: Mapping[str, Enclosure], *groups: Sequence[Mapping[str, Tensor]]
) -> dict[str, OutputRuns]:
    """Of each output, what every group of reference kernels makes of it."""
    return {
        name: OutputRuns(*([x[name].double() for x in group] for group in groups)) for name in exact
    }
