"""What designers of the chunk kernel check, and what the definition would show them.

Their check compares two versions that share every formula, in fp32 on random keys without a norm:
beta |k|^2 far above 2, where the recurrence grows and the triangular system has a condition number
that leaves fp32 nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kdaverify.budgets.designs.catalogue import ASCEND_V2, ASCEND_V3
from kdaverify.budgets.formats import FORMATS
from oracles.chunk import COMPENSATED
from oracles.inputs import Inputs
from oracles.recurrence import recurrence
from oracles.stages import run_stages

# By the designers' check, relative: of v3 against v2, not against the definition.
ALLOWED = 1e-5


@dataclass(frozen=True)
class OwnCheck:
    """Errors relative to the largest element of their token, the worst of all tokens.

    Args:
        apart: of v3 against v2, both in fp32.
        definition: of v3 against the definition in float64.
        largest: element of o.
        condition: the largest 2-norm condition number of I + A.
    """

    apart: float
    definition: float
    largest: float
    condition: float


def own_check(
    *, tokens: int = 64, width: int = 128, normalised: bool = False, seed: int = 0
) -> OwnCheck:
    """The designs' own comparison, and the one it leaves out.

    Args:
        normalised: whether keys and queries have norm 1, as the models' do.
    """
    x = _call(tokens, width, seed)
    if normalised:
        x = replace(x, q=_unit(x.q), k=_unit(x.k))
    (v3, _), (v2, _) = (
        design.emulator(FORMATS["fp32"]).run(x) for design in (ASCEND_V3, ASCEND_V2)
    )
    exact, _ = recurrence(x, dtype=torch.float64)
    A = run_stages(x, {}, chunk_size=tokens, stages=COMPENSATED)["Akk"].transpose(1, 2).tril(-1)
    system = A + torch.eye(tokens, dtype=A.dtype)
    return OwnCheck(
        _apart(v3, v2),
        _apart(v3, exact),
        float(exact.abs().max()),
        float(torch.linalg.cond(system).max()),
    )


def _apart(found: Tensor, wanted: Tensor) -> float:
    return float(((found - wanted).abs().amax(-1) / wanted.abs().amax(-1)).max())


def _unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def _call(tokens: int, width: int, seed: int) -> Inputs:
    rng = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, tokens, 1, width, generator=rng) for _ in range(3))
    g = -torch.rand(1, tokens, 1, width, generator=rng)
    return Inputs(q, k, v, g, torch.rand(1, tokens, 1, generator=rng))
