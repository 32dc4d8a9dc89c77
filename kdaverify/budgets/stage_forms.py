"""The stages that chunk kernels expose: of a gate a channel, and of one gate a head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.budgets import scalar_decay
from kdaverify.budgets.contract import Contract
from oracles.backward_stages import BACKWARD_SIGNATURES, SUMMED, run_backward_stages
from oracles.chunk import STAGES, Stages
from oracles.chunk_backward import BACKWARD, BackwardStage, BackwardStages, ChunkGradients
from oracles.inputs import Inputs
from oracles.stages import SIGNATURES, Named, Signature, run_stages


@dataclass(frozen=True)
class StageForm:
    """How a pipeline is cut into stages.

    Args:
        name: of it.
        forward, backward: the signatures, in order.
        stages, backward_stages: what the stages compute.
        sizes: the backward with every difference a sum, for the sizes of terms.
        summed: what the backward sums over the value heads of a key head, and of which.
    """

    name: str
    forward: Mapping[str, Signature]
    backward: Mapping[str, Signature]
    stages: Stages
    backward_stages: BackwardStages
    sizes: BackwardStages
    summed: Mapping[str, str]

    def run(
        self, inputs: Inputs, given: Named, covers: tuple[str, ...] = (), **how: Any
    ) -> dict[str, Tensor]:
        """Runs some stages of the forward or of the backward, as `oracles.stages.run_stages` and
        `run_backward_stages` do; all of the forward without `covers`.
        """
        own: dict[str, Any] = {"stages": self.stages, "signatures": self.forward}
        run: Callable[..., dict[str, Tensor]] = run_stages
        if covers and covers[0] in self.backward:
            own = {"stages": self.backward_stages, "signatures": self.backward}
            run = partial(run_backward_stages, summed=self.summed)
        return run(inputs, given, covers=covers or (*self.forward,), **own | how)

    @property
    def order(self) -> tuple[str, ...]:
        """Every tensor that a stage writes, in order."""
        every = (*self.forward.values(), *self.backward.values())
        return tuple(name for signature in every for name in signature.writes)


def dv_local(b: ChunkGradients) -> None:
    """Math: VJP of 3.6 in v_new, scores made again. Writes dv_new, the part within the chunk."""
    c = b.c
    products = b.dot(c.tokens.q, c.tokens.k.transpose(-1, -2))
    c.Aqk = (products * scalar_decay.pairs(c)).tril()
    scalar_decay.dv_local(b)


def dqkwg(b: ChunkGradients, *, own: BackwardStage = scalar_decay.dqkwg) -> None:
    """Math: VJP of 3.6 in q k^T, and of 3.4, 3.5 and 3.6 in what they read of q, k, h."""
    scalar_decay.dA(b)
    own(b)
    b.dG_part = b.dG


def wy_bwd(b: ChunkGradients, *, own: BackwardStage = scalar_decay.wy_bwd) -> None:
    """Math: VJP of 3.3, 3.4 and of 3.2 in k k^T: dv, dbeta, and their own parts of dk and dG."""
    b.dk = torch.zeros_like(b.c.tokens.k)
    b.dG = torch.zeros_like(b.dk[..., :1])
    own(b)
    b.dk = b.store("dk_added", b.dk[..., -1])


def added(b: ChunkGradients) -> None:
    """Math: dG, the sum of its parts."""
    b.dG = b.store("dG", b.dG_part + b.dG)


CHANNEL: Final = StageForm(
    "a gate a channel", SIGNATURES, BACKWARD_SIGNATURES, STAGES, BACKWARD, BACKWARD, SUMMED
)
_OF_HEADS: Final = replace(
    scalar_decay.BACKWARD, dv_local=dv_local, dqkwg=dqkwg, wy_bwd=wy_bwd, intra_bwd=added
)
HEAD: Final = StageForm(
    "one gate a head",
    forward={
        "cumsum": Signature(("g",), ("G",)),
        "scores": Signature(("k", "beta", "G"), ("Akk",)),
        "solve": Signature(("Akk",), ("R",)),
        "wy": Signature(("k", "v", "beta", "G", "R"), ("w", "u")),
        "state": Signature(("k", "G", "w", "u", "initial_state"), ("h", "v_new", "final_state")),
        "output": Signature(("q", "k", "G", "h", "v_new"), ("o",)),
    },
    backward={
        "dv_local": Signature(("q", "k", "G", "do"), ("dv_local",)),
        "state_bwd": Signature(
            ("q", "k", "G", "w", "do", "dv_local", "d_final_state"),
            ("dh", "dv_new", "d_initial_state"),
        ),
        "dqkwg": Signature(
            ("q", "k", "G", "h", "v_new", "do", "dh", "dv_new"),
            ("dq_done", "dk_part", "dw", "dG_part", "dq", "dk_done"),
        ),
        "wy_bwd": Signature(
            ("k", "v", "beta", "G", "R", "dv_new", "dw"),
            ("dk_wy", "dv", "dbeta", "dG_wy", "dk_added"),
        ),
        "intra_bwd": Signature(("dG_part", "dG_wy"), ("dG",)),
        "cumsum_bwd": Signature(("g", "dG"), ("dg",)),
    },
    stages=scalar_decay.FORWARD,
    backward_stages=_OF_HEADS,
    sizes=replace(
        _OF_HEADS,
        dqkwg=partial(dqkwg, own=partial(scalar_decay.dqkwg, minus=1.0)),
        wy_bwd=partial(wy_bwd, own=partial(scalar_decay.wy_bwd, minus=1.0)),
    ),
    summed={"dq": "dq_done", "dk_done": "dk_part", "dk_added": "dk_wy"},
)
"""The backward's scores are those of the forward, made again; what passes through w and u has
tensors of its own, which the caller adds: dk is dk_done + dk_added."""


def form_of(contract: Contract) -> StageForm:
    """How kernels of a contract are cut."""
    return HEAD if contract.decay == "scalar" else CHANNEL
