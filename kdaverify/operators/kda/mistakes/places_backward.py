"""Where a backward can be wrong: tensors that stages write, forward ones that they read."""

from __future__ import annotations

from typing import Final

from kdaverify.operators.kda.mistakes.changes import Kind
from kdaverify.operators.kda.mistakes.places import (
    HELD,
    KINDS,
    Edit,
    Passes,
    Place,
    seen_with,
    stages_of,
)
from oracles.backward_stages import BACKWARD_SIGNATURES
from oracles.chunk_backward import BackwardStage, ChunkGradients

_BACKWARD_STAGES: Final = {
    "dv_local": "o in v_new",
    "dA": "o in Aqk",
    "state_bwd": "the state's recurrence",
    "dqkwg": "qg, kg and the state's decay",
    "wy_bwd": "w and u",
    "intra_bwd": "the scores",
    "cumsum_bwd": "the cumulative gate",
}
_BACKWARD_WORDS: Final = {
    "dv_local": "the part of dv_new that o gives",
    "dh": "the gradient of the state as products read it",
    "d_initial_state": "the gradient of the state, as it is carried to the chunk before,",
    "dq_state": "the part of dq that passes through the state",
    "dk_state": "the part of dk that passes through the state",
    "dG_state": "the part of dG that passes through the state",
    "dk_wy": "the part of dk that passes through the state and w",
    "dG_wy": "the part of dG that passes through the state and w",
    "dbeta_wy": "the part of dbeta that passes through w and u",
    "dq_head": "dq",
    "dk_head": "dk",
    "dG": "dG (the gradient of the cumulative gate)",
}


def _written_back(stage: str, name: str) -> Place:
    held = HELD.get(name, name)

    def build(edit: Edit, pipeline: Passes) -> Passes:
        right: BackwardStage = getattr(pipeline.backward, stage)

        def wrong(b: ChunkGradients) -> None:
            right(b)
            setattr(b, held, edit(getattr(b, held), b.c))

        return pipeline.with_backward(stage, wrong)

    return Place(
        _BACKWARD_WORDS.get(name, name),
        stages_of(stage, name, BACKWARD_SIGNATURES),
        KINDS[name],
        build,
        name,
    )


def _read_back(stage: str, name: str) -> Place:
    """A tensor of the forward as one stage of the backward reads it."""

    def build(edit: Edit, pipeline: Passes) -> Passes:
        right: BackwardStage = getattr(pipeline.backward, stage)

        def wrong(b: ChunkGradients) -> None:
            kept = b.c
            b.c = seen_with(kept, name, edit)
            right(b)
            b.c = kept

        return pipeline.with_backward(stage, wrong)

    return Place(
        f"{name} as the backward of {_BACKWARD_STAGES[stage]} reads it",
        (stage,),
        KINDS[name],
        build,
        name,
    )


def _given_back(edit: Edit, pipeline: Passes) -> Passes:
    """The decayed part of the gradient of the state alone."""
    right = pipeline.backward.state_bwd

    def wrong(b: ChunkGradients) -> None:
        carried = b.dS * b.c.decay(slice(-1, None)).transpose(-1, -2)
        right(b)
        b.dS = b.dS + (edit(carried, b.c) - carried)

    return pipeline.with_backward("state_bwd", wrong)


_FINAL: Final = (
    ("intra_bwd", "dq_head"),
    ("intra_bwd", "dk_head"),
    ("wy_bwd", "dv"),
    ("cumsum_bwd", "dg"),
    ("intra_bwd", "dbeta"),
)
_BACKWARD_WRITES: Final = (
    *_FINAL,
    *(
        (stage, name)
        for stage, signature in BACKWARD_SIGNATURES.items()
        for name in signature.writes
        if name in KINDS and (stage, name) not in _FINAL
    ),
)
BACKWARD_PLACES: Final = (
    *(_written_back(stage, name) for stage, name in _BACKWARD_WRITES),
    Place(
        "what dS_0 keeps of the gradient of the state after it",
        ("state_bwd",),
        Kind.STATE,
        _given_back,
        "dS",
    ),
    *(
        _read_back(stage, name)
        for stage, signature in BACKWARD_SIGNATURES.items()
        for name in signature.reads
        if name in KINDS and not name.startswith("d") and name != "g"
    ),
)
