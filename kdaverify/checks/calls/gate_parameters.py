"""Gradients of the parameters of a gate that the kernel activates: sums over all tokens.

Math: with g = f(A_log, x + dt_bias), dL/ddt_bias = sum dx and dL/dA_log = sum dx (dg/dA_log) /
(dg/dx), of the kernel's own dx, which `gradients` tests. What is summed has the roundings of dx,
and the sum those of its additions (Higham, Accuracy and Stability, 2002, 4.2).

They were not tested at all: a kernel was accepted whose ddt_bias was that of the first batch entry.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.formats import FORMATS, format_of
from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.execute import watched
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.status import Status
from oracles.gate_activation import GateActivation

BATCH: Final = 3
ROUNDINGS: Final = 4
"""Of a term: dg, the slope, dx and one more where it is made in another way than dx."""
ADDED: Final = FORMATS["fp32"].precision


def _summed(case: CallRuleCase) -> list[Outcome]:
    case = replace(case, problem=case.beside(B=BATCH, gate="log-sigmoid"))
    activation: GateActivation | None = case.adapter.conventions.activation
    found = watched(
        lambda: case.adapter.parameter_gradients(case.inputs.copied(), case.cotangents), "call"
    )
    if activation is None or not activation.parameters or not found:
        raise Unreachable("its gate has no parameters that have gradients")
    x = activation.there(case.adapter.received(case.inputs).g.double())
    return [_judged(name, found[name], found["g"], activation, x) for name in activation.parameters]


def _judged(name: str, found: Tensor, dx: Tensor, activation: GateActivation, x: Tensor) -> Outcome:
    """A gradient against the sum of its terms, with a proven bound."""
    terms = dx.double() * activation.parameter_slope(name, x)
    axes = (0, 1) if name == "dt_bias" else (0, 1, 3)
    wanted, size = terms.sum(axes), terms.abs().sum(axes)
    count = terms.numel() / wanted.numel()
    fmt = format_of(dx.dtype)
    bound = size * (ROUNDINGS * 2.0**-fmt.precision + count * 2.0**-ADDED) + fmt.min_normal * count
    gap = (found.double() - wanted).abs()
    share = (gap / bound).nan_to_num(nan=torch.inf)
    head = int(share.flatten(1).amax(1).argmax() if share.ndim > 1 else share.argmax())
    worst = float(share.max())
    said = (
        f"d{name}: error {float(gap[head].max()):.3g} in head {head}, proven bound"
        f" {float(bound[head].max()):.3g} of the sum over tokens of the kernel's own dg"
        f" ({worst:.3g}x tolerance)"
    )
    return Outcome(f"d{name}", Status.FAIL if worst > 1 else Status.PASS, said, excess=worst)


RULES: Final = (
    CallRule("gate-parameters-backward",
             "gradients of A_log and dt_bias are the sums over all tokens, entries and channels of"
             " what each dg contributes",
             "sums over one batch entry, one head of a group, or tiles without their tail",
             _summed, size="tails", packed=False, sequences=True, delta=True, spare=False,
             backward=True, inside=True, parameters=True),
)  # fmt: skip
