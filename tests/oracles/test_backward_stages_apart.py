"""Backward stages run one at a time, on tensors laid out as kernels store them,
are the chunk backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from oracles.backward_stages import BACKWARD_SIGNATURES, FORWARD, run_backward_stages
from oracles.chunk_backward import chunk_backward
from oracles.gradients import Cotangents
from oracles.inputs import Inputs
from oracles.stages import defined, region, run_stages

Call = Callable[..., Inputs]
Weigh = Callable[..., Cotangents]
C = 16


def before(inputs: Inputs, weights: Cotangents) -> dict[str, Tensor]:
    """What the forward and the loss leave to the backward."""
    do, dS = weights.of(inputs)
    return {**run_stages(inputs, {}, chunk_size=C), "do": do, "d_final_state": dS}


def alike(found: Tensor, wanted: Tensor) -> bool:
    """Up to the order in which a library sums,
    which is another for another layout on some processors.
    """
    return float((found - wanted).abs().max()) <= 1e-12 * float(wanted.abs().max())


def one_by_one(inputs: Inputs, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every stage from given tensors alone."""
    found: dict[str, Tensor] = {}
    for stage, signature in BACKWARD_SIGNATURES.items():
        found |= run_backward_stages(
            inputs,
            {name: given[name] for name in signature.reads if name in given},
            covers=(stage,),
            chunk_size=C,
        )
    return found


@pytest.mark.parametrize("gate", ["log-sigmoid", "mixture per token", "first and last reset"])
@pytest.mark.parametrize(
    "sizes",
    [{"B": 2, "T": 37}, {"T": 60, "offsets": [0, 0, 5, 21, 21, 54], "HV": 2}],
    ids=["dense", "pack"],
)
def test_backward_stages_on_stored_tensors_are_the_whole(
    gate: str, sizes: dict[str, Any], call: Call, cotangents: Weigh
) -> None:
    inputs = call(gate=gate, **sizes)
    weights = cotangents(inputs)
    given = before(inputs, weights)
    whole = run_backward_stages(inputs, given, chunk_size=C)
    for name, gradient in chunk_backward(inputs, weights, chunk_size=C).named().items():
        assert alike(whole[name], gradient), name
    apart = one_by_one(inputs, given | whole)
    assert list(apart) == list(whole)
    for name, tensor in whole.items():
        assert alike(apart[name], tensor), name


def test_every_gradient_is_laid_out_as_kernels_store_it(call: Call, cotangents: Weigh) -> None:
    inputs = call(B=2, T=37, H=1, HV=2, K=4, V=6)
    given = before(inputs, cotangents(inputs))
    shapes = {
        name: list(x.shape) for name, x in run_backward_stages(inputs, given, chunk_size=C).items()
    }
    keys = (
        "dq_state",
        "dk_state",
        "dw",
        "dG_state",
        "dk_wy",
        "dG_wy",
        "dq_head",
        "dk_head",
        "dG",
        "dg",
    )
    assert shapes == {
        **{name: [2, 37, 2, 4] for name in keys},
        **{name: [2, 37, 2, 6] for name in ("dv_local", "dv_new", "dv")},
        **{name: [2, 37, 2, C] for name in ("dAqk", "dAkk")},
        **{name: [2, 37, 2] for name in ("dbeta_wy", "dbeta")},
        **{name: [2, 37, 1, 4] for name in ("dq", "dk")},
        "dh": [2, 3, 2, 4, 6],
        "d_initial_state": [2, 2, 4, 6],
    }


def test_gradients_of_states_lie_where_their_states_lie(call: Call, cotangents: Weigh) -> None:
    inputs = call(T=60, offsets=[0, 0, 5, 38, 38, 54], state="random")
    weights = cotangents(inputs)
    dh = run_backward_stages(inputs, before(inputs, weights), chunk_size=C)["dh"]
    for last_chunk, sequence in ((0, 1), (3, 2), (4, 4)):
        assert torch.equal(dh[0, last_chunk], weights.of(inputs)[1][sequence])


def test_what_lies_outside_the_defined_region_is_not_read(call: Call, cotangents: Weigh) -> None:
    inputs = call(T=60, offsets=[0, 21, 54])
    given = before(inputs, cotangents(inputs))
    whole = run_backward_stages(inputs, given, chunk_size=C)
    everything = given | whole
    poisoned = {
        name: (
            x
            if name in ("do", "d_final_state")
            else x.masked_fill(~region(name, inputs, C), torch.nan)
        )
        for name, x in everything.items()
    }
    for name, tensor in one_by_one(inputs, poisoned).items():
        assert torch.equal(
            defined(name, tensor, inputs, C), defined(name, whole[name], inputs, C)
        ), name


def test_a_pack_without_tokens_passes_the_gradient_of_its_states_on(
    call: Call, cotangents: Weigh
) -> None:
    inputs = call(T=5, offsets=[0, 0, 0], state="random", HV=2)
    weights = cotangents(inputs)
    written = run_backward_stages(inputs, before(inputs, weights), chunk_size=C)
    assert torch.equal(written["d_initial_state"], weights.of(inputs)[1])
    assert (
        written["dAqk"].shape == (1, 5, 2, C)
        and written["dbeta"].shape == (1, 5, 2)
        and not written["dk"].any()
    )


def test_a_missing_tensor_is_named(call: Call) -> None:
    with pytest.raises(ValueError, match="stage dA: reads v_new, do, and v_new, do is not given"):
        run_backward_stages(call(T=3), {}, covers=("dA",))
    assert {"h", "R", "qg"} <= set(FORWARD)
