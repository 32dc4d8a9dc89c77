"""What is wrong with every call of a function is found by one call, and said in one message with
the mend; nothing of it on a right function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import pytest
import torch

import kdaverify as kv
from kdaverify.adapters.base import Adapter
from kdaverify.checks.execute import CallError, execute
from kdaverify.checks.status import Status
from tests.operators.plain_ports import PORTS, gated_rms_norm

Answer = Callable[[Any], Any]


def returning(change: Answer) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The right function with what it returns changed."""

    def changed(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def port(*given: Any, **options: Any) -> Any:
            return change(function(*given, **options))

        return port

    return changed


def given(change: Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]) -> Any:
    """The right function on other arguments than it got."""

    def changed(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def port(*given: Any, **options: Any) -> Any:
            positional, keywords = change(*given, **options)
            return function(*positional, **keywords)

        return port

    return changed


def edited(*tensors: Any, **options: Any) -> Any:
    tensors[0].mul_(2)
    return tensors, options


def gated_before(x: Any, gate: Any, weight: Any, **options: Any) -> Any:
    """Normalised behind the gate: silu(64) = 64 in fp32."""
    y = gated_rms_norm(
        x.float() * torch.nn.functional.silu(gate.float()),
        torch.full_like(gate, 64.0),
        weight,
        **options,
    )
    return (y / 64).to(x.dtype)


def newest_first(*tensors: Any, initial_state: Any, **options: Any) -> Any:
    taken = None if initial_state is None else initial_state.flip(-1)
    y, state = PORTS["short_conv"](*tensors, initial_state=taken, **options)
    return y, state.flip(-1)


def base_2(o_a: Any, lse_a: Any, o_b: Any, lse_b: Any) -> Any:
    o, lse = PORTS["merge_state"](o_a, lse_a * math.log(2), o_b, lse_b * math.log(2))
    return o, lse / math.log(2)


def unscaled(*tensors: Any, **options: Any) -> Any:
    return tensors, {**options, "softmax_scale": 1.0}


def wrapped_round(q: Any, cache: Any, indices: Any, **options: Any) -> Any:
    last = cache.shape[0] * cache.shape[1] - 1
    return (q, cache, torch.where(indices < 0, last, indices)), options


def masked_in_scores(
    q: Any, cache: Any, indices: Any, *, topk_length: Any, d_v: int, softmax_scale: float
) -> Any:
    """Of lists that all count."""
    del topk_length
    k = cache.flatten(0, 1)[indices.clamp(min=0).long()].float()
    k = k.repeat_interleave(q.shape[2] // k.shape[3], 3)
    scores = torch.einsum("bihd,bijhd->bihj", q.float(), k) * softmax_scale
    scores = scores.masked_fill((indices < 0)[:, :, None], -math.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp().nan_to_num(0.0)
    o = torch.einsum("bihj,bijhd->bihd", weights, k[..., :d_v])
    empty = (indices < 0).all(-1)[..., None]
    return (
        o.masked_fill(empty[..., None], 0.0).to(q.dtype),
        lse.masked_fill(empty, -math.inf).mT.contiguous(),
    )


def exchanged(x: Any, gate: Any, weight: Any, **options: Any) -> Any:
    return (gate, x, weight), options


def instead(function: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Another function of the same signature."""
    return lambda right: wraps(right)(function)


nothing, swapped, first = (
    returning(lambda _: None),
    returning(lambda y: y[::-1]),
    returning(lambda y: y[0]),
)
WRONG: Final[dict[tuple[str, str], tuple[Any, Status, str]]] = {
    **{
        (op, "nothing"): (nothing, Status.MISSING, f"the kernel returned None; return ({names})")
        for op, names in {
            "short_conv": "y, final_state",
            "attention": "o, lse",
            "mla_decode": "o, lse",
            "sparse_attention": "o, lse",
            "merge_state": "o, lse",
        }.items()
    },
    ("gated_rms_norm", "nothing"): (
        nothing,
        Status.MISSING,
        "y: wanted a tensor of shape [2, 16, 2, 64], got None; return it",
    ),
    **{
        (op, "swapped outputs"): (
            swapped,
            Status.SHAPE,
            f"the kernel returned ({b}, {a}); return ({a}, {b}), in this order",
        )
        for op, a, b in (
            ("short_conv", "y", "final_state"),
            ("attention", "o", "lse"),
            ("mla_decode", "o", "lse"),
            ("sparse_attention", "o", "lse"),
            ("merge_state", "o", "lse"),
        )
    },
    ("attention", "o alone"): (
        first,
        Status.MISSING,
        'lse: wanted a tensor of shape [2, 6, 5], got None; return it or declare lse="none"',
    ),
    ("short_conv", "y alone"): (
        first,
        Status.MISSING,
        (
            "final_state: wanted a tensor of shape [2, 64, 4], got None; return it or declare"
            " final_state=False"
        ),
    ),
    ("attention", "a dict"): (
        returning(lambda y: dict(zip(("o", "lse"), y, strict=True))),
        Status.TYPE,
        "the kernel returned a dict of 2; return (o, lse)",
    ),
    ("gated_rms_norm", "flattened"): (
        returning(lambda y: y.flatten(0, 1)),
        Status.SHAPE,
        "y: wanted shape [2, 16, 2, 64], got [32, 2, 64]; return it in the wanted shape",
    ),
    ("mla_decode", "head-major o"): (
        returning(lambda y: (y[0].transpose(1, 2), y[1])),
        Status.SHAPE,
        (
            "o: wanted shape [4, 3, 6, 16], got [4, 6, 3, 16]; axes 1 and 2 are swapped: transpose"
            " them back"
        ),
    ),
    ("short_conv", "a state of W - 1 columns"): (
        returning(lambda y: (y[0], y[1][..., 1:])),
        Status.SHAPE,
        (
            "final_state: wanted shape [2, 64, 4], got [2, 64, 3]; return it in the wanted shape; a"
            " state of W - 1 columns is declared by conv_state='W-1'"
        ),
    ),
    ("gated_rms_norm", "fp32"): (
        returning(lambda y: y.float()),
        Status.DTYPE,
        (
            "y: wanted torch.bfloat16, by the declared formats and contract, got torch.float32;"
            " cast it, or correct the declaration"
        ),
    ),
    ("merge_state", "edits its input"): (
        given(edited),
        Status.MUTATED_INPUT,
        (
            "o_a: the kernel changed 288 of 288 elements of its input in place; compute on a copy"
            " of it"
        ),
    ),
    ("attention", "lse to base 2"): (
        returning(lambda y: (y[0], y[1] / math.log(2))),
        Status.CONVENTION,
        "declared lse='e', but LSE is to base 2; declare lse='2'",
    ),
    ("merge_state", "lse to base 2"): (
        instead(base_2),
        Status.CONVENTION,
        "declared lse='e', but LSE is taken and returned to base 2; declare lse='2'",
    ),
    ("sparse_attention", "-1 is the last slot"): (
        given(wrapped_round),
        Status.CONVENTION,
        "an index that names nothing is read as the last slot; leave it out of the softmax",
    ),
    ("sparse_attention", "weights of 0 times NaN"): (
        instead(masked_in_scores),
        Status.CONVENTION,
        (
            "cache slots that no index names hold NaN, as memory that was never written may; with"
            " finite numbers there the kernel is right; a weight of 0 times NaN is NaN: mask values"
            " before the product, or declare unused='finite' if that memory is always initialised"
        ),
    ),
    ("mla_decode", "no scale"): (
        given(unscaled),
        Status.CONVENTION,
        "softmax_scale is 0.3536, but the kernel multiplies q k^T by 1; multiply by softmax_scale",
    ),
    ("gated_rms_norm", "x and gate exchanged"): (
        given(exchanged),
        Status.CONVENTION,
        "x and gate are exchanged: the function normalises its second argument; normalise x",
    ),
    ("gated_rms_norm", "gate before the norm"): (
        instead(gated_before),
        Status.CONVENTION,
        (
            "the gate multiplies x before the norm; multiply after it, or declare first='gate' in"
            " the place of 'norm'"
        ),
    ),
    ("short_conv", "newest column first, returned"): (
        returning(lambda y: (y[0], y[1].flip(-1))),
        Status.CONVENTION,
        "final_state has its newest column first; order columns from the oldest to the newest",
    ),
    ("short_conv", "newest column first"): (
        instead(newest_first),
        Status.CONVENTION,
        "both states have their newest column first; order columns from the oldest to the newest",
    ),
}


def adapter(op: str, change: Callable[..., Any] | None = None) -> Adapter:
    function = PORTS[op] if change is None else change(PORTS[op])
    return kv.kernel(op=op, dtypes=("bf16",))(function)


@pytest.mark.parametrize(("op", "name"), WRONG)
def test_one_message_names_the_cause_and_the_mend(op: str, name: str) -> None:
    change, status, message = WRONG[op, name]
    found = adapter(op, change).operator.preflight(adapter(op, change))[-1]
    assert (found.status, found.message) == (status, message)
    assert adapter(op, change).operator.misfit(adapter(op, change)) is not None


@pytest.mark.parametrize("op", PORTS)
def test_a_right_function_is_not_stopped(op: str) -> None:
    found = adapter(op).operator.preflight(adapter(op))
    assert {outcome.status for outcome in found} == {Status.PASS}, found


def packed_attention(*, whole: bool) -> Adapter:
    def port(q: Any, k: Any, v: Any, *, cu_seqlens_q: Any, cu_seqlens_k: Any) -> Any:
        rows = len(q) if whole else int(cu_seqlens_q[-1])
        return q.new_zeros(rows, q.shape[1], v.shape[2]), torch.zeros(q.shape[1], rows)

    return kv.kernel(op="attention", layout="packed", dtypes="bf16")(port)


def packed_conv(*, whole: bool) -> Adapter:
    def port(x: Any, weight: Any, *, cu_seqlens: Any) -> Any:
        return x[:, : None if whole else int(cu_seqlens[-1])].clone()

    return kv.kernel(op="short_conv", dtypes="bf16")(port)


@pytest.mark.parametrize("port", [packed_attention, packed_conv])
def test_rows_past_the_last_offset_are_said_to_be_missing(port: Callable[..., Adapter]) -> None:
    whole: Any = port(whole=True)
    problem = whole.operator.within(whole, whole.operator.pack("bf16"))
    execute(whole, problem.inputs(), whole.exposes(problem))
    with pytest.raises(CallError, match="last offset; return the rows past it, too") as caught:
        execute(port(whole=False), problem.inputs(), whole.exposes(problem))
    assert caught.value.status is Status.SHAPE
