"""NaN in an input, or an infinite cotangent, shows in what depends on it.

A training program looks for NaN in its loss, and a loss scale falls where a gradient is infinite:
a kernel that replaces either by a number lets a broken run go on.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.status import Status
from oracles.inputs import InputError

VALUES: Final = ("v", "x")
"""Inputs of which a row is in the sum of an output, whatever their other rows are."""
READ: Final = {"q": "dq", "x": "dx"}
"""Inputs whose row is multiplied by the cotangent of the same row."""


def _nan_shows(case: CallRuleCase) -> list[Outcome]:
    """The first row of the first request: its last query sees it under a causal mask too."""
    name = _first(case, VALUES)
    poisoned = getattr(case.inputs, name).clone()
    poisoned[0, 0] = torch.nan
    try:
        # a dataclass each
        there: Any = replace(case.inputs, **{name: poisoned})
    except InputError:
        raise Unreachable("its calls have finite numbers alone") from None
    out = case.exposed[0]
    of_keys = hasattr(case.problem, "pairs")
    last = case.problem.pairs[0][0] - 1 if of_keys else 0
    rows = case.run(there)[out][0, last]
    # kernels guard rows without keys by a sum above 0, and a sum of NaN is not above 0
    shown = ~rows.isfinite() | ((rows == 0).all(-1, keepdim=True) & of_keys)
    return [_outcome(out, shown, f"the first row of {name} is NaN")]


def _infinite_cotangent(case: CallRuleCase) -> list[Outcome]:
    """Of the last row, on the whole of it."""
    gradient = READ[_first(case, tuple(READ))]
    loss = {name: dy.clone() for name, dy in case.given.items()}
    name = next(iter(loss))
    loss[name][0, -1] = torch.inf
    rows = case.back(case.loss_of(loss))[gradient][0, -1]
    shown = (~rows.isfinite()).any(-1)
    return [_outcome(gradient, shown, f"the last row of {name} is infinite")]


def _first(case: CallRuleCase, names: tuple[str, ...]) -> str:
    own = case.inputs.signature.names()
    found = next((name for name in names if name in own), None)
    if found is None:
        raise Unreachable(f"it takes none of {', '.join(names)}")
    return found


def _outcome(name: str, shown: Tensor, where: str) -> Outcome:
    if bool(shown.all()):
        return Outcome(name, Status.PASS, f"{name}: not finite where {where}")
    count = int((~shown).sum())
    return Outcome(name, Status.FAIL, f"{name}: {count} elements of that row hide that {where}")


_rule = partial(CallRule, packed=False, spare=False, costly=True, once=True)
RULES: Final = (
    _rule("nan-shows", "NaN in the first row of v, or of x, makes what depends on it NaN",
          "values cleared, or clamped, where they are NaN", _nan_shows),
    _rule("cotangent-infinite",
          "an infinite cotangent of a row makes the gradient of q, or of x, in that row infinite or"
          " NaN",
          "incoming gradients that overflowed under a loss scale set to 0 or clamped",
          _infinite_cotangent, backward=True),
)  # fmt: skip
