"""FLA's functions beside the kernel, mainline and Ascend, interpreted in worker processes; and
ports under their names.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

from kdaverify.adapters import AdapterError, find
from kdaverify.checks.status import Status
from kdaverify.operators.pointwise.cases import NAMES, activation_panel
from kdaverify.operators.pointwise.check import activated, activations
from oracles.pointwise.operations import OPERATIONS
from tests.adapters.fla.conftest import CHUNKS, RECURRENCES, House


@pytest.mark.parametrize("name", CHUNKS)
@pytest.mark.parametrize("op", OPERATIONS)
def test_every_function_is_conforming_there_and_back(house: House, name: str, op: Any) -> None:
    for panel, dtype in zip(NAMES, ("fp32", "bf16", "fp16", "bf16"), strict=True):
        found = activations(house(name), activation_panel(panel, op, dtype))
        assert {outcome.status for outcome in found} == {Status.PASS} and len(found) >= 2
    assert "bwd_kernel" in house(name).proof() and ("ascend" in house(name).proof()) == (
        name == "triton_npu"
    )


def test_the_recurrences_activate_inside() -> None:
    assert all(activated(find(name)) == () for name in RECURRENCES)


def gate(g: Tensor, A_log: Tensor, dt_bias: Tensor | None) -> Tensor:
    x = g.float() if dt_bias is None else g.float() + dt_bias.float().view(g.shape[2:])
    return -A_log.float().exp()[:, None] * softplus(x)


def kda_gate_fwd(
    g: Tensor,
    A_log: Tensor,
    dt_bias: Any,
    lower_bound: Any = None,
    output_dtype: Any = torch.float32,
) -> Tensor:
    assert lower_bound is None
    return gate(g, A_log, dt_bias).to(output_dtype)


def l2norm_fwd(x: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    rstd = torch.rsqrt(x.float().square().sum(-1) + eps)
    return (x.float() * rstd[..., None]).to(x.dtype), rstd


def l2norm_bwd(y: Tensor, rstd: Tensor, dy: Tensor, eps: float = 1e-6) -> Tensor:
    return (
        rstd[..., None] * (dy.float() - y.float() * (y.float() * dy.float()).sum(-1, keepdim=True))
    ).to(y.dtype)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = ModuleType("gates_alone")
    vars(module).update(kda_gate_fwd=kda_gate_fwd, l2norm_fwd=l2norm_fwd, l2norm_bwd=l2norm_bwd)
    monkeypatch.setitem(sys.modules, "gates_alone", module)
    return module


def test_a_port_of_some_of_them_is_judged_on_those_it_holds(port: ModuleType) -> None:
    adapter = find("fla_port:module=gates_alone,dtypes=bf16")
    assert [op for op, _ in activated(adapter)] == [
        "gate_softplus",
        "gate_bounded",
        "l2norm",
    ] and not adapter.stages("bf16")
    found = activations(adapter, activation_panel("usual", "gate_softplus", "bf16"))
    assert [(outcome.output, outcome.status) for outcome in found] == [
        ("g", Status.PASS),
        ("gradients", Status.SKIP),
    ]
    assert {
        o.status for o in activations(adapter, activation_panel("mixed", "l2norm", "bf16"))
    } == {Status.PASS}
    failed, _ = activations(adapter, activation_panel("usual", "gate_bounded", "bf16"))
    assert failed.status is Status.ERROR


def test_a_function_that_has_gone_is_named(port: ModuleType) -> None:
    adapter = find("fla_port:module=gates_alone")
    del vars(port)["l2norm_fwd"]
    with pytest.raises(AdapterError, match="l2norm: no function l2norm_fwd"):
        activations(adapter, activation_panel("usual", "l2norm", "bf16"))
