"""Stages run one at a time, on tensors laid out as kernels store them, are the chunk form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from oracles.chunk import chunk
from oracles.inputs import Inputs
from oracles.stages import SIGNATURES, chunks, defined, region, run_stages

Call = Callable[..., Inputs]
C = 16


def one_by_one(inputs: Inputs, written: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every stage from the tensors of the whole run alone."""
    found: dict[str, Tensor] = {}
    for stage, signature in SIGNATURES.items():
        given = {name: written[name] for name in signature.reads if name in written}
        found |= run_stages(inputs, given, covers=(stage,), chunk_size=C)
    return found


@pytest.mark.parametrize("gate", ["log-sigmoid", "mixture per token", "first and last reset"])
@pytest.mark.parametrize(
    "sizes",
    [{"B": 2, "T": 37}, {"T": 60, "offsets": [0, 0, 5, 21, 21, 54], "HV": 2}],
    ids=["dense", "pack"],
)
def test_stages_on_stored_tensors_are_the_whole(
    gate: str, sizes: dict[str, Any], call: Call
) -> None:
    inputs = call(gate=gate, **sizes)
    whole = run_stages(inputs, {}, chunk_size=C)
    o, final = chunk(inputs, chunk_size=C)
    assert torch.equal(whole["o"], o) and torch.equal(whole["final_state"], final)
    apart = one_by_one(inputs, whole)
    assert list(apart) == list(whole)
    for name, tensor in whole.items():
        assert torch.equal(
            defined(name, apart[name], inputs, C), defined(name, tensor, inputs, C)
        ), name


def test_every_tensor_is_laid_out_as_kernels_store_it(call: Call) -> None:
    inputs = call(B=2, T=37, H=1, HV=2, K=4, V=6)
    shapes = {
        name: list(tensor.shape) for name, tensor in run_stages(inputs, {}, chunk_size=C).items()
    }
    wide, rows = (
        {"G": 4, "Aqk": C, "Akk": C, "R": C, "w": 4, "u": 6, "qg": 4, "kg": 4, "v_new": 6, "o": 6},
        [2, 37, 2],
    )
    assert shapes == {
        **{name: [*rows, width] for name, width in wide.items()},
        "h": [2, 3, 2, 4, 6],
        "final_state": [2, 2, 4, 6],
    }


def test_the_chunks_of_a_pack_are_numbered_through(call: Call) -> None:
    inputs = call(T=60, offsets=[0, 0, 5, 38, 38, 54], state="random")
    h = run_stages(inputs, {}, chunk_size=C)["h"]
    assert chunks(inputs, C) == [0, 1, 3, 0, 1]
    for chunk_index, sequence in ((0, 1), (1, 2), (4, 4)):
        assert torch.equal(h[0, chunk_index], inputs.state[sequence].double())


def test_a_sequence_has_the_same_stage_tensors_alone(call: Call) -> None:
    inputs = call(T=60, offsets=[0, 21, 21, 54], state="random")
    packed = run_stages(inputs, {}, chunk_size=C)
    alone = run_stages(inputs.span(21, 54, inputs.state[2:]), {}, chunk_size=C)
    for name in alone:
        if name not in ("h", "final_state"):
            torch.testing.assert_close(packed[name][:, 21:54], alone[name], rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(packed["h"][:, 2:], alone["h"], rtol=1e-13, atol=1e-15)


def test_what_lies_outside_the_defined_region_is_not_read(call: Call) -> None:
    inputs = call(T=60, offsets=[0, 21, 54])
    whole = run_stages(inputs, {}, chunk_size=C)
    poisoned = dict(whole)
    for name in ("G", "Aqk", "Akk", "R", "w", "u", "qg", "kg", "v_new"):
        poisoned[name] = whole[name].masked_fill(~region(name, inputs, C), torch.nan)
    for name, tensor in one_by_one(inputs, poisoned).items():
        assert torch.equal(
            defined(name, tensor, inputs, C), defined(name, whole[name], inputs, C)
        ), name


def test_the_output_stage_takes_q_and_G_instead_of_qg(call: Call) -> None:
    inputs = call(T=37)
    whole = run_stages(inputs, {}, chunk_size=C)
    given = {name: whole[name] for name in ("G", "Aqk", "h", "v_new")}
    assert torch.equal(run_stages(inputs, given, covers=("output",), chunk_size=C)["o"], whole["o"])


def test_a_pack_without_tokens_has_its_states_only(call: Call) -> None:
    inputs = call(T=5, offsets=[0, 0, 0], state="random", HV=2)
    written = run_stages(inputs, {}, chunk_size=C)
    assert torch.equal(written["final_state"], inputs.state.double())
    assert written["Aqk"].shape == (1, 5, 2, C) and written["h"].shape[:2] == (1, 0)


def test_a_missing_tensor_is_named(call: Call) -> None:
    with pytest.raises(ValueError, match="stage solve: reads Akk, and Akk is not given"):
        run_stages(call(T=3), {}, covers=("solve",))
