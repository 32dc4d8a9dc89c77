"""NaN of one sequence of a pack does not reach another: a convolution that masks by products is
rejected, its twin passes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

import kdaverify as kv
from kdaverify.checks.calls import questions
from kdaverify.checks.properties import check


def conv(by_products: bool) -> Any:
    @kv.kernel(op="short_conv", packing="cu_seqlens", widths=(4,), dtypes=("fp32",))
    def port(
        x: Tensor,
        weight: Tensor,
        bias: Any,
        *,
        initial_state: Any,
        cu_seqlens: Any,
        activation: Any,
    ) -> Any:
        W = weight.shape[1]
        ends = cu_seqlens.tolist()
        y, states = torch.zeros_like(x), list[Tensor]()
        nothing = x.new_zeros(W, x.shape[2])
        for n, (first, end) in enumerate(pairwise(ends)):
            held = nothing if initial_state is None else initial_state[n].mT
            stream = torch.cat((held, x[0, first:end]))
            taps = stream.unfold(0, W, 1)[1:] if end > first else x.new_zeros(0, x.shape[2], W)
            z = (taps * weight).sum(-1) + (0 if bias is None else bias)
            z = z + 0 * x[0, first - 1] if by_products and first else z
            y[0, first:end] = z if activation is None else silu(z)
            states.append(stream[-W:].mT)
        return y, torch.stack(states)

    return port


@pytest.mark.parametrize("by_products", [True, False])
def test_a_neighbour_that_is_multiplied_by_0_is_rejected(by_products: bool) -> None:
    adapter = conv(by_products)
    (one,) = (x for x in questions(adapter, "smoke") if x.rule.name == "sequences-apart")
    found = check("calls", adapter, one.problem, one.detail)
    assert any(outcome.status.rejects for outcome in found) == by_products, found
