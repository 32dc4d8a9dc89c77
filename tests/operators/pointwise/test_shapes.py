"""Operations beside the kernel on more rows than 16 bits count, and on tensors whose axes no size
distinguishes: faults of either pass every other problem of the panel.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch
from torch import Tensor

from kdaverify.adapters.eager import EAGER
from kdaverify.adapters.fla.activations import FUNCTIONS, fla_activation
from kdaverify.checks.properties import check
from kdaverify.checks.status import REFUSED, Status
from kdaverify.operators.pointwise.call import (
    ActivationArguments,
    ActivationCall,
    differentiated,
    torch_activations,
)
from kdaverify.operators.pointwise.cases import NAMES, PAST_16_BITS, SHAPES, activation_panel
from oracles.pointwise.operations import OPERATIONS
from oracles.stages import Named
from tests.operators.pointwise.activated import Activated

RIGHT: Final = torch_activations()


def inferred(x: Tensor) -> Tensor:
    """Taken for its transpose where sizes and strides are those of one."""
    square = x.shape[-1] == x.shape[-2] and x.stride(-2) == 1 != x.stride(-1)
    return x.mT.contiguous() if square else x


def norm_by_strides(x: ActivationArguments) -> Tensor:
    return RIGHT["l2norm"].forward(x.mapped(inferred))


def backward_by_strides(x: ActivationArguments) -> Named:
    assert x.cotangent is not None
    backward = RIGHT["l2norm"].backward
    assert backward is not None
    given = ActivationArguments(x.tensors, x.setting, inferred(x.cotangent))
    return backward(given)


def beta_of_a_grid(x: ActivationArguments) -> Tensor:
    beta = RIGHT["beta_sigmoid"].forward(x)
    rows = torch.arange(beta.shape[1])[:, None] > 65535
    return torch.where(rows, torch.zeros(()), beta)


def dense_alone(x: ActivationArguments) -> Tensor:
    y = RIGHT["l2norm"].forward(x)
    return y + 0 * x.tensors["x"].view(-1)[0]


def only(op: str, **parts: Any) -> Activated:
    call: dict[str, Any] = {"forward": RIGHT[op].forward, "backward": RIGHT[op].backward, **parts}
    return Activated("port", **{op: ActivationCall(**call)})


def failing(adapter: Any, op: Any) -> set[str]:
    return {
        name
        for name in (*NAMES, *SHAPES)
        for one in check("activations", adapter, activation_panel(name, op, "fp32"), {})
        if one.status.rejects
    }


def test_axes_are_those_of_the_tensor_however_it_lies() -> None:
    assert failing(only("l2norm", forward=norm_by_strides), "l2norm") == {"exchanged-x23"}
    found = failing(only("l2norm", backward=backward_by_strides), "l2norm")
    assert found == {"exchanged-dy23"}


def test_rows_past_16_bits_are_computed() -> None:
    backward = differentiated("beta_sigmoid", beta_of_a_grid)
    port = only("beta_sigmoid", forward=beta_of_a_grid, backward=backward, beside_one="rounded")
    assert failing(port, "beta_sigmoid") == {PAST_16_BITS}


@pytest.mark.parametrize("op", OPERATIONS)
def test_a_right_operation_passes(op: Any) -> None:
    for name in SHAPES:
        found = check("activations", EAGER, activation_panel(name, op, "bf16"), {})
        assert {one.status for one in found} == {Status.PASS}, name


def test_a_port_that_refuses_such_tensors_is_not_tested_on_them() -> None:
    problem = activation_panel("exchanged-x12", "l2norm", "fp32")
    found, *_ = check("activations", only("l2norm", forward=dense_alone), problem, {})
    assert found.status is Status.SKIP and found.message.startswith(REFUSED)


def test_one_that_is_handed_dense_tensors_alone_is_tested_on_those() -> None:
    port = only("l2norm", forward=norm_by_strides, dense=True)
    usual, exchanged = (
        {
            one.status
            for one in check("activations", port, activation_panel(name, "l2norm", "fp32"), {})
        }
        for name in ("usual", "exchanged-x23")
    )
    assert usual == {Status.PASS} and exchanged == {Status.SKIP}


@pytest.mark.parametrize("op", FUNCTIONS)
def test_so_are_those_of_fla_whose_callers_make_tensors_contiguous(op: str) -> None:
    assert fla_activation(op).dense
