"""A kernel whose scores are products of exp(G) and exp(-G), differentiated by autograd: parts of dG
of a pair (i, i) cancel, and each is rounded by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from kdaverify.adapters import kernel
from kdaverify.checks.gradients import gradients
from kdaverify.checks.status import Status
from kdaverify.faults.fault import with_gradient
from kdaverify.problems import Problem

CHUNK: Final = 16
PLAIN: Final[dict[str, Any]] = {
    "B": 2,
    "H": 1,
    "HV": 1,
    "dtype": "fp32",
    "gate_range": (-5.0, None),
}
PROBLEMS: Final[dict[str, dict[str, Any]]] = {
    "one token of tiny keys": {
        "T": 1, "K": 64, "V": 24, "gate": "mixed", "key": "tiny", "beta": "near-one",
        "state": "absent", "seed": 48,
    },
    "one token of slow gates": {
        "T": 1, "K": 100, "V": 128, "gate": "slow", "key": "identical", "beta": "one",
        "state": "absent", "seed": 54,
    },
    "strong gates, one-hot keys": {
        "T": 70, "K": 24, "V": 16, "gate": "bound-20", "key": "one-hot", "beta": "mixed",
        "state": "random", "seed": 4,
    },
}  # fmt: skip


def in_factors(back: Callable[[Tensor], Tensor]) -> Any:
    """Args: back: of the gradient of exp(-G)."""

    def chunk(S: Tensor, *part: Tensor) -> Any:
        q, k, v, g, beta = part
        up, down = g.cumsum(-2).exp(), with_gradient(back, (-g.cumsum(-2)).exp())
        away = k * down
        A = beta[..., None] * ((k * up) @ away.mT).tril(-1)
        right = beta[..., None] * (v - (k * up) @ S)
        u = torch.linalg.solve_triangular(
            A + torch.eye(A.shape[-1]), right, upper=False, unitriangular=True
        )
        last = up[..., -1:, :]
        o = (q * up) @ S + ((q * up) @ away.mT).tril() @ u
        return o, last.mT * S + (away * last).mT @ u

    @kernel(contract="chunk16-fp32-fp32factors", gate_range=(-5, 0), dtypes=("fp32",))
    def port(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        initial_state: Any,
    ) -> Any:
        zeros = torch.zeros(*q.shape[::2], k.shape[-1], v.shape[-1])
        state = zeros if initial_state is None else initial_state
        rows, o = (x.transpose(1, 2).split(CHUNK, 2) for x in (q, k, v, g, beta)), list[Tensor]()
        for part in zip(*rows, strict=True):
            found, state = chunk(state, *part)
            o.append(scale * found)
        return torch.cat(o, 2).transpose(1, 2), state

    return port


@pytest.mark.parametrize("fields", PROBLEMS.values(), ids=PROBLEMS)
def test_a_right_kernel_passes_and_one_without_half_of_a_factor_does_not(
    fields: dict[str, Any],
) -> None:
    problem = Problem.model_validate({**PLAIN, "value": "normal", **fields})
    right = gradients(in_factors(lambda dx: dx), problem, of="both")
    assert {found.status for found in right} == {Status.PASS}
    halved = gradients(in_factors(lambda dx: dx / 2), problem, of="both")
    assert Status.FAIL in {found.status for found in halved}
