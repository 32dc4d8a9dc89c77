"""Every stage of the chunk backward is the derivative of its forward stage, and a wrong one differs
by a wide margin.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from oracles.adjoint import adjoint, adjoint_with_terms
from oracles.arithmetic import Arithmetic
from oracles.chunk import STAGES, Chunk
from oracles.chunk_backward import BACKWARD, BackwardStage, ChunkGradients, chunk_backward
from oracles.gradients import Cotangents
from oracles.inputs import Inputs
from oracles.tokens import Tokens

Call = Callable[..., Inputs]
Weigh = Callable[..., Cotangents]
Differ = Callable[..., dict[str, float]]

FORWARD = [
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
STORED = [
    *(
        "dv_local",
        "dAqk",
        "dh",
        "dv_new",
        "dS_o",
        "dS",
        "dq_state",
        "dk_state",
        "dw",
        "h_dh",
        "h_dh",
        "dG_state",
    ),
    *("k_decayed", "dkb", "dvb", "dv", "dbeta_wy", "dk_wy", "dG_wy", "dR", "R_dR", "dAkk"),
    *("beta_k", "dbeta", "dG", "dq_head", "dk_head", "dg"),
]


class Recorder:
    """A store hook that notes the names."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, name: str, tensor: Tensor) -> Tensor:
        self.seen.append(name)
        return tensor


def test_every_named_tensor_passes_through_the_store_hook(call: Call, cotangents: Weigh) -> None:
    inputs, recorder = call(T=20), Recorder()
    chunk_backward(inputs, cotangents(inputs), chunk_size=16, arithmetic=Arithmetic(store=recorder))
    assert recorder.seen == [*FORWARD * 2, *STORED * 2, "dq", "dk"]


def test_of_many_chunks_at_once_only_those_of_the_state_are_stored_in_turn(
    call: Call, cotangents: Weigh
) -> None:
    inputs, recorder = call(T=20), Recorder()
    together = Arithmetic(store=recorder, together=True)
    chunk_backward(inputs, cotangents(inputs), chunk_size=16, arithmetic=together)
    there = [*FORWARD[:11], *FORWARD[11:14] * 2, *FORWARD[14:]]
    assert recorder.seen == [*there, *STORED[:2], *STORED[2:6] * 2, *STORED[6:], "dq", "dk"]


def test_chunks_by_themselves_and_many_at_once_give_the_same(
    call: Call, cotangents: Weigh, differences: Differ
) -> None:
    for inputs in (
        call(T=150, dtype=torch.float64),
        call(T=166, offsets=[0, 70, 71, 150, 150, 166], dtype=torch.float64),
    ):
        alone, together = (
            chunk_backward(
                inputs, cotangents(inputs), chunk_size=16, arithmetic=Arithmetic(together=how)
            )
            for how in (False, True)
        )
        _, terms = adjoint_with_terms(inputs, cotangents(inputs))
        assert max(differences(alone, together, terms).values()) < 1e-13


def test_the_adjoint_passes_its_tensors_through_the_store_hook(
    call: Call, cotangents: Weigh
) -> None:
    inputs, recorder = call(T=1), Recorder()
    adjoint(inputs, cotangents(inputs), arithmetic=Arithmetic(store=recorder))
    there = ["decayed", "p", "u", "S"]
    back = ["P", "dp", "dv", "dbeta", "dq_head", "dk_head", "dg", "dS"]
    # On the way back one row past the end comes first: it leaves the carry as it is, and so would
    # the 62 after it, which are passed over.
    assert recorder.seen == [*there, *back * 2, "dq", "dk"]


# A stored gradient, and the stored forward tensor whose gradient it is.
DERIVATIVES = {
    "dAqk": "Aqk",
    "dAkk": "Akk",
    "dv_new": "v_new",
    "dS": "h",
    "dw": "w",
    "dkb": "kb",
    "dvb": "vb",
    "dG": "G",
}


@pytest.mark.parametrize("gate", ["slow", "mixture per token", "one-token resets"])
def test_every_stored_gradient_is_the_derivative_of_its_tensor(
    gate: str, call: Call, cotangents: Weigh
) -> None:
    inputs = call(T=37, gate=gate, key="coherent", dtype=torch.float64)
    weights = cotangents(inputs)
    leaves: dict[str, Tensor] = {}

    def follow(name: str, tensor: Tensor) -> Tensor:
        # A view with a gradient of its own, so that what comes before it is reached through it.
        leaves[name] = (
            tensor.clone().requires_grad_() if not tensor.requires_grad else tensor.clone()
        )
        leaves[name].retain_grad()
        return leaves[name]

    q, k, v, g, beta = (
        x.transpose(1, 2) for x in (inputs.q, inputs.k, inputs.v, inputs.g, inputs.beta)
    )
    tokens = Tokens(q, k, v, g, beta, torch.ones(1, 37, dtype=torch.bool))
    c = Chunk(tokens, inputs.factor, Arithmetic(store=follow))
    c.S = inputs.state
    STAGES.run(c)
    do, dS = weights.of(inputs)
    torch.autograd.backward([c.o, c.S], [do.transpose(1, 2), dS])
    found: dict[str, Tensor] = {}

    def keep(name: str, tensor: Tensor) -> Tensor:
        found[name] = tensor
        return tensor

    chunk_backward(inputs, weights, arithmetic=Arithmetic(store=keep), chunk_size=37)
    for name, of in DERIVATIVES.items():
        wanted = leaves[of].grad
        assert wanted is not None
        if name == "dAqk":
            wanted = inputs.factor * wanted.tril()
        if name == "dAkk":
            wanted = wanted.tril(-1)
        if name == "dS":
            # the carried state is read beside h
            wanted = wanted + c.decay(slice(-1, None)).transpose(-1, -2) * dS
        torch.testing.assert_close(found[name], wanted, rtol=1e-11, atol=1e-12)


def state_without_the_correction(b: ChunkGradients) -> None:
    BACKWARD.state_bwd(b)
    b.dS = b.dS + b.dot(b.c.w.transpose(-1, -2), b.dv_new)


def dw_without_the_carry(b: ChunkGradients) -> None:
    BACKWARD.dqkwg(b)
    kg = b.c.tokens.k * b.c.decay(slice(-1, None), slice(None))
    b.dw = b.dw + b.dot(b.dot(kg, b.dh), b.c.h.transpose(-1, -2))


def inverse_taken_as_constant(b: ChunkGradients) -> None:
    BACKWARD.wy_bwd(b)
    b.dAkk = torch.zeros_like(b.dAkk)


def no_chunk_end(b: ChunkGradients) -> None:
    BACKWARD.dqkwg(b)
    b.dG = b.dG - _end(b).masked_fill(~b.last, 0.0)


def chunk_end_on_the_padded_last_row(b: ChunkGradients) -> None:
    no_chunk_end(b)
    rows = torch.zeros_like(b.dG)
    rows[..., -1:, :] = _end(b)
    # A kernel whose reverse sum runs over the sequence's own rows never meets it.
    b.dG = b.dG + rows.masked_fill(~b.c.tokens.valid[:, None, :, None], 0.0)


def _end(b: ChunkGradients) -> Tensor:
    held = (b.c.h * b.dh).sum(-1)[..., None, :] * b.c.decay(slice(-1, None))
    return held + (b.c.tokens.k * b.dk).masked_fill(~b.followed, 0.0).sum(-2, keepdim=True)


def dk_of_one_value_head(b: ChunkGradients) -> None:
    BACKWARD.intra_bwd(b)
    b.dk = b.dk.clone()
    b.dk[:, 1::2] = 0


def dbeta_without_the_keys_of_w(b: ChunkGradients) -> None:
    BACKWARD.wy_bwd(b)
    b.dbeta = b.dbeta - (
        b.dot(b.c.R.transpose(-1, -2), b.dw) * b.c.tokens.k * b.c.decay(slice(None))
    ).sum(-1)


def dbeta_without_the_scores(b: ChunkGradients) -> None:
    before = b.dbeta
    BACKWARD.intra_bwd(b)
    b.dbeta = before


def aqk_above_the_diagonal(b: ChunkGradients) -> None:
    b.dAqk = b.c.scale * b.dot(b.do, b.c.v_new.transpose(-1, -2))
    b.dAqk = b.dAqk.flip(-1).tril()


def own_pairs_forgotten(b: ChunkGradients) -> None:
    b.dAqk = b.dAqk.tril(-1)
    BACKWARD.intra_bwd(b)


def forward_sum_of_dG(b: ChunkGradients) -> None:
    b.dg = b.dG.cumsum(-2)


def values_stored_after_the_gate(b: ChunkGradients) -> None:
    kept, b.c.v_new = (
        b.c.v_new,
        b.c.v_new * b.c.decay(slice(-1, None), slice(None)).mean(-1, keepdim=True),
    )
    BACKWARD.dqkwg(b)
    b.c.v_new = kept


def exp_of_the_unmasked_upper_triangle(b: ChunkGradients) -> None:
    BACKWARD.intra_bwd(b)
    G = b.c.G
    decay = (G[..., :, None, :] - G[..., None, :, :]).exp()
    b.dq = b.dq + 0 * torch.einsum(
        "...ij,...ijd,...jd->...id", b.dAqk.tril(-1), decay, b.c.tokens.k
    )


FAULTS: dict[str, tuple[str, BackwardStage, tuple[str, ...]]] = {
    "state gradient without -w^T dv": (
        "state_bwd",
        state_without_the_correction,
        ("dk", "dv", "dg", "dbeta", "d_initial_state"),
    ),
    "dw without the carry": ("dqkwg", dw_without_the_carry, ("dk", "dg", "dbeta")),
    "R taken as constant": ("wy_bwd", inverse_taken_as_constant, ("dk", "dg", "dbeta")),
    "dg without the chunk-end term": ("dqkwg", no_chunk_end, ("dg",)),
    "chunk-end term on the padded last row": ("dqkwg", chunk_end_on_the_padded_last_row, ("dg",)),
    "dk of one value head only": ("intra_bwd", dk_of_one_value_head, ("dk",)),
    "dbeta without the keys of w": ("wy_bwd", dbeta_without_the_keys_of_w, ("dbeta",)),
    "dbeta without the scores": ("intra_bwd", dbeta_without_the_scores, ("dbeta",)),
    "dAqk mirrored": ("dA", aqk_above_the_diagonal, ("dq", "dk", "dg")),
    "pairs (i, i) forgotten": ("intra_bwd", own_pairs_forgotten, ("dq", "dk")),
    "dg summed forwards": ("cumsum_bwd", forward_sum_of_dG, ("dg",)),
    "v_new stored after the gate": ("dqkwg", values_stored_after_the_gate, ("dk", "dg")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_reported_apart_and_leaves_the_other_gradients(
    fault: str, call: Call, cotangents: Weigh, differences: Differ
) -> None:
    stage, wrong, hit = FAULTS[fault]
    inputs = call(T=60, H=1, HV=2, offsets=[0, 0, 39, 57], key="coherent", gate="slow")
    weights = cotangents(inputs)
    truth, terms = adjoint_with_terms(inputs, weights)
    changes: dict[str, Any] = {stage: wrong}
    found = differences(
        chunk_backward(inputs, weights, chunk_size=16, backward=replace(BACKWARD, **changes)),
        truth,
        terms,
    )
    for name, gap in found.items():
        assert gap > 1e-4 if name in hit else gap <= 1e-13, (name, gap)
