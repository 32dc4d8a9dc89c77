"""The hidden switch: panel cases lie on either side of it,
and each of its conditions alone moves a call.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from kdaverify.adapters.ascend.revisions import MAIN, V26_9_1
from kdaverify.adapters.ascend.route import FUSED, THREE_KERNELS, Work, route, work_of
from kdaverify.problems import TORCH, panel
from tests.adapters.standins import MakeProblem

LARGE = Work(dtype=torch.bfloat16, HV=32, K=128, V=128, lengths=(8192,), chunk_size=64)


def test_the_panel_has_problems_on_either_side_of_the_switch() -> None:
    tested = {entry.name: entry.problem for entry in panel("bf16", "acceptance", real_sizes=True)}
    routes: list[str] = []
    for name in ("real-heads-below-a-route", "real-heads-on-a-route"):
        p = tested[name]
        routes.append(
            route(
                MAIN,
                Work(dtype=TORCH[p.dtype], HV=p.HV, K=p.K, V=p.V, lengths=(p.T,), chunk_size=64),
            )
        )
    assert routes == [FUSED, THREE_KERNELS]


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": torch.float16},
        {"K": 64, "V": 64},
        {"HV": 31},
        {"chunk_size": 128},
        {"lengths": (4096, 0, 4096)},
    ],
)
def test_each_condition_alone_keeps_a_call_on_the_fused_kernel(changes: dict[str, Any]) -> None:
    assert route(MAIN, LARGE) == route(MAIN, replace(LARGE, lengths=(4096, 4096))) == THREE_KERNELS
    assert route(MAIN, replace(LARGE, **changes)) == FUSED
    assert route(V26_9_1, LARGE) == FUSED


def test_a_dense_call_counts_one_entry_and_a_pack_every_sequence(make_problem: MakeProblem) -> None:
    assert work_of(make_problem(B=2, T=70).inputs(), 64).lengths == [70]
    assert work_of(make_problem(B=1, lengths=(0, 5, 65), T=70).inputs(), 64).lengths == [0, 5, 65]
