"""Simple mistakes without a catalogue: a right kernel called, or answering, in a wrong way."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.emulate import LOG2_E
from kdaverify.budgets.solves import identity
from kdaverify.faults.fault import Fault, Make
from kdaverify.faults.kernel import Derive, Outputs, PatchedPipeline
from kdaverify.faults.patches import Call, called, derived, staged
from kdaverify.faults.views import each, sequence, transposed
from oracles.chunk import STAGES, Chunk
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs

Change = Callable[[Tensor], Tensor]


def _signature(name: str, title: str, patch: Make) -> Fault:
    return Fault(
        id=name,
        title=title,
        reference="by construction",
        kind="A",
        trigger="",
        outputs=(),
        patch=patch,
        stage="call",
    )


def _given(change: Change, *names: str) -> Call:
    """The right kernel, some of its inputs changed."""
    return lambda kernel, x: kernel(each(x, names, change))


def _returned(o: Change | None = None, final_state: Change | None = None) -> Call:
    """The right kernel, what it returns changed."""

    def call(kernel: PatchedPipeline, x: Inputs) -> Outputs:
        outputs = kernel(x)
        changes = zip(outputs, (o, final_state), strict=True)
        first, second = (output if change is None else change(output) for output, change in changes)
        return first, second

    return call


def _derived(name: str, change: Callable[[Tensor, Inputs], Tensor]) -> Make:
    """The right backward, one gradient changed."""

    def derivation(derive: Derive, x: Inputs, given: Cotangents) -> Gradients[Tensor]:
        found = derive(x, given)
        return replace(found, **{name: change(getattr(found, name), x)})

    return derived(derivation)


def _scaled(factor: Callable[[float], float]) -> Call:
    return lambda kernel, x: kernel(replace(x, scale=factor(x.factor)))


def _later(x: Tensor) -> Tensor:
    """Every token in the place of the next one."""
    return torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), dim=1)


def _earlier(x: Tensor) -> Tensor:
    return torch.cat((x[:, 1:], torch.zeros_like(x[:, :1])), dim=1)


def _square(x: Tensor) -> Tensor:
    return transposed(x).contiguous() if x.shape[-1] == x.shape[-2] else x


def _heads_first(x: Tensor) -> Tensor:
    return x.transpose(1, 2).reshape(x.shape)


def _keys_by_turns(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    spread = {name: getattr(x, name).repeat(1, 1, x.HV // x.H, 1) for name in ("q", "k")}
    return kernel(replace(x, **spread))


def _q_and_k_swapped(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    return kernel(replace(x, q=x.k, k=x.q))


def _state_ignored(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    return kernel(replace(x, initial_state=None))


def _final_state_given_back(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    o, final = kernel(x)
    return o, x.state.to(final.dtype)


def _boundaries_ignored(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    if x.cu_seqlens is None:
        return kernel(x)
    whole = torch.tensor([0, sum(x.lengths)], dtype=x.cu_seqlens.dtype)
    o, final = kernel(
        replace(
            x,
            cu_seqlens=whole,
            initial_state=None if x.initial_state is None else x.initial_state[:1],
        )
    )
    return o, final.expand(x.N, *final.shape[1:]).contiguous()


def _state_handed_on(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    """Every sequence of a pack starts from the state in which the one before it ended."""
    if x.cu_seqlens is None:
        return kernel(x)
    state, outputs, finals = x.state[:1], list[Tensor](), list[Tensor]()
    for n, length in enumerate(x.lengths):
        one = replace(sequence(x, n, length), initial_state=state)
        o, state = kernel(one)
        outputs.append(o)
        finals.append(state)
    padding = torch.zeros_like(x.v[:, sum(x.lengths) :], dtype=outputs[0].dtype)
    return torch.cat((*outputs, padding), dim=1), torch.cat(finals)


def _padding_taken_for_tokens(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    if x.cu_seqlens is None:
        return kernel(x)
    offsets = torch.cat((x.cu_seqlens[:-1], x.cu_seqlens.new_tensor([x.T])))
    return kernel(replace(x, cu_seqlens=offsets))


def _next_sequence(x: Tensor) -> Tensor:
    return x.roll(1, dims=0)


def _first(dim: int, x: Tensor) -> Tensor:
    """The first head or sequence in the place of all."""
    return x.narrow(dim, 0, 1).expand_as(x).contiguous()


def _nothing_corrected(c: Chunk) -> None:
    c.R = c.store("R", identity(c.Akk))


def _state_not_read_for_the_update(c: Chunk) -> None:
    STAGES.wy(c)
    c.w = torch.zeros_like(c.w)


def _no_state_between_chunks(c: Chunk) -> None:
    c.S = torch.zeros_like(c.S)
    STAGES.state(c)


def _without_the_state(c: Chunk) -> None:
    c.o = c.store("o", c.dot(c.Aqk, c.v_new))


def _without_the_chunk(c: Chunk) -> None:
    c.o = c.store("o", c.scale * c.dot(c.qg, c.h))


def _before_the_write(c: Chunk) -> None:
    STAGES.scores(c)
    c.Aqk = c.Aqk.tril(-1)


def _negated(x: Tensor) -> Tensor:
    return -x


def _backwards(derive: Derive, x: Inputs, given: Cotangents) -> Gradients[Tensor]:
    return Gradients(*(-gradient for gradient in derive(x, given).named().values()))


def _loss_of_o_alone(derive: Derive, x: Inputs, given: Cotangents) -> Gradients[Tensor]:
    return derive(x, given if given.do is None else replace(given, d_final_state=None))


def _growing(c: Chunk) -> None:
    # Not `_given`: the inputs of a call refuse gates above 0.
    STAGES.cumsum(c)
    c.G = -c.G


def _gates_scaled(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    return kernel(replace(x, g=x.g * x.factor))


def _last_tokens_zero(size: int) -> Call:
    """o is 0 past the last whole multiple of `size` tokens of every sequence."""

    def call(kernel: PatchedPipeline, x: Inputs) -> Outputs:
        o, final = kernel(x)
        o, start = o.clone(), 0
        for length in x.lengths if x.cu_seqlens is not None else (x.T,):
            o[:, start + length // size * size : start + length] = 0
            start += length
        return o, final

    return call


def _last_columns_zero(size: int) -> Call:
    """The columns of o and S_T past the last whole multiple of `size` are 0."""

    def change(x: Tensor) -> Tensor:
        whole = x.shape[-1] // size * size
        return torch.cat((x[..., :whole], torch.zeros_like(x[..., whole:])), dim=-1)

    return _returned(o=change, final_state=change)


_UNWRITTEN_TAILS: Final = (
    *(
        _signature(
            f"last tokens never written ({size})",
            f"o is 0 past the last multiple of {size} tokens",
            called(_last_tokens_zero(size)),
        )
        for size in (16, 32, 64)
    ),
    *(
        _signature(
            f"last columns never written ({size})",
            f"o and S_T are 0 past the last multiple of {size} columns",
            called(_last_columns_zero(size)),
        )
        for size in (8, 16, 32)
    ),
)
_FACTORS: Final = {
    "1.4427": (LOG2_E, "1 / ln 2: those of base 2 are taken for natural logarithms"),
    "0.6931": (1 / LOG2_E, "ln 2: natural logarithms are taken for those of base 2"),
    "2.3026": (math.log(10), "ln 10: another base"),
    "2": (2.0, "applied twice"),
    "0.5": (0.5, "half the decay"),
}
_GATES: Final = tuple(
    _signature(
        f"gates off by a factor of {shown}",
        title,
        called(_given(partial(torch.mul, other=factor), "g")),
    )
    for shown, (factor, title) in _FACTORS.items()
)
SIGNATURES: Final = (
    _signature("state transposed", "S_T is returned transposed",
               called(_returned(final_state=_square))),
    _signature("initial state transposed", "S_0 is read transposed",
               called(_given(_square, "initial_state"))),
    _signature(
        "states transposed",
        "S_0 and S_T both are",
        called(
            lambda k, x: _returned(final_state=_square)(k, each(x, ("initial_state",), _square))
        ),
    ),
    _signature("layout", "o has heads before tokens", called(_returned(o=_heads_first))),
    *_GATES,
    _signature("gates off by a factor of -1", "sign: the state grows where it has to decay",
               staged(cumsum=_growing)),
    _signature("gates off by the scale", "g is scaled, as q is", called(_gates_scaled)),
    _signature("gates ignored", "nothing decays", called(_given(torch.zeros_like, "g"))),
    _signature("one gate a head", "all channels decay as the first one",
               called(_given(lambda x: x[..., :1].expand_as(x), "g"))),
    _signature("gates of the token before", "decays are one token late",
               called(_given(_later, "g"))),
    _signature("gates of the next token", "decays are one token early",
               called(_given(_earlier, "g"))),
    _signature("scale missing", "q is not scaled", called(_scaled(lambda _: 1.0))),
    _signature("scale applied twice", "q is scaled twice",
               called(_scaled(lambda factor: factor * factor))),
    _signature("one token late", "o_t is that of token t - 1", called(_returned(o=_later))),
    _signature("one token early", "o_t is that of token t + 1", called(_returned(o=_earlier))),
    _signature("values of the token before", "v is one token late", called(_given(_later, "v"))),
    _signature("wrong head", "o of every head is that of the head before",
               called(_returned(o=lambda x: x.roll(1, dims=2)))),
    _signature("heads reversed", "o of the first head is that of the last",
               called(_returned(o=lambda o: o.flip(2)))),
    _signature("key heads by turns", "value head j reads key head j mod H",
               called(_keys_by_turns, when=lambda x: x.HV > x.H > 1)),
    _signature("q and k swapped", "queries are taken for keys", called(_q_and_k_swapped)),
    _signature("sign of o", "o is negated", called(_returned(o=_negated))),
    _signature("sign of the state", "S_T is negated", called(_returned(final_state=_negated))),
    _signature("initial state ignored", "S_0 is taken for 0", called(_state_ignored)),
    _signature("final state not updated", "S_T is S_0", called(_final_state_given_back)),
    _signature("final state zero", "S_T is 0", called(_returned(final_state=torch.zeros_like))),
    _signature("o zero", "o is 0", called(_returned(o=torch.zeros_like))),
    *_UNWRITTEN_TAILS,
    _signature("beta ignored", "beta is taken for 1", called(_given(torch.ones_like, "beta"))),
    _signature("beta applied twice", "beta is squared", called(_given(torch.square, "beta"))),
    _signature("sigmoid of beta", "beta is taken for a logit",
               called(_given(torch.sigmoid, "beta"))),
    _signature("boundaries ignored", "a pack is one sequence", called(_boundaries_ignored)),
    _signature("state handed on",
               "a sequence starts from the state in which the one before it ended",
               called(_state_handed_on)),
    _signature("padding taken for tokens", "the last sequence runs to the end of the tokens",
               called(_padding_taken_for_tokens)),
    _signature("states of the sequence before", "S_0 is that of the sequence before",
               called(_given(_next_sequence, "initial_state"))),
    _signature("states of the first sequence", "S_0 of every sequence is that of the first",
               called(_given(partial(_first, 0), "initial_state"))),
    _signature("states of the first head", "S_0 of every head is that of the first",
               called(_given(partial(_first, 1), "initial_state"))),
    *(
        _signature(f"{name} of the first head", f"{name} of every head is that of the first",
                   called(_given(partial(_first, 2), name)))
        for name in ("q", "k", "v", "g", "beta")
    ),
    _signature("final states of the sequence before", "S_T is that of the sequence before",
               called(_returned(final_state=_next_sequence))),
    _signature("delta rule missing", "no write is corrected by those before it in its chunk",
               staged(solve=_nothing_corrected)),
    _signature("state not subtracted", "writes are not corrected by the state before the chunk",
               staged(wy=_state_not_read_for_the_update)),
    _signature("state not carried", "every chunk starts from 0",
               staged(state=_no_state_between_chunks)),
    _signature("state not read", "o lacks what the state before the chunk gives",
               staged(output=_without_the_state)),
    _signature("chunk not read", "o lacks what the chunk's own tokens give",
               staged(output=_without_the_chunk)),
    _signature("read before the write", "o_t does not see token t",
               staged(scores=_before_the_write)),
    _signature("sign of the gradients", "all gradients are negated", derived(_backwards)),
    _signature("gradient of S_T ignored", "the loss is taken for one of o alone",
               derived(_loss_of_o_alone)),
    _signature("dg times 1.4427", "dg is of another base",
               _derived("dg", lambda dg, _: dg * LOG2_E)),
    _signature("dg times 0.6931", "dg is of another base",
               _derived("dg", lambda dg, _: dg / LOG2_E)),
    _signature("dg not summed", "dg is that of the cumulative gate",
               _derived("dg", lambda dg, _: dg - _earlier(dg))),
    _signature("dq without the scale", "dq lacks the scale",
               _derived("dq", lambda dq, x: dq / x.factor if x.factor else dq)),
    _signature("dq scaled twice", "dq has the scale twice",
               _derived("dq", lambda dq, x: dq * x.factor)),
)  # fmt: skip
