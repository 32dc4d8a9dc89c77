"""Digits that a kernel has fewer than a token recurrence: tolerated, worth a warning.

A chunk form solves a triangular system and cancels; with coherent keys or beta = 2 every kernel of
its contract may be a thousand times less accurate than the recurrence that it stands for. Such a
kernel passes: the tolerance is what conforming kernels do. Whoever chooses between two designs
wants to know it all the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from torch import Tensor

from kdaverify.budgets.contract import Contract, contract_from_name
from kdaverify.budgets.formats import Format
from kdaverify.budgets.freedoms import plainest
from kdaverify.checks.compare import Comparison, relative_error
from kdaverify.checks.status import Status
from oracles.enclosure import Enclosure
from oracles.inputs import Inputs
from oracles.tensors import OUTPUTS, SIGNATURE

MOST: Final = 3.0
"""Digits that a pass may have fewer without a warning: less than half of what fp32 holds."""


def unremarkable(unit: float) -> float:
    """Digits that a pass may have fewer without a warning: MOST, or half its operands'.

    With three digits alone no kernel of bf16 operands, which hold 2.4, was ever warned of:
    chunk64-bf16 on identical keys with beta two and slow gates (T = 128) is off by 0.68 of the rms
    of o and 1.15 of that of the state, as its contract allows.

    Math: min(MOST, -log10(u) / 2)

    Args:
        unit: u, the unit roundoff of the operands.
    """
    return min(MOST, -math.log10(unit) / 2)


@dataclass(frozen=True)
class Recurrence:
    """The token recurrence beside one call.

    Args:
        inputs: what the kernel received.
        contract: what it declares.
        io: format of q, k, v and o.
    """

    inputs: Inputs
    contract: Contract
    io: Format

    def digits_fewer(self, compared: Comparison, exact: Enclosure) -> float | None:
        """Digits that a passing output has fewer than the recurrence's; None if unremarkable.

        Math: log10(e / max(e_recurrence, u)), with e the rms error over the rms of the exact
        output, e_recurrence that of the recurrence
            in the same formats, and u the unit roundoff of the contract's operands: what their
            format cannot hold is not lost.
        """
        unit = self.contract.operands.unit
        most = unremarkable(unit)
        if (
            compared.status is not Status.PASS
            or not self._is_another_form
            or not compared.relative > 10**most * unit
        ):
            return None
        # No recurrence is nearer than the exact values once rounded: where that excludes a warning,
        # as for o of 16 bits, none is run.
        if not SIGNATURE.is_state(compared.output):
            nearest = exact.error(self.io.round(exact.high))
        else:
            nearest = None
        if nearest is not None and not compared.relative > 10**most * relative_error(
            nearest, exact.high
        ):
            return None
        own = relative_error(
            exact.error(self._outputs[compared.output].double().to(exact.high.device)), exact.high
        )
        # A recurrence that overflows where the kernel does not is no standard.
        fewer = math.log10(compared.relative / max(own, unit)) if math.isfinite(own) else 0.0
        return fewer if fewer > most else None

    @property
    def _is_another_form(self) -> bool:
        return self.contract.form != "recurrent" and not self.contract.makes_softplus

    @cached_property
    def _outputs(self) -> dict[str, Tensor]:
        wide = "fp64" if self.contract.operands.name == "fp64" else "fp32"
        received = replace(
            contract_from_name(f"recurrent-{wide}"),
            gate=self.contract.gate,
            beta=self.contract.beta,
            qk=self.contract.qk,
        )
        return dict(zip(OUTPUTS, plainest(received, self.io).run(self.inputs), strict=True))
