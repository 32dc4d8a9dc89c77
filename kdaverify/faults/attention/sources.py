"""Faults of a tensor that is several inputs or heads of a call, of what a backward keeps that is no
tensor, and of sets of inputs that need gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from torch import Tensor

from kdaverify.faults.attention.kernel import EVERY, AttentionPatch, KernelRequest
from kdaverify.faults.fault import Fault, summed, with_gradient, with_gradients

TILE: Final = 64
Call = Callable[..., Any]


def _one_buffer(right: Call, given: dict[str, Any]) -> Any:
    k, v = given["k"], given["v"]
    if k.data_ptr() != v.data_ptr() or k.shape != v.shape:
        return right(**given)
    k, v = with_gradients(summed, k, v)
    return right(**{**given, "k": k, "v": v})


def _one_head(right: Call, given: dict[str, Any]) -> Any:
    """The gradient of all heads for each."""

    def of_all(dx: Tensor) -> Tensor:
        return dx.sum(-2, keepdim=True).expand_as(dx)

    heads = {name: given[name] for name in ("k", "v")}
    if any(x.shape[-2] == 1 or x.stride(-2) for x in heads.values()):
        return right(**given)
    return right(**{**given, **{name: with_gradient(of_all, x) for name, x in heads.items()}})


def _sink_of_a_tile(right: Call, given: dict[str, Any]) -> Any:
    """dsink is of the last tile where q and the sink alone need gradients."""
    q, sink = given["q"], given["sink"]
    alone = not (given["k"].requires_grad or given["v"].requires_grad)
    if sink is None or not (alone and q.requires_grad and q.shape[-3] > TILE):
        return right(**given)
    share = (q.shape[-3] % TILE or TILE) / q.shape[-3]
    return right(**{**given, "sink": with_gradient(lambda d: share * d, sink)})


def _latest_scale() -> AttentionPatch:
    """A backward has the scale of the latest forward."""
    kept = [1.0]

    def attention(right: Call, given: dict[str, Any]) -> Any:
        scale = given["softmax_scale"]
        kept[0] = given["q"].shape[-1] ** -0.5 if scale is None else float(scale)
        return right(**given)

    def gradients(r: KernelRequest, _: Tensor, found: Sequence[Tensor]) -> Sequence[Tensor]:
        dq, dk, *others = found
        return dq * (kept[0] / r.scale), dk * (kept[0] / r.scale), *others

    return AttentionPatch(attention=attention, gradients=gradients)


_fault = partial(
    Fault, kind="E", dtypes=EVERY, operator="attention", stage="dkv",
    reference="class: gradients of a tensor in several places",
)  # fmt: skip
FAULTS: Final[tuple[Fault, ...]] = (
    _fault(id="SOURCE-kv", title="the sum of dk and dv is returned for both where k is v",
           trigger="one tensor passed as k and as v, gradients", outputs=("dk", "dv"),
           patch=lambda _: AttentionPatch(attention=_one_buffer)),
    _fault(id="SOURCE-heads", title="each head has the gradient of all where k and v are of one",
           trigger="k and v expanded over heads, gradients", outputs=("dk", "dv"),
           patch=lambda _: AttentionPatch(attention=_one_head)),
    _fault(id="SOURCE-sink", title="dsink is of one tile where q and sink alone need gradients",
           trigger="frozen k and v, a sink, more than a tile of queries", outputs=("dsink",),
           stage="dq", reference="class: sets of inputs with gradients", kind="B",
           patch=lambda _: AttentionPatch(attention=_sink_of_a_tile)),
    _fault(id="SOURCE-scale", title="a backward has the scale of the latest forward",
           trigger="two forwards of other scales, then the backward of the first",
           outputs=("dq", "dk"), reference="class: calls of one shape",
           patch=lambda _: _latest_scale()),
)  # fmt: skip
