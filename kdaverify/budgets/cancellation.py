"""How large the terms are that meet in the gradient of cumulative gates, stage by stage: what a legal rounding there is relative to."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from oracles.gradients import largest_ahead
from oracles.inputs import Inputs
from oracles.stages import Named


def cancelling(inputs: Inputs, given: Named, written: Named, chunk_size: int) -> dict[str, Tensor]:
    """Sizes of the terms that meet in an element of dG_state, dG_wy, dG and dg, of those that are written.

    Math: the stages take the parts of dq and dk that they add, times q and k, from the sums that they add them to:
        dG_state  q dq_state, k dk_state              dG_wy  those before, k (dk_wy - dk_state)
        dG        those before, q (dq_head - dq_state), k (dk_head - dk_wy)          dg  the largest of dG from there to the end

    Args:
        given, written: float64, what the stages received and what they wrote.
    Returns:
        [B, T, HV, K] each.
    """
    return dict(_grown(inputs, {**given, **written}, written, chunk_size))


def _grown(inputs: Inputs, tensors: Named, written: Named, chunk_size: int) -> Iterator[tuple[str, Tensor]]:
    group = inputs.HV // inputs.H
    q, k = (x.double().abs().repeat_interleave(group, dim=2) for x in (inputs.q, inputs.k))

    def added(name: str, before: str) -> Tensor:
        return (tensors[name] - tensors[before]).abs()

    sizes: Tensor | None = None
    if "dG_state" in written:
        sizes = q * tensors["dq_state"].abs() + k * tensors["dk_state"].abs()
        yield "dG_state", sizes
    if "dG_wy" in written:
        sizes = (tensors["dG_state"].abs() if sizes is None else sizes) + k * added("dk_wy", "dk_state")
        yield "dG_wy", sizes
    if "dG" in written:
        own = q * added("dq_head", "dq_state") + k * added("dk_head", "dk_wy")
        sizes = (tensors["dG_wy"].abs() if sizes is None else sizes) + own
        yield "dG", sizes
    if "dg" in written:
        yield "dg", largest_ahead(inputs, tensors["dG"].abs() if sizes is None else sizes, chunk_size)
