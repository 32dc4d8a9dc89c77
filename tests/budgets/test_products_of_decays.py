"""Kernels that are given decays multiply them. In fp32 that conforms, also where every product of a
channel is rounded the same way; in fewer bits, or with a decay left out, it does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import Final

import pytest
import torch
from torch import Tensor

from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.ensemble import emulate
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.standard import standard
from kdaverify.problems import Problem
from oracles.inputs import Inputs

FP32: Final = FORMATS["fp32"]
PROBLEM: Final = Problem(
    B=1,
    T=257,
    H=1,
    HV=1,
    K=16,
    V=8,
    dtype="fp32",
    gate="memory",
    key="flat",
    beta="one-write",
    state="absent",
    value="dyadic",
    seed=0,
)
GROUP: Final = 4
"""Tokens whose decays are multiplied before they reach the state."""
Products = Callable[[Tensor], Tensor]


def _final_state(x: Inputs, decays: Tensor, products: Products) -> Tensor:
    """In fp32, a group of tokens at a time: each write decays by what follows it in its group."""
    k, v, beta = x.k[0, :, 0].float(), x.v[0, :, 0].float(), x.beta[0, :, 0].float()
    state = torch.zeros(x.K, x.V)
    for rows in torch.arange(x.T).split(GROUP):
        a, group = decays[rows], zip(k[rows], v[rows], beta[rows], strict=True)
        before, after = products(a), products(a.flip(0)).flip(0)
        written = torch.zeros_like(state)
        for i, (key, value, rate) in enumerate(group):
            # All but one beta are 0.
            row = torch.outer(key, rate * (value - key @ (state * before[i, :, None])))
            written = written + (after[i + 1, :, None] if i + 1 < len(a) else 1) * row
        state = before[-1, :, None] * state + written
    return state[None, None]


def _received() -> tuple[Inputs, Tensor]:
    """The problem as a kernel is given it, and its decays [T, K] in fp32."""
    x = PROBLEM.inputs()
    decays = x.g.double().exp().float()
    return replace(x, g=decays.double().log()), decays[0, :, 0]


def _worst(products: Products) -> float:
    x, decays = _received()
    contract = replace(contract_from_name(f"chunk{GROUP}-fp32"), gate="decay")
    reference = standard(x, contract, FP32, emulate(x, contract, FP32))
    budget, exact = reference.budgets["final_state"], reference.exact("final_state")
    found = _final_state(x, decays, products)
    return max(budget.ratios(budget.measure(exact.error(found.double()), exact)).values())


def _in_fp32(decays: Tensor) -> Tensor:
    """Each product rounded: torch's own are made in a wider format, and rounded once."""
    return torch.stack([*accumulate(decays, torch.mul)])


def test_products_in_fp32_conform() -> None:
    assert _worst(_in_fp32) <= 1


WRONG: Final[dict[str, Products]] = {
    "bf16": lambda decays: _in_fp32(decays.bfloat16()).float(),
    "20 bits of a product": lambda decays: (_in_fp32(decays) * 2**20).round() / 2**20,
    "a first decay left out": lambda decays: _in_fp32(torch.cat((decays[:1] ** 0, decays[1:]))),
}


@pytest.mark.parametrize("products", WRONG.values(), ids=WRONG)
def test_others_do_not(products: Products) -> None:
    assert _worst(products) > 1
