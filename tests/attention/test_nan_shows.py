"""Ports of attention that clear NaN in values are found, right ones in other conventions pass."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import pytest
import torch
from torch import Tensor

import kdaverify as kv
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.operators.attention.decode import MLA_DECODE
from tests.checks.ruled import statuses
from tests.operators.attention import ports
from tests.operators.attention.ports import FOREIGN, RIGHT, TOP_LEFT, Port

WORDS: Final = {"lse": "2", "empty_lse": "+inf"}
CONFORMING: Final[dict[str, tuple[Port, dict[str, Any]]]] = {
    "as ours": (RIGHT, {}),
    "other conventions": (FOREIGN, WORDS),
    "top left": (TOP_LEFT, {"causal_alignment": "top_left"}),
}


def cleared(scores: Tensor, v: Tensor, dtype: Any) -> tuple[Tensor, Tensor]:
    """Values that are NaN are 0."""
    return RIGHT.core(scores.nan_to_num(0.0), v.nan_to_num(0.0), dtype)


def guarded(scores: Tensor, v: Tensor, dtype: Any) -> tuple[Tensor, Tensor]:
    """Rows without keys are cleared where they are NaN."""
    o, lse = RIGHT.core(scores, v, dtype)
    return o.nan_to_num(0.0), lse


def of_decode(port: Port, **words: Any) -> set[Status]:
    adapter = ports.adapter("mla_decode", port, **words)
    problem = MLA_DECODE.within(adapter, MLA_DECODE.probe("bf16"))
    found = check("laws", adapter, problem, {"law": "nan-shows"})
    return {outcome.status for outcome in found}


def of_rows(port: Port, **words: Any) -> set[Status]:
    return statuses(ports.adapter("attention", port, **words), ("nan-shows",))["nan-shows"]


@pytest.mark.parametrize("said", [of_rows, of_decode])
def test_cleared_values_are_found(said: Any) -> None:
    assert Status.FAIL in said(replace(RIGHT, core=cleared))


@pytest.mark.parametrize("said", [of_rows, of_decode])
def test_guards_of_rows_without_keys_pass(said: Any) -> None:
    assert said(replace(RIGHT, core=guarded)) == {Status.PASS}


@pytest.mark.parametrize("said", [of_rows, of_decode])
@pytest.mark.parametrize("name", CONFORMING)
def test_right_ports_pass(name: str, said: Any) -> None:
    port, words = CONFORMING[name]
    assert said(port, **words) == {Status.PASS}


def test_a_port_of_packs_alone_passes() -> None:
    """The last query of a pack belongs to its last request, which does not see the first row."""

    def packed(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        softmax_scale: float,
        causal: bool,
    ) -> tuple[Tensor, Tensor]:
        requests = zip(
            pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_k.tolist()), strict=True
        )
        found = [
            RIGHT.one(q[a:b], k[c:d], v[c:d], softmax_scale, causal=causal)
            for (a, b), (c, d) in requests
        ]
        return torch.cat([o for o, _ in found]), torch.cat([lse for _, lse in found], dim=1)

    adapter = kv.kernel(op="attention", layout="packed", dtypes=("bf16",), gradients=False)(packed)
    assert statuses(adapter, ("nan-shows",))["nan-shows"] == {Status.PASS}
