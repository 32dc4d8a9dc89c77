"""Steps of a delta product that a triangular system gives together are a chunk: declared as one
they pass, and a failure under the default contract names it.
"""

from __future__ import annotations

import time
from typing import Any, Final

import pytest
import torch
from torch import Tensor

import kdaverify as kv
from kdaverify.adapters.base import Adapter
from kdaverify.checks.properties import check
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.problems import Problem

N: Final = 8
# Equal betas of 1 and coherent keys: the residual form forgives fewest roundings.
PROBLEM: Final = Problem(
    B=1,
    H=1,
    HV=1,
    K=32,
    V=8,
    T=64,
    dtype="fp32",
    gates="none",
    gate="zero",
    key="coherent-0.99",
    beta="one",
    state="absent",
    value="normal",
    seed=0,
)


def kernel(contract: str | None, *, half: bool = False) -> Adapter:
    """All steps of a token as one update of the state; with `half`, the system in bf16."""

    @kv.kernel(name="product", gates="none", dtypes=("fp32",), contract=contract)
    @kv.delta_product(N, gates="none")
    def product(
        q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, scale: float, initial_state: Tensor | None
    ) -> Any:
        heads = v.shape[2] // q.shape[2]
        q, k = (x.repeat_interleave(heads, 2) for x in (q, k))
        shape = q.shape[0], v.shape[2], q.shape[3], v.shape[3]
        state = q.new_zeros(shape) if initial_state is None else initial_state
        out: list[Tensor] = []
        for t in range(q.shape[1]):
            X, U, b = (x[:, t * N : t * N + N].transpose(1, 2) for x in (k, v, beta[..., None]))
            exact = b * (X @ X.mT).tril(-1)
            system = exact.bfloat16().float() if half else exact
            written = torch.linalg.solve_triangular(
                system + torch.eye(N), b * (U - X @ state), upper=False, unitriangular=True
            )
            state = state + X.mT @ written
            out.append(scale * (q[:, t, :, None] @ state)[..., 0, :])
        return torch.stack(out, 1), state

    return product


def case() -> PropertyCase:
    return PropertyCase("probes", PROBLEM, {"probe": "coherent-keys-0.9"})


def rejected(adapter: Adapter) -> bool:
    given = case()
    found = check(given.property, adapter, given.problem, given.detail)
    return any(outcome.status.rejects for outcome in found)


def said(adapter: Adapter) -> str:
    return adapter.operator.explain_error(case(), adapter, until=time.monotonic() + 60)


def test_a_chunk_of_the_steps_of_a_token_is_its_contract() -> None:
    assert not rejected(kernel("chunk8-fp32"))


def test_a_failure_under_the_default_contract_names_it() -> None:
    adapter = kernel(None)
    assert rejected(adapter)
    assert "within the tolerance of chunk8-fp32" in said(adapter)


@pytest.mark.parametrize("contract", [None, "chunk8-fp32"])
def test_a_system_in_16_bits_is_rejected_under_both(contract: str | None) -> None:
    adapter = kernel(contract, half=True)
    assert rejected(adapter)
    assert "chunk8-fp32" not in said(adapter)
