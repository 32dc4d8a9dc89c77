"""Torch's backward of what torch can differentiate."""

from __future__ import annotations

from collections.abc import Callable

import torch

from oracles.autograd import differentiate
from oracles.gradients import Cotangents
from oracles.inputs import Inputs
from oracles.recurrence import recurrence


def test_a_graph_is_found_where_the_caller_keeps_none(
    call: Callable[..., Inputs], cotangents: Callable[..., Cotangents]
) -> None:
    inputs = call(T=5, gate="slow")
    weights = cotangents(inputs)
    wanted = differentiate(recurrence, inputs, weights).named()
    with torch.inference_mode():
        found = differentiate(recurrence, inputs, weights).named()
    assert float(wanted["dg"].abs().max()) > 0
    for name, gradient in wanted.items():
        assert torch.equal(found[name], gradient), name
