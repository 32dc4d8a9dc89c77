"""Faults of what a program does between calls: an evaluation, a refused call, calls that share
tensors, a loss of some tokens alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters import kernel
from kdaverify.adapters.base import Adapter
from kdaverify.adapters.eager import EAGER
from kdaverify.faults.fault import with_gradient
from kdaverify.faults.planted.broken_calls import DTYPES, Outputs, right, saved_by
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs

CHUNK: Final = 64
LONG: Final = 2048


def gradient_added_to_grad(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """The gradient of k contains that of an earlier backward, in `.grad`."""

    def added(dk: Tensor) -> Tensor:
        return dk if not x.k.is_leaf or x.k.grad is None else dk + x.k.grad

    return right(replace(x, k=with_gradient(added, x.k)))


def gradient_that_clears_grad(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """The backward clears the `.grad` of k, as if each were the first."""

    def cleared(dk: Tensor) -> Tensor:
        if x.k.is_leaf and x.k.grad is not None:
            x.k.grad.zero_()
        return dk

    return right(replace(x, k=with_gradient(cleared, x.k)))


def gates_of_an_evaluation(x: Inputs, kept: dict[Any, Any]) -> Outputs:
    """Gates derived under no_grad stand for those of a later call on the same tensor."""
    if not torch.is_grad_enabled():
        kept["g"] = (x.g, x.g.detach().clone())
        return right(x)
    held, own = kept.get("g", (None, x.g))
    return right(replace(x, g=own) if held is x.g and torch.equal(own, x.g) else x)


def saved_by_the_address_of_q(x: Inputs, kept: dict[Any, Any]) -> Outputs:
    """The backward of k reads k from a table by the address of q."""
    return saved_by(x.q.data_ptr(), x, kept)


def dk_from_the_first_chunk_of_the_loss(
    x: Inputs, given: Cotangents, _: dict[Any, Any]
) -> Gradients[Any]:
    """Chunks before the first that the loss depends on have no gradient of k."""
    found = EAGER.gradients(x, given)
    if given.do is None or x.cu_seqlens is not None or not bool(given.do.any()):
        return found
    seen = given.do.ne(0).any(-1).any(-1).any(0)
    dk = found.dk.clone()
    dk[:, : int(seen.int().argmax()) // CHUNK * CHUNK] = 0
    return replace(found, dk=dk)


def without_chunks_between(x: Inputs, given: Cotangents, _: dict[Any, Any]) -> Gradients[Any]:
    """Chunks without a loss between others that have one are passed over, and have no dv."""
    found = EAGER.gradients(x, given)
    if given.do is None or x.cu_seqlens is not None:
        return found
    seen = [bool(part.any()) for part in given.do.split(CHUNK, dim=1)]
    dv = [*found.dv.split(CHUNK, dim=1)]
    for at, has in enumerate(seen):
        if not has and any(seen[:at]) and any(seen[at:]):
            dv[at] = torch.zeros_like(dv[at])
    return replace(found, dv=torch.cat(dv, 1))


def state_gradient_left_over(x: Inputs, given: Cotangents, kept: dict[Any, Any]) -> Gradients[Any]:
    """Where the state has no gradient, long calls begin with the one that was there before."""
    if x.T < LONG:
        return EAGER.gradients(x, given)
    left = kept.get(x.state.shape) if given.d_final_state is None else given.d_final_state
    kept[x.state.shape] = given.d_final_state
    return EAGER.gradients(x, replace(given, d_final_state=left))


def buffer_of_the_first_call(x: Inputs, kept: dict[Any, Any]) -> Outputs:
    """What q is multiplied by is made for a number of tokens by the first call of so many."""
    ones = kept.setdefault((x.T, x.q.dtype), torch.ones(x.T, 1, 1, dtype=x.q.dtype))
    return right(replace(x, q=x.q * ones))


def path_of_the_first_call(x: Inputs, kept: dict[Any, Any]) -> Outputs:
    """Whether a graph is made goes by the first call of so many tokens."""
    o, final = right(x)
    if kept.setdefault(x.T, torch.is_grad_enabled()):
        return o, final
    return o.detach(), final.detach()


def planned() -> Adapter:
    """A kernel that plans the offsets of a pack before it looks at its other arguments."""
    kept = dict[str, Tensor]()

    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        initial_state: Tensor,
        cu_seqlens: Tensor | None,
    ) -> Outputs:
        if cu_seqlens is None:
            return right(Inputs(q, k, v, g, beta, scale, initial_state, None))
        plan = kept.get("plan", cu_seqlens)
        if len(plan) != len(cu_seqlens) or int(plan[-1]) > q.shape[1]:
            plan = cu_seqlens
        kept["plan"] = plan
        # refuses a state too many
        outputs = right(Inputs(q, k, v, g, beta, scale, initial_state, plan))
        kept.clear()
        return outputs

    return kernel(
        call,
        name="port",
        contract={"fp32": "chunk64-fp32", "bf16": "chunk64-bf16"},
        packing="cu_seqlens",
        dtypes=DTYPES,
    )
