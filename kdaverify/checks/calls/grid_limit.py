"""A pack may hold more sequences than an axis of a launch grid has places."""

from __future__ import annotations

import torch
from torch import Tensor

from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.execute import execute
from kdaverify.checks.outcome import Outcome
from oracles.signature import Role, TensorCall

PLACES = 65535


def _crowded(case: CallRuleCase) -> list[Outcome]:
    if case.problem.lengths is None:
        raise Unreachable("it takes no packs")
    if case.adapter.environment()["mode"] == "interpreted":
        raise Unreachable(f"an interpreter would take minutes over {PLACES} programs")
    x = case.inputs
    # A program a sequence and head, or a sequence alone.
    extra = PLACES // getattr(x, "HV", 1) + 1
    case.beside(lengths=(*case.problem.lengths, *[0] * extra))
    found = execute(case.adapter, _with_empties(x, extra), case.exposed).outputs
    seen = {
        name: tensor[: x.N] if x.signature.is_state(name) else tensor
        for name, tensor in found.items()
    }
    return same_or_right(
        case.run(), seen, case.judged, f"in a pack with {extra} empty sequences more"
    )


def _with_empties(x: TensorCall, extra: int) -> TensorCall:
    def longer(tensor: Tensor) -> Tensor:
        return torch.cat((tensor, tensor[-1:].expand(extra, *tensor.shape[1:])))

    return x.mapped(longer, Role.OFFSETS, Role.STATE)


RULES = (
    CallRule(
        "crowd",
        f"more than {PLACES} sequences times heads in a pack, nearly all empty",
        "limits of launch grids (L4)",
        _crowded,
        sequences=True,
        costly=True,
        once=True,
    ),
)
