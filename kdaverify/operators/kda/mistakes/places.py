"""Where a kernel can be wrong: tensors written, tensors read by one stage, terms of sums."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.operators.kda.mistakes.changes import Kind
from oracles.backward_stages import HELD_AS
from oracles.chunk import STAGES, Chunk, Stage, Stages, decayed_products
from oracles.chunk_backward import BACKWARD, BackwardStage, BackwardStages
from oracles.stages import SIGNATURES, Signature
from oracles.tensors import TOKENS

Edit = Callable[[Tensor, Chunk], Tensor]
"""(right tensor, its chunk) -> wrong tensor."""


@dataclass(frozen=True)
class Passes:
    """The stages of both passes."""

    forward: Stages = STAGES
    backward: BackwardStages = BACKWARD

    def with_forward(self, name: str, stage: Stage) -> Passes:
        return replace(self, forward=replace(self.forward, **{name: stage}))

    def with_backward(self, name: str, stage: BackwardStage) -> Passes:
        return replace(self, backward=replace(self.backward, **{name: stage}))


RIGHT: Final = Passes()


@dataclass(frozen=True)
class Place:
    """One tensor at one point of the pipeline.

    Args:
        words: what it is, in words.
        kind: what its axes are.
        stages: those it may be in: a tensor's with one reader also that reader.
        build: (edit, pipeline) -> the pipeline in which the edit is applied there.
        name: of the tensor.
        own_space: whether it can be wrong in ways in which no place before it can.
        as_it_is: whether the mistake is one by itself: the difference it makes is edited.
    """

    words: str
    stages: tuple[str, ...]
    kind: Kind
    build: Callable[[Edit, Passes], Passes]
    name: str
    own_space: bool = True
    as_it_is: bool = False


KINDS: Final[dict[str, Kind]] = {
    **dict.fromkeys(("q", "k", "w", "qg", "kg"), Kind.KEYS),
    **dict.fromkeys(("g", "G", "dG_state", "dG_wy", "dG", "dg"), Kind.GATES),
    **dict.fromkeys(("v", "u", "v_new", "o"), Kind.VALUES),
    **dict.fromkeys(("Aqk", "Akk", "R", "dAqk", "dAkk"), Kind.MATRIX),
    **dict.fromkeys(("h", "final_state", "dh", "d_initial_state"), Kind.STATE),
    **dict.fromkeys(("dq_state", "dk_state", "dw", "dk_wy", "dq_head", "dk_head"), Kind.KEYS),
    **dict.fromkeys(("dv_local", "dv_new", "dv"), Kind.VALUES),
    **dict.fromkeys(("beta", "dbeta_wy", "dbeta"), Kind.SCALAR),
}
HELD: Final = {**HELD_AS, "final_state": "S", "d_initial_state": "dS"}
_WORDS: Final = {
    "G": "G (the cumulative gate)",
    "Aqk": "Aqk (scores of queries and keys)",
    "Akk": "Akk (scores of keys and keys)",
    "R": "R (the inverse of I + Akk)",
    "w": "w (the keys with which the update reads the state)",
    "u": "u (the values after the solve)",
    "qg": "qg (the queries with which o reads the state)",
    "kg": "kg (the keys with which the state is written)",
    "h": "the state before the chunk, as o reads it,",
    "v_new": "v_new as o reads it",
    "final_state": "the state after the chunk",
}
_READERS: Final = {"scores": "the scores", "wy": "w, u, qg and kg", "state": "the state's update"}


def _written(stage: str, name: str) -> Place:
    """A tensor as its stage leaves it, for all that read it."""
    held = HELD.get(name, name)

    def build(edit: Edit, pipeline: Passes) -> Passes:
        right: Stage = getattr(pipeline.forward, stage)

        def wrong(c: Chunk) -> None:
            right(c)
            setattr(c, held, edit(getattr(c, held), c))

        return pipeline.with_forward(stage, wrong)

    return Place(
        _WORDS.get(name, name), stages_of(stage, name, SIGNATURES), KINDS[name], build, name
    )


def stages_of(writer: str, name: str, signatures: Mapping[str, Signature]) -> tuple[str, ...]:
    readers = [
        stage
        for stage, signature in signatures.items()
        if name in signature.reads and stage != writer
    ]
    return (writer, *readers) if len(readers) == 1 else (writer,)


def _read(stage: str, name: str) -> Place:
    """A tensor as one stage reads it; others read the right one."""
    written = [HELD.get(found, found) for found in SIGNATURES[stage].writes]

    def build(edit: Edit, pipeline: Passes) -> Passes:
        right: Stage = getattr(pipeline.forward, stage)

        def wrong(c: Chunk) -> None:
            seen = seen_with(c, name, edit)
            right(seen)
            vars(c).update({held: getattr(seen, held) for held in written})

        return pipeline.with_forward(stage, wrong)

    return Place(f"{name} as {_READERS[stage]} read it", (stage,), KINDS[name], build, name)


def seen_with(c: Chunk, name: str, edit: Edit) -> Chunk:
    seen = copy.copy(c)
    if name in TOKENS:
        seen.tokens = replace(c.tokens, **{name: edit(getattr(c.tokens, name), c)})
    else:
        setattr(seen, name, edit(getattr(c, name), c))
    return seen


def _given(name: str) -> Place:
    """An input, for all stages."""

    def build(edit: Edit, pipeline: Passes) -> Passes:
        right = pipeline.forward.cumsum

        def wrong(c: Chunk) -> None:
            c.tokens = seen_with(c, name, edit).tokens
            right(c)

        return pipeline.with_forward("cumsum", wrong)

    return Place(name, ("call",), KINDS[name], build, name)


def _given_state(edit: Edit, pipeline: Passes) -> Passes:
    """S_0, of the first chunk of every sequence."""
    right, first = pipeline.forward.cumsum, [True]

    def wrong(c: Chunk) -> None:
        if first:
            first.clear()
            c.S = edit(c.S, c)
        right(c)

    return pipeline.with_forward("cumsum", wrong)


def _carried(edit: Edit, pipeline: Passes) -> Passes:
    right = pipeline.forward.state

    def wrong(c: Chunk) -> None:
        carried = c.S * c.decay(slice(-1, None)).transpose(-1, -2)
        right(c)
        c.S = c.S + (edit(carried, c) - carried)

    return pipeline.with_forward("state", wrong)


def _returned(edit: Edit, pipeline: Passes) -> Passes:
    """S_T alone: every chunk starts from the right state."""
    right, kept = pipeline.forward.state, list[Tensor]()

    def wrong(c: Chunk) -> None:
        c.S = kept.pop()[: len(c.S)] if kept else c.S
        right(c)
        kept.append(c.S)
        c.S = edit(c.S, c)

    return pipeline.with_forward("state", wrong)


def _state_read(edit: Edit, pipeline: Passes) -> Passes:
    """The state before a chunk as its products read it; what is carried on is right."""
    right = pipeline.forward.state

    def wrong(c: Chunk) -> None:
        before = c.S
        c.S = edit(before, c)
        lost = (before - c.S) * c.decay(slice(-1, None)).transpose(-1, -2)
        right(c)
        c.S = c.S + lost

    return pipeline.with_forward("state", wrong)


def _corrected(edit: Edit, pipeline: Passes) -> Passes:
    """v_new, for the state and for o."""
    right = pipeline.forward.state

    def wrong(c: Chunk) -> None:
        right(c)
        changed = edit(c.v_new, c)
        c.S = c.S + c.dot(c.kg.transpose(-1, -2), changed - c.v_new)
        c.v_new = changed

    return pipeline.with_forward("state", wrong)


def _not_updated(edit: Edit, pipeline: Passes) -> Passes:
    right = pipeline.forward.state

    def wrong(c: Chunk) -> None:
        before = c.S
        right(c)
        c.S = c.S + edit(before - c.S, c)

    return pipeline.with_forward("state", wrong)


def _score_rows(edit: Edit, pipeline: Passes) -> Passes:
    return pipeline.with_forward("scores", lambda c: _scored(c, edit, None))


def _score_columns(edit: Edit, pipeline: Passes) -> Passes:
    return pipeline.with_forward("scores", lambda c: _scored(c, None, edit))


def _scored(c: Chunk, rows: Edit | None, columns: Edit | None) -> None:
    """The right stage with other operands of the decayed products."""
    k = c.tokens.k
    (left_q, left_k) = (x if rows is None else rows(x, c) for x in (c.tokens.q, c.tokens.k))
    right = k if columns is None else columns(k, c)
    qk, kk = decayed_products(c, torch.stack((left_q, left_k), dim=-1), right).unbind(-1)
    c.Aqk, c.Akk = c.scale * qk, (c.tokens.beta[..., None] * kk).tril(-1)


def _read_after(edit: Edit, pipeline: Passes) -> Passes:
    """o reads the state of the chunk's end."""
    right = pipeline.forward.output

    def wrong(c: Chunk) -> None:
        seen = seen_with(c, "h", lambda h, c: h + edit(c.S - h, c))
        right(seen)
        c.o = seen.o

    return pipeline.with_forward("output", wrong)


_AS_IT_IS: Final = {"own_space": False, "as_it_is": True}
FORWARD_PLACES: Final = (
    _written("output", "o"),
    Place("S_T", ("state",), Kind.STATE, _returned, "final_state", own_space=False),
    _written("state", "final_state"),
    Place("what S_T keeps of the state before", ("state",), Kind.STATE, _carried, "S"),
    _written("state", "h"),
    _written("wy", "qg"),
    _written("scores", "Aqk"),
    _written("wy", "kg"),
    _written("wy", "w"),
    _written("wy", "u"),
    _written("state", "v_new"),
    Place("the state before the chunk, as its products read it,", ("state",), Kind.STATE,
          _state_read, "h"),
    Place("v_new (the corrected values)", ("state",), Kind.VALUES, _corrected, "v_new",
          own_space=False),
    _written("scores", "Akk"),
    _written("solve", "R"),
    Place("the state after the chunk is that before it: it is not updated", ("state",), Kind.STATE,
          _not_updated, "S", **_AS_IT_IS),
    Place("o reads the state after its chunk, not that before it", ("output",), Kind.STATE,
          _read_after, "h", **_AS_IT_IS),
    Place("the initial state", ("call",), Kind.STATE, _given_state, "initial_state"),
    *(_given(name) for name in TOKENS),
    *(_read("scores", name) for name in ("q", "k", "beta", "G")),
    *(_read("wy", name) for name in ("q", "k", "beta", "G")),
    _read("state", "G"),
    Place("the later token's factor in the scores", ("scores",), Kind.KEYS, _score_rows, "k"),
    Place("the earlier token's factor in the scores", ("scores",), Kind.KEYS, _score_columns, "k"),
    _written("cumsum", "G"),
)  # fmt: skip
"""The simplest first: of mistakes with the same outputs on every input, the first is named."""
