"""Verdicts of a kernel that computes as one of three conforming kernels does, for tests of what is
concluded from a whole run.
"""

from __future__ import annotations

from typing import Any

import torch

from kdaverify.verdicts.verdict import Verdict
from tests.rows import row


def run(
    rise: float,
    *,
    cases: int = 40,
    scatter: float = 0.03,
    member: int = 0,
    others: float = 0.3,
    **fields: Any,
) -> list[Verdict]:
    """Verdicts of a kernel that computes as one of three conforming kernels does, within `scatter`,
    with `rise` times its error.
    """
    rng = torch.Generator().manual_seed(1)
    sizes = torch.full((3,), others, dtype=torch.float64)
    sizes[member] = scatter
    draws = (torch.randn(cases, 3, generator=rng, dtype=torch.float64) * sizes).exp() * rise
    given: dict[str, Any] = {"dtype": "bf16", "contract": "chunk64-bf16", **fields}
    return [
        row(case=f"kda-{i}", peers=tuple(draws[i].tolist()), ratio=0.5, statistic="rms", **given)
        for i in range(cases)
    ]
