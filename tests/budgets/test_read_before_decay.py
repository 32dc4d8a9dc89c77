"""A plain loop that reads its state before the decay: right, also where a row of dbeta hangs on few
roundings, and not with a gradient of fewer bits.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch
from torch import Tensor

import kdaverify as kv
from kdaverify.adapters.base import Adapter
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.emulate import Emulator
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.read_before_decay import read_before_decay
from kdaverify.checks.properties import check
from kdaverify.faults.fault import with_gradient
from kdaverify.problems import Problem

PROBLEM: Final = Problem(
    B=2, T=40, H=1, HV=1, K=16, V=64, dtype="fp32", gate="log-sigmoid", gates="head",
    key="one-hot", beta="near-one", state="large", value="normal", scale=0.5, seed=10,
)  # fmt: skip
"""Keys come back after 16 tokens: what was written is erased by betas near 1."""
FP32: Final = FORMATS["fp32"]


def loop(*, narrow: bool = False) -> Adapter:
    """Also with a gradient of beta in bf16."""

    @kv.kernel(
        gates="head", gate="decay", scale="folded", state="vk", packing="none", dtypes="fp32"
    )
    def reads_first(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        alpha: Tensor,
        beta: Tensor,
        *,
        initial_state: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        if narrow:
            beta = with_gradient(lambda dy: dy.bfloat16().to(dy.dtype), beta)
        shape = (q.shape[0], v.shape[2], v.shape[3], q.shape[3])
        state = q.new_zeros(shape) if initial_state is None else initial_state
        found: list[Tensor] = []
        for t in range(q.shape[1]):
            key, b, a = k[:, t], beta[:, t, :, None, None], alpha[:, t, :, None, None]
            p = (state @ key[..., None])[..., 0]
            state = a * (state - b * p[..., None] * key[..., None, :])
            state = state + b * v[:, t, :, :, None] * key[..., None, :]
            found.append((state @ q[:, t, :, :, None])[..., 0])
        return torch.stack(found, 1), state

    return reads_first


def rejected(adapter: Any) -> set[str]:
    found = check("combined", adapter, PROBLEM, {"direction": "gradients of both"})
    return {one.output for one in found if one.status.rejects}


def test_it_is_right() -> None:
    assert rejected(loop()) == set()


def test_a_gradient_of_fewer_bits_is_not() -> None:
    assert rejected(loop(narrow=True)) == {"dbeta"}


@pytest.mark.parametrize(
    ("contract", "gates"), [("recurrent-fp32", "channel"), ("chunk64-fp32", "head")]
)
def test_other_kernels_have_no_such_form(contract: str, gates: str) -> None:
    plain = Emulator("plain", contract_from_name(contract), FP32)
    problem = PROBLEM.replace(gates=gates)
    assert read_before_decay(plain, problem.inputs()) == []
