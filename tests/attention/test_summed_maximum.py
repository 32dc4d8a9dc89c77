"""Automatic differentiation of fp32 kernels adds what a sum leaves to the key of the maximum: right
kernels pass, and one whose maximum has a gradient that is not 0 does not.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch
from torch import Tensor

from kdaverify.adapters.frameworks import FRAMEWORKS
from kdaverify.adapters.operator_kernel import FunctionAdapter, operator_kernel
from kdaverify.budgets.attention import reference
from kdaverify.budgets.attention.contract import AttentionContract
from kdaverify.budgets.attention.ensemble import ReferenceKernel
from kdaverify.checks.properties import check
from kdaverify.operators.attention.problem import AttentionProblem

SEEDS: Final = range(1, 7)


def adapter(*, detached: bool) -> FunctionAdapter:
    """Exponentials of differences to the maximum, which may be detached in them alone."""

    def kernel(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float) -> tuple[Tensor, Tensor]:
        group = q.shape[2] // k.shape[2]
        K, V = (x.repeat_interleave(group, 2) for x in (k, v))
        S = torch.einsum("bshd,bthd->bhst", q, K) * softmax_scale
        m = S.max(-1, keepdim=True).values
        E = torch.exp(S - (m.detach() if detached else m))
        total = E.cumsum(-1)[..., -1:]
        o = torch.einsum("bhst,bthd->bshd", E / total, V)
        return o, (m + total.log())[..., 0]

    options: dict[str, Any] = {"name": "math", "dtypes": ("fp32",), "lse_gradient": "given"}
    options |= {"contract": "math-fp32", "causal": "no"}
    return operator_kernel("attention", kernel, options, FRAMEWORKS["torch"])


def rejected(kernel: FunctionAdapter, of: str) -> list[bool]:
    sizes: dict[str, Any] = {"B": 2, "s_q": 3, "s_k": 131, "H": 4, "h_kv": 2}
    problems = [AttentionProblem(seed=seed, value="onehot", **sizes) for seed in SEEDS]
    found = [check("gradients", kernel, problem, {"of": of}) for problem in problems]
    return [any(outcome.status.rejects for outcome in one) for one in found]


@pytest.mark.parametrize("of", ["lse", "both"])
def test_a_differentiated_maximum_passes(of: str) -> None:
    assert not any(rejected(adapter(detached=False), of))


def test_without_such_a_reference_kernel_it_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: AttentionContract) -> list[ReferenceKernel]:
        return []

    monkeypatch.setattr(reference, "summed_maximum_kernels", none)
    assert any(rejected(adapter(detached=False), "lse"))


def test_a_maximum_that_is_detached_in_one_place_is_rejected() -> None:
    assert all(rejected(adapter(detached=True), "lse"))
