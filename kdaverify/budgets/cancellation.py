"""How large the terms are that meet in a gradient: what a sum's roundings are relative to."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kdaverify.budgets.contract import Contract
from kdaverify.budgets.stage_forms import CHANNEL, StageForm
from oracles.gradients import largest_ahead
from oracles.inputs import Inputs
from oracles.scan import scan
from oracles.stages import Named
from oracles.tokens import Tensors, Tokens


def size_of_dg(inputs: Inputs, terms: Tensor, contract: Contract) -> Tensor:
    """[B, T, HV, KG] What the sums of dg round relative to: the largest of `terms` to the chunk's
    end, and those of all pairs that an anchor is in.

    Automatic differentiation gives the row that scores are anchored at a gradient: the sum over all
    pairs of its block, which is 0 but for roundings, and which every token up to that row gets. A
    right kernel was rejected for noise there: where earlier tokens have the only large terms, or
    all incoming gradients, the exact dg is 0, or 10^5 times smaller.
    """
    if contract.anchored and contract.anchor != "first":
        terms = _spread_by_anchors(inputs, terms, contract)
    return largest_ahead(inputs, terms, contract.chunk_size)


def _spread_by_anchors(inputs: Inputs, terms: Tensor, contract: Contract) -> Tensor:
    """The largest of a block's `terms` in every row up to its middle one; that of the last block
    may be of the rows that it has, or of a whole block, padded.
    """

    def of_block(x: Tensor) -> Tensor:
        reached = x[..., : contract.sub_block // 2 + 1, :]
        largest = x.amax(-2, keepdim=True).expand_as(reached)
        return torch.cat((largest, x[..., reached.shape[-2] :, :]), -2)

    def body(carry: Tensors, tokens: Tokens) -> tuple[Tensors, Tensors]:
        blocks = tokens.others[0].split(contract.sub_block, -2)
        return carry, (torch.cat([of_block(x) for x in blocks], -2),)

    if not any(inputs.lengths):
        return terms
    start, size = (inputs.state,), contract.chunk_size
    return scan(inputs, size, start, body, dtype=terms.dtype, others=(terms,))[1][0]


def sizes_of_terms(
    inputs: Inputs,
    given: Named,
    covers: tuple[str, ...],
    chunk_size: int,
    form: StageForm = CHANNEL,
) -> dict[str, Tensor]:
    """The sum of the sizes of all terms of every element that backward stages write.

    Math: a stage is a sum of products, and decays are positive: on absolute values it gives that
    sum. Only what cumulative gates get is a difference of what q and k get; dg counts the largest
    of it from there to the end of its chunk. The gradient of the state is carried from chunk to
    chunk, where sizes would grow without bound: what that stage writes is not among the results.

    Args:
        given: what the stages received, float64.
        covers: the stages, of `form`.
    Returns:
        By name, in the layout of `oracles.backward_stages`.
    """
    q, k = inputs.q.double().abs(), inputs.k.double().abs()
    absolute = replace(inputs, q=q, k=k, v=inputs.v.abs(), scale=abs(inputs.factor))
    q, k = (x.repeat_interleave(inputs.HV // inputs.H, dim=2) for x in (q, k))
    sizes = {name: tensor if name == "G" else tensor.abs() for name, tensor in given.items()}
    found: dict[str, Tensor] = {}
    for stage in covers:
        signature = form.backward[stage]
        read = {name: sizes[name] for name in signature.reads if name in sizes}
        written = {
            name: x.abs()
            for name, x in form.run(
                absolute, read, (stage,), chunk_size=chunk_size, stages=form.sizes
            ).items()
        }
        if "dG_state" in written:
            written["dG_state"] = q * written["dq_state"] + k * written["dk_state"]
        if "dq_head" in written:
            added = q * (written["dq_head"] - sizes["dq_state"]) + k * (
                written["dk_head"] - sizes["dk_wy"]
            )
            written["dG"] = sizes["dG_wy"] + added
        if stage == "cumsum_bwd":
            written["dg"] = largest_ahead(inputs, sizes["dG"], chunk_size)
        sizes |= written
        found |= written if stage != "state_bwd" else {}
    return found
