"""The float64 token recurrence and chunk form agree,
whatever the chunk size, packing, head ratio or gate.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from oracles.adjoint import adjoint
from oracles.arithmetic import Arithmetic
from oracles.chunk import STAGES, Chunk, chunk
from oracles.gradients import Cotangents
from oracles.inputs import Inputs
from oracles.recurrence import recurrence
from oracles.running_error import enclosed, structural_zeros
from oracles.tensors import TOKENS

GATES = ("zero", "slow", "log-sigmoid", "deep", "hard resets", "mixed")
# B, T, offsets
SHAPES: dict[str, tuple[int, int, list[int] | None]] = {
    "short": (1, 1, None),
    "tail": (2, 75, None),
    "three chunks and a tail": (1, 200, None),
    "pack with empty sequences and padding": (1, 160, [0, 0, 1, 64, 64, 130, 150, 150]),
}


def draw(shape: str, gate: str, *, ratio: int = 1, seed: int = 0) -> Inputs:
    B, T, offsets = SHAPES[shape]
    H, K, V = 2, 12, 20
    rng = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=rng, dtype=torch.float64)

    g = torch.nn.functional.logsigmoid(normal(B, T, H * ratio, K))
    kinds = torch.randint(0, 5, g.shape[-2:], generator=rng)
    fills = {"zero": 0.0, "slow": -1e-3, "deep": -100.0}
    if gate in fills:
        g = torch.full_like(g, fills[gate])
    if gate == "hard resets":
        g = g.masked_fill(torch.rand(g.shape, generator=rng) < 0.05, -torch.inf)
    if gate == "mixed":
        for kind, value in enumerate((0.0, -1e-3, -20.0, -torch.inf)):
            g = g.masked_fill(kinds == kind, value)
    N = B if offsets is None else len(offsets) - 1
    unit = torch.nn.functional.normalize
    return Inputs(
        unit(normal(B, T, H, K), dim=-1),
        unit(normal(B, T, H, K), dim=-1),
        normal(B, T, H * ratio, V),
        g,
        torch.rand(B, T, H * ratio, generator=rng, dtype=torch.float64),
        initial_state=normal(N, H * ratio, K, V),
        cu_seqlens=None if offsets is None else torch.tensor(offsets),
    )


@pytest.mark.parametrize("chunk_size", [1, 16, 17, 64, 128])
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("shape", SHAPES)
def test_chunk_form_equals_the_recurrence(shape: str, gate: str, chunk_size: int) -> None:
    inputs = draw(shape, gate, ratio=3 if chunk_size == 17 else 1)
    for token, block in zip(recurrence(inputs), chunk(inputs, chunk_size=chunk_size), strict=True):
        assert torch.isfinite(token).all()
        torch.testing.assert_close(block, token, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_running_error_bound_holds_against_a_wider_recurrence(shape: str, gate: str) -> None:
    """Rounds every step to float32: the bound, scaled to that unit,
    must hold what then really goes wrong.
    """
    inputs = draw(shape, gate)
    answer = enclosed(inputs)
    exact = recurrence(inputs)
    rough = recurrence(inputs.to(torch.float32), dtype=torch.float32)
    wider = enclosed(inputs.to(torch.float32))
    units = 2.0**-24 / 2.0**-53
    for kind, own, low in zip(("o", "final_state"), exact, rough, strict=True):
        enclosure, coarse = getattr(answer, kind), getattr(wider, kind)
        assert ((own - enclosure.high).abs() <= enclosure.radius).all()
        assert ((low.double() - coarse.high).abs() <= units * coarse.radius + 1e-30).all()


def test_structural_zeros_are_proven_and_nothing_else() -> None:
    inputs = replace(draw("tail", "log-sigmoid"), initial_state=None)
    beta = inputs.beta.clone()
    beta[:, :10] = 0
    answer = enclosed(replace(inputs, beta=beta))
    assert answer.o.zero[:, :10].all()
    assert not answer.o.zero[:, 10:].any()
    assert (answer.o.radius[:, :10] == 0).all()


def test_without_a_token_the_zeros_are_those_of_the_initial_state() -> None:
    inputs = draw("short", "log-sigmoid")
    state = torch.eye(inputs.K, inputs.V, dtype=torch.float64).expand(
        2, inputs.HV, inputs.K, inputs.V
    )
    empty = replace(inputs, initial_state=state, cu_seqlens=torch.zeros(3, dtype=torch.int32))
    empty = replace(empty, **{name: getattr(empty, name)[:, :0] for name in TOKENS})
    o_zero, state_zero = structural_zeros(empty, empty.v, state)
    assert o_zero.shape == empty.v.shape
    assert torch.equal(state_zero, state == 0)


def test_heads_share_keys_as_if_repeated() -> None:
    inputs = draw("tail", "log-sigmoid", ratio=3)
    repeated = replace(
        inputs, q=inputs.q.repeat_interleave(3, dim=2), k=inputs.k.repeat_interleave(3, dim=2)
    )
    for shared, own in zip(chunk(inputs), chunk(repeated), strict=True):
        assert torch.equal(shared, own)


def test_every_named_tensor_passes_through_the_store_hook() -> None:
    seen: list[str] = []

    def note(name: str, tensor: torch.Tensor) -> torch.Tensor:
        seen.append(name)
        return tensor

    chunk(draw("short", "slow"), arithmetic=Arithmetic(store=note))
    assert seen == [
        "G",
        "Aqk",
        "Akk",
        "R",
        "beta_k_wy",
        "kb",
        "w",
        "vb",
        "u",
        "qg",
        "kg",
        "h",
        "v_new",
        "S",
        "o",
    ]


@pytest.mark.parametrize("stage", ["cumsum", "scores", "solve", "wy", "state", "output"])
def test_a_wrong_digit_in_any_stage_is_seen(stage: str) -> None:
    touched = {
        "cumsum": "G",
        "scores": "Aqk",
        "solve": "R",
        "wy": "kg",
        "state": "v_new",
        "output": "o",
    }[stage]

    def wrong(c: Chunk) -> None:
        getattr(STAGES, stage)(c)
        tensor = getattr(c, touched).clone()
        tensor[..., -1, 0] *= 1 + 1e-6
        setattr(c, touched, tensor)

    inputs = draw("three chunks and a tail", "slow")
    right, broken = recurrence(inputs), chunk(inputs, stages=replace(STAGES, **{stage: wrong}))
    assert any((a - b).abs().max() > 1e-10 for a, b in zip(right, broken, strict=True))


@pytest.mark.parametrize("shape", SHAPES)
def test_padding_is_left_out_without_a_change_of_a_bit(shape: str) -> None:
    inputs = draw(shape, "mixed")
    left_out, computed = chunk(inputs), chunk(inputs, arithmetic=Arithmetic(computes_padding=True))
    for one, other in zip(left_out, computed, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_the_same_bits_whether_padding_is_walked(shape: str) -> None:
    inputs = draw(shape, "mixed")
    cotangents = Cotangents(torch.ones_like(inputs.v), torch.ones_like(inputs.state))
    # Of an arithmetic that may draw samples every row is walked.
    left_out, walked = (
        adjoint(inputs, cotangents),
        adjoint(inputs, cotangents, arithmetic=Arithmetic()),
    )
    for one, other in zip(left_out.named().values(), walked.named().values(), strict=True):
        assert torch.equal(one, other)
