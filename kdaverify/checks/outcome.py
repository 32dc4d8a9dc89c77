"""What one run of one problem came to, output by output."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.ensemble import ContractOverflow, emulate
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.standard import FLOAT64_ORACLE_PRECISION, Reference, standard
from kdaverify.checks.compare import Comparison, compare
from kdaverify.checks.digits import Recurrence
from kdaverify.checks.execute import CallError, dtype_name, execute
from kdaverify.checks.published.evidence import Again, Evidence
from kdaverify.checks.status import Status
from oracles.certified import UncertifiedError
from oracles.inputs import Inputs

# Writes of a token to its state, in all: above this, launching kernels on an accelerator costs less than it saves.
LARGE = 2**26
# An output that a conforming kernel may overflow in: the others of the same call are judged.
OVERFLOWS = "it overflows in an emulated kernel of the contract and none is finite in all outputs; not judged, unlike the others"


@dataclass(frozen=True)
class Outcome:
    """One output's result.

    Args:
        output: "o", "final_state", or "call" for what concerns the whole call.
        status: what is concluded.
        message: the comparison in words, or what the call did wrong, or why it was skipped.
        comparison: the figures, where there was something to compare.
        oracle: how the exact value was obtained, "" where none was needed.
        excess: what was found / what is allowed, where nothing was compared.
        digits_fewer: digits that a pass has fewer than the token recurrence; None for an unremarkable number.
        evidence: what others' standards need to see of it, where it is an output of a call.
    """

    output: str
    status: Status
    message: str
    comparison: Comparison | None = None
    oracle: str = ""
    excess: float | None = None
    digits_fewer: float | None = None
    evidence: Evidence | None = field(default=None, repr=False, compare=False)

    @property
    def ratio(self) -> float | None:
        """What was found / what is allowed; None where there is no figure."""
        return self.comparison.ratio if self.comparison else self.excess


def skipped(reason: str) -> list[Outcome]:
    return [Outcome("call", Status.SKIP, reason)]


def outcomes(adapter: Adapter, inputs: Inputs, produce: Callable[[], dict[str, Tensor]], *, cuts: tuple[int, ...] = ()) -> list[Outcome]:
    """Judges what `produce` returns as outputs of `inputs`.

    Args:
        adapter: the implementation; its contract sets the budget and `received` what the oracle sees.
        inputs: the call that the produced outputs answer, however they were obtained (in one run, in parts, one by one).
        produce: runs the kernel; returns the exposed outputs by name; may raise Misbehaviour.
        cuts: where `produce` cut the run, so that the legal kernels are cut there too.
    """
    try:
        produced = produce()
    except CallError as fault:
        return [Outcome(fault.output, fault.status, fault.message)]
    if not adapter.answers:
        return skipped("written down, not judged")
    dtype = dtype_name(inputs)
    received, contract, io = adapter.received(inputs), adapter.contract(dtype), FORMATS[dtype]

    def hold(x: Inputs) -> Reference:
        return standard(x, contract, io, lambda: emulate(x, contract, io, cuts=cuts, single=True), cuts=cuts)

    def again(other: Adapter) -> dict[str, Tensor]:
        return execute(other, inputs, tuple(produced)).outputs

    beside = Recurrence(received, contract, io)
    return judged(produced, received, lambda: held_at_fastest(received, contract, hold), again, beside)


def judged(
    produced: dict[str, Tensor],
    received: Inputs,
    hold: Callable[[], Reference],
    again: Again | None = None,
    recurrence: Recurrence | None = None,
) -> list[Outcome]:
    """Compares every output, or gradient, with what `hold` makes for it, or says why nothing can be concluded.

    Args:
        produced: tensors by name.
        received: the call that the kernel effectively got.
        hold: makes truth and budgets; may raise ContractOverflow or UncertifiedError.
        again: asks another implementation for the same, where tensors are the outputs of a call: others' standards then judge them too.
        recurrence: of the same call, to say which passes have fewer digits.
    """
    try:
        held = hold()
    except ContractOverflow as reason:
        return skipped(str(reason))
    except UncertifiedError as reason:
        return [Outcome("call", Status.ORACLE_UNCERTIFIED, str(reason))]
    known = {name: tensor for name, tensor in produced.items() if name in held.budgets}
    compared = [compare(name, tensor.to(held.device), held, received.on(held.device)) for name, tensor in known.items()]
    overflowing = [Outcome(name, Status.SKIP, f"{name}: {OVERFLOWS}") for name in produced if name not in known]

    def evidence(output: str) -> Evidence | None:
        if again is None:
            return None
        packed, exact, plain = received.cu_seqlens is not None, held.exact(output).high, held.budgets[output].plain
        return Evidence(output, dtype_name(received), packed, produced[output], exact, plain, again)

    def fewer(c: Comparison) -> float | None:
        return None if recurrence is None else recurrence.digits_fewer(c, held.exact(c.output))

    found = [
        Outcome(c.output, c.status, str(c), c, held.truth.method, digits_fewer=fewer(c), evidence=evidence(c.output)) for c in compared
    ]
    return [*found, *overflowing] if found else skipped("; ".join(outcome.message for outcome in overflowing))


def held_at_fastest(inputs: Inputs, contract: Contract, hold: Callable[[Inputs], Reference]) -> Reference:
    """What `hold` makes of the inputs, where it is made fastest and there is memory left: other processes use accelerators too."""
    *faster, last = _benches(inputs, contract)
    for bench in faster:
        with suppress(torch.OutOfMemoryError):
            return hold(inputs.on(bench))
        torch.accelerator.empty_cache()
    return hold(inputs.on(last))


def _benches(inputs: Inputs, contract: Contract) -> tuple[torch.device, ...]:
    """Where a case can be judged: large ones on an accelerator, if there is one and float64 is sharp enough; balls live on the CPU."""
    large = inputs.B * inputs.T * inputs.HV * inputs.K * inputs.V > LARGE
    on_accelerator = large and contract.operands.precision <= FLOAT64_ORACLE_PRECISION and torch.cuda.is_available()
    return (torch.device("cuda"), torch.device("cpu")) if on_accelerator else (torch.device("cpu"),)
