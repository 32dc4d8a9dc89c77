"""Right kernels may add up all keys term by term: weights for the row sum, and products with V.

Behind a large weight thousands of small ones are rounded to the spacing of the sum: MLX on a CPU
was rejected, and ports whose product with V is one.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch
from torch import Tensor

from kdaverify.adapters.frameworks import FRAMEWORKS
from kdaverify.adapters.operator_kernel import FunctionAdapter, operator_kernel
from kdaverify.budgets.attention import ensemble
from kdaverify.checks.properties import check
from kdaverify.operators.attention.problem import AttentionProblem

SIZES: Final[dict[str, Any]] = {"s_q": 2, "s_k": 2050, "H": 4, "h_kv": 2, "d_k": 16, "d_v": 8}
CONTRACTS: Final = ("online-fp32", "math-fp32")


def adapter(contract: str, kept: torch.dtype = torch.float32) -> FunctionAdapter:
    """Sums from the first key to the last, which are kept in a format between."""

    def kernel(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float) -> tuple[Tensor, Tensor]:
        group = q.shape[2] // k.shape[2]
        K, V = (x.repeat_interleave(group, 2) for x in (k, v))
        S = torch.einsum("bshd,bthd->bhst", q, K) * softmax_scale
        m = S.amax(-1)
        P = torch.exp(S - m[..., None])
        total, o = torch.zeros_like(m), q.new_zeros(*m.shape, v.shape[-1])
        for t in range(k.shape[1]):
            total = (total + P[..., t]).to(kept).float()
            o = o + P[..., t, None] * V[:, None, t].transpose(1, 2)
        return (o / total[..., None]).transpose(1, 2), m + total.log()

    options: dict[str, Any] = {"name": "in order", "dtypes": ("fp32",), "gradients": False}
    options |= {"contract": contract, "causal": "no"}
    return operator_kernel("attention", kernel, options, FRAMEWORKS["torch"])


def rejected(kernel: FunctionAdapter, value: Any) -> bool:
    problems = [
        AttentionProblem(**SIZES, seed=seed, logits="plateau", value=value) for seed in (1, 2)
    ]
    found = [outcome for problem in problems for outcome in check("panel", kernel, problem, {})]
    return any(outcome.status.rejects for outcome in found)


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("value", ["beside", "normal"])
def test_sums_in_order_pass(contract: str, value: str) -> None:
    assert not rejected(adapter(contract), value)


@pytest.mark.parametrize("contract", CONTRACTS)
def test_sums_that_are_kept_in_16_bits_do_not(contract: str) -> None:
    assert rejected(adapter(contract, torch.bfloat16), "normal")


def test_without_such_reference_kernels_they_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> dict[str, ensemble.ReferenceKernel]:
        return {}

    monkeypatch.setattr(ensemble, "_longest_sums", none)
    assert rejected(adapter("online-fp32"), "beside")
