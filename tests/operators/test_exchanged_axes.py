"""Where all sizes are equal, strides alone say which axis is which: convolutions and norms that
infer the order of axes from strides are found there, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch import Tensor

import kdaverify as kv
from kdaverify.checks.calls import questions
from kdaverify.checks.properties import check
from kdaverify.faults.short_conv import EVERY, RIGHT
from tests.operators.plain_ports import gated_rms_norm

EXCHANGED: Final = {"view-exchanged", "view-exchanged-backward"}


def inferred(x: Tensor) -> Tensor:
    """Taken for its transpose where sizes and strides are those of one."""
    square = x.ndim > 1 and x.shape[-1] == x.shape[-2] and x.stride(-2) == 1 != x.stride(-1)
    return x.mT.contiguous() if square else x


def entries(x: Tensor) -> Tensor:
    """Taken for [T, B, D] where the batch is inner."""
    return x.transpose(0, 1) if x.shape[0] == x.shape[1] and x.stride(0) < x.stride(1) else x


class Misread(torch.autograd.Function):
    """The incoming gradient is."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        del ctx
        return y.clone()

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> Tensor:
        del ctx
        return inferred(dy[0])


def misread(y: Tensor) -> Tensor:
    found: Any = Misread.apply(y)  # pyright: ignore[reportUnknownMemberType]
    return found


def conv(change: Callable[..., Any]) -> Any:
    @kv.kernel(op="short_conv", dtypes=EVERY)
    def short_conv(
        x: Tensor,
        weight: Tensor,
        bias: Any,
        *,
        initial_state: Any,
        cu_seqlens: Any,
        activation: Any,
    ) -> Any:
        return change(x, weight, bias, initial_state, cu_seqlens, activation)

    return short_conv


def norm(change: Callable[..., Any]) -> Any:
    @kv.kernel(op="gated_rms_norm", dtypes=EVERY)
    def normed(x: Tensor, gate: Tensor, weight: Tensor, *, eps: float, activation: str) -> Tensor:
        return change(x, gate, weight, eps=eps, activation=activation)

    return normed


def state_by_strides(x: Any, weight: Any, bias: Any, state: Any, *rest: Any) -> Any:
    return RIGHT(x, weight, bias, None if state is None else inferred(state), *rest)


def entries_by_strides(x: Any, *rest: Any) -> Any:
    return RIGHT(entries(x), *rest)


def weight_by_strides(x: Any, weight: Any, *rest: Any) -> Any:
    return RIGHT(x, inferred(weight), *rest)


def gradient_by_strides(*given: Any) -> Any:
    y, states = RIGHT(*given)
    return y, misread(states)


def rows_by_strides(x: Any, *rest: Any, **options: Any) -> Any:
    return gated_rms_norm(inferred(x), *rest, **options)


def gate_by_strides(x: Any, gate: Any, *rest: Any, **options: Any) -> Any:
    return gated_rms_norm(x, inferred(gate), *rest, **options)


def gradient_of_rows_by_strides(*given: Any, **options: Any) -> Any:
    return misread(gated_rms_norm(*given, **options))


def broken(port: Any) -> set[str]:
    """Of the rules about how tensors lie in memory."""
    return {
        one.rule.name
        for one in questions(port, "smoke")
        if one.rule.name.startswith(("view-", "cotangent-"))
        for outcome in check("calls", port, one.problem, one.detail)
        if outcome.status.rejects
    }


@pytest.mark.parametrize(("port", "rules"), [
    (conv(state_by_strides), {*EXCHANGED, "view-exchanged-step"}),
    (conv(weight_by_strides), {*EXCHANGED, "view-exchanged-step"}),
    (conv(entries_by_strides), EXCHANGED),
    (conv(gradient_by_strides), {"cotangent-exchanged"}),
    (norm(rows_by_strides), EXCHANGED),
    (norm(gate_by_strides), EXCHANGED),
    (norm(gradient_of_rows_by_strides), {"cotangent-exchanged"}),
    (conv(RIGHT), set[str]()),
    (norm(gated_rms_norm), set[str]()),
])  # fmt: skip
def test_axes_that_strides_are_taken_for_are_found_by_the_rules_about_them_alone(
    port: Any, rules: set[str]
) -> None:
    assert broken(port) == rules
