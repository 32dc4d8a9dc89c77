"""Wrong outputs alone single out the mistake that was planted, in a kernel that is a plain
function, and nothing where none was.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import kdaverify as kv
from kdaverify.adapters import find
from kdaverify.adapters.base import Adapter
from kdaverify.diagnosis.diagnose import diagnose
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.operators.kda.mistakes.finding import ErrorFinding, finding
from kdaverify.problems import Problem
from oracles.chunk import STAGES, Chunk, chunk
from oracles.chunk_backward import BACKWARD, BackwardStages, ChunkGradients, chunk_backward
from oracles.gradients import Cotangents
from oracles.inputs import Inputs
from tests.faults.triggers import PLAIN

PROBLEM = Problem.model_validate({**PLAIN, "T": 20})
FORWARD, GRADIENTS = (
    PropertyCase("forward", PROBLEM),
    PropertyCase("gradients", PROBLEM, {"of": "both"}),
)
LATER = 60.0
SHARE = 20.0
"""Seconds of a kind in a session, most of which suspects take."""


def plain(
    change: Callable[[Inputs, Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
    **stages: Callable[[Chunk], None],
) -> Any:
    """A plain function with some stages replaced, or its outputs changed."""

    @kv.kernel(
        name="plain",
        contract="chunk64-fp32",
        packing="cu_seqlens",
        dtypes=("fp32",),
        gradients=False,
    )
    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        initial_state: Tensor,
        cu_seqlens: Tensor,
    ) -> tuple[Tensor, Tensor]:
        x = Inputs(
            q, k, v, g, beta, scale=scale, initial_state=initial_state, cu_seqlens=cu_seqlens
        )
        o, final = chunk(x, dtype=torch.float32, stages=replace(STAGES, **stages))
        return (o, final) if change is None else change(x, o, final)

    return call


class Autograd(torch.autograd.Function):
    """The right forward with a backward of its own."""

    stages: BackwardStages = BACKWARD

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:
        q, k, v, g, beta, state, scale, cu_seqlens = given
        ctx.inputs = Inputs(
            q, k, v, g, beta, scale=scale, initial_state=state, cu_seqlens=cu_seqlens
        )
        return chunk(ctx.inputs, dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        do, dS = given
        found = chunk_backward(
            ctx.inputs, Cotangents(do, dS), dtype=torch.float32, backward=Autograd.stages
        )
        return (*found.named().values(), None, None)


@kv.kernel(name="backward", contract="chunk64-fp32", packing="cu_seqlens", dtypes=("fp32",))
def with_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float,
    initial_state: Tensor,
    cu_seqlens: Tensor,
) -> Any:
    given: Any = initial_state
    state = torch.zeros(1) if given is None else given
    return Autograd.apply(q, k, v, g, beta, state, scale, cu_seqlens)


def analysed(kernel: Adapter, question: PropertyCase = FORWARD) -> ErrorFinding:
    return finding(question, kernel, until=time.monotonic() + LATER)


def _last_decay_missing(x: Inputs, o: Tensor, final: Tensor) -> tuple[Tensor, Tensor]:
    ends = torch.tensor(
        [start + length - 1 for start, length in zip(x.starts, x.lengths, strict=True)]
    )
    return o, final * (-x.g.flatten(0, 1)[ends]).exp()[..., None]


def _keys_not_decayed(c: Chunk) -> None:
    STAGES.wy(c)
    c.kg = c.tokens.k


def _inclusive_by_one_less(c: Chunk) -> None:
    STAGES.cumsum(c)
    c.G = c.G - c.tokens.g


def _diagonal_left_out(c: Chunk) -> None:
    STAGES.scores(c)
    c.Aqk = c.Aqk.tril(-1)


def _state_after_the_chunk(c: Chunk) -> None:
    before = c.h
    c.h = c.S
    STAGES.output(c)
    c.h = before


def _never_updated(c: Chunk) -> None:
    before = c.S
    STAGES.state(c)
    c.S = before


def _without_initial_state(x: Inputs, _: Tensor, __: Tensor) -> tuple[Tensor, Tensor]:
    return chunk(replace(x, initial_state=None), dtype=torch.float32)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            plain(_last_decay_missing),
            "is off by exp(-g) of the last token: the last decay is missing",
        ),
        (
            plain(wy=_keys_not_decayed),
            "kg (the keys with which the state is written) is off by exp(G - G_last)",
        ),
        (plain(cumsum=_inclusive_by_one_less), "g is that of the token before"),
        (
            plain(scores=_diagonal_left_out),
            "Aqk (scores of queries and keys) is without its diagonal",
        ),
        (
            plain(output=_state_after_the_chunk),
            "o reads the state after its chunk, not that before it",
        ),
        (
            plain(state=_never_updated),
            "the state after the chunk is that before it: it is not updated",
        ),
        (plain(_without_initial_state), "the initial state is 0"),
        (plain(lambda _, o, final: (2 * o, final)), "o is twice what it should be"),
        (plain(lambda _, o, final: (o.roll(1, 2), final)), "o is that of the head before"),
    ],
)
def test_a_mistake_of_one_tensor_is_named(wrong: Adapter, words: str) -> None:
    found = analysed(wrong)
    assert found.explanation is not None
    assert words in str(found), str(found)


def _two(c: Chunk) -> None:
    STAGES.state(c)
    c.S = c.S * 0.5


def test_two_mistakes_are_reported_as_two() -> None:
    found = analysed(plain(state=_two, scores=_diagonal_left_out))
    assert str(found).startswith("two mistakes together: ")
    assert "without its diagonal" in str(found)
    assert "half of what it should be" in str(found)


def _some_values(c: Chunk) -> None:
    STAGES.wy(c)
    c.kg = c.kg * (1.0 + torch.sin(1000.0 * c.kg))


def test_a_tensor_is_named_where_no_simple_mistake_fits() -> None:
    found = analysed(plain(wy=_some_values))
    assert found.explanation is None
    assert [origin.place.name for origin in found.possible] == ["kg"]
    assert (
        "consistent with an error of kg (the keys with which the state is written) (stage wy or"
        " state) alone" in str(found)
    )
    assert "output" in found.excluded


def _nan_scores(c: Chunk) -> None:
    STAGES.scores(c)
    c.Aqk = c.Aqk + torch.nan


def test_of_nan_the_stages_are_named_that_do_not_enter_what_is_right() -> None:
    found = analysed(plain(scores=_nan_scores))
    assert "scores" in found.within
    assert {"cumsum", "solve"} <= {*found.excluded}


def _no_gradient_of_w(b: ChunkGradients) -> None:
    BACKWARD.dqkwg(b)
    b.dw = torch.zeros_like(b.dw)


def _scale_twice(b: ChunkGradients) -> None:
    BACKWARD.intra_bwd(b)
    b.dq = b.dq * b.c.scale


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        (replace(BACKWARD, dqkwg=_no_gradient_of_w), "dw is 0"),
        (
            replace(BACKWARD, intra_bwd=_scale_twice),
            "dq is off by the scale: it is scaled once too often",
        ),
    ],
)
def test_a_mistake_of_the_backward_is_named(
    stages: BackwardStages, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Autograd, "stages", stages)
    assert words in str(analysed(with_backward, GRADIENTS))


def _noise(share: float) -> Callable[[Inputs, Tensor, Tensor], tuple[Tensor, Tensor]]:
    def change(_: Inputs, o: Tensor, final: Tensor) -> tuple[Tensor, Tensor]:
        random = torch.Generator().manual_seed(1)
        struck = torch.rand(o.shape, generator=random) < share
        return o + struck * torch.randn(o.shape, generator=random), final + torch.randn(
            final.shape, generator=random
        )

    return change


def _half_shaken(_: Inputs, o: Tensor, final: Tensor) -> tuple[Tensor, Tensor]:
    return o, final * (
        1 + 0.01 * torch.randn(final.shape, generator=torch.Generator().manual_seed(1))
    )


@pytest.mark.parametrize("wrong", [plain(_noise(1.0)), plain(_noise(0.1)), plain(_half_shaken)])
def test_no_mistake_and_no_tensor_is_named_for_an_error_that_none_has_made(wrong: Adapter) -> None:
    found = analysed(wrong)
    assert found.explanation is None
    assert not found.possible


@pytest.mark.parametrize(
    "right", [plain(), find("eager"), find("eager-recurrent")], ids=lambda right: right.name
)
def test_of_a_right_kernel_nothing_is_reported(right: Adapter) -> None:
    assert not str(analysed(right))


def test_it_is_part_of_the_diagnosis() -> None:
    found = diagnose(plain(_last_decay_missing), FORWARD, seconds=60)
    assert "the error itself: " in str(found)
    assert "the last decay is missing" in str(found)


def _clamped(c: Chunk) -> None:
    STAGES.cumsum(c)
    c.G = c.G.clamp(min=-60.0)


def _keys_halved(c: Chunk) -> None:
    STAGES.wy(c)
    c.kg = 0.5 * c.kg


def test_the_smallest_case_is_analysed_where_the_first_singles_nothing_out() -> None:
    """The first failure of a port with both was of gates of -100, on which both show."""
    hard = PROBLEM.replace(T=1, H=1, HV=1, K=1, V=1, gate="bound-100", state="random", beta="one")
    both = plain(cumsum=_clamped, wy=_keys_halved)
    found = diagnose(both, PropertyCase("forward", hard), seconds=SHARE)
    assert "kg (the keys with which the state is written) is half" in str(found), str(found)
    assert "of the smallest case" in str(found)
