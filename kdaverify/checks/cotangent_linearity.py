"""Linearity: a backward is linear in the cotangents (math.md 7, law 13), to rounding, to the bit for powers of two, and from zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.isolation.arena import same
from kdaverify.budgets.backward import emulate_gradients
from kdaverify.budgets.family import ContractOverflow
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.linearity import defect, linearity_standard
from kdaverify.budgets.standard import GAIN
from kdaverify.checks.execute import Misbehaviour
from kdaverify.checks.gradients import run_backward
from kdaverify.checks.outcome import Outcome, judged, skipped
from kdaverify.checks.place import first_true, place
from kdaverify.checks.status import Status
from kdaverify.problems import Problem
from kdaverify.problems.cotangents import coarse_cotangents
from oracles.autograd import ForwardOnlyError
from oracles.gradients import GRADIENTS, Cotangents, combined
from oracles.inputs import Inputs

Law = Literal["sum", "power", "zero"]
LAWS: Final[tuple[Law, ...]] = ("sum", "power", "zero")
"""do1 - 2 do2 gives the sum of what each gives; 2^n do gives 2^n times the same bits; 0 gives exactly 0."""

UNREACHED: Final = 2.0**-100
"""Formats whose normal numbers go down to here lose no bits on the way from the values that problems have."""

FACTORS: Final = (1.0, -2.0, -1.0)
"""Of do1, do2 and do1 - 2 do2, which they add up to 0 with."""


def cotangent_linearity(adapter: Adapter, problem: Problem, *, law: Law, exponent: int = 0) -> list[Outcome]:
    """Runs the problem there and back with several cotangents and compares what comes back.

    Args:
        exponent: of the power of two for the law "power".
    """
    of = "both" if "final_state" in adapter.exposes(problem) else "o"
    inputs = problem.inputs()
    try:
        if law == "sum":
            return _sum(adapter, problem, inputs, of)
        return _power(adapter, problem, inputs, of, exponent) if law == "power" else _zero(adapter, problem, inputs, of)
    except (ForwardOnlyError, ContractOverflow) as reason:
        return skipped(str(reason))
    except Misbehaviour as fault:
        return [Outcome(fault.output, fault.status, fault.message)]


def _sum(adapter: Adapter, problem: Problem, inputs: Inputs, of: str) -> list[Outcome]:
    """Cotangents of few bits, so that their sum is exact in every format."""
    parts = [coarse_cotangents(problem, of, number) for number in range(2)]
    given = [*parts, combined(parts, FACTORS[:2])]
    runs = [run_backward(adapter, inputs, dy) for dy in given]
    found = defect(runs, FACTORS)
    received, contract = adapter.received(inputs), adapter.backward_contract(problem.dtype)
    return judged(found, received, lambda: linearity_standard(received, given, FACTORS, contract, FORMATS[problem.dtype]))


def _power(adapter: Adapter, problem: Problem, inputs: Inputs, of: str, exponent: int) -> list[Outcome]:
    """Bits are demanded wherever the rounding members of the family keep them: where nothing under- or overflows on the way."""
    storage = adapter.backward_contract(problem.dtype).operands
    if storage.min_normal > UNREACHED:
        return skipped(f"what is stored in {storage.name} on the way may be subnormal, and a power of two then costs bits of any kernel")
    given, factor = coarse_cotangents(problem, of, 0), 2.0**exponent
    scaled = combined([given], [factor])
    plain, found = (run_backward(adapter, inputs, dy) for dy in (given, scaled))
    other = {name: _differs(factor, plain[name], found[name]) & _keeps_its_bits(factor, plain[name]) for name in found}
    if any(bool(mask.any()) for mask in other.values()):
        again = run_backward(adapter, inputs, given)
        if any(not same(plain[name], again[name]) for name in plain):
            return skipped("its gradients are not the same bits at every call")
        kept = _kept_by_the_family(adapter, problem, (given, scaled), factor)
        other = {name: mask & kept[name] for name, mask in other.items()}
    return [_bits(name, mask, factor * plain[name].double(), found[name].double(), inputs) for name, mask in other.items()]


def _differs(factor: float, plain: Tensor, scaled: Tensor) -> Tensor:
    return factor * plain.double() != scaled.double()


def _keeps_its_bits(factor: float, plain: Tensor) -> Tensor:
    """Where the scaled element is a normal number of its type: a kernel may have more there than any member of the family."""
    return (factor * plain.double()).abs() >= torch.finfo(plain.dtype).tiny


def _kept_by_the_family(adapter: Adapter, problem: Problem, given: Sequence[Cotangents], factor: float) -> dict[str, Tensor]:
    """Where every member scales to the bit, and above what underflow may take."""
    received, contract, io = adapter.received(problem.inputs()), adapter.backward_contract(problem.dtype), FORMATS[problem.dtype]
    plain, scaled = (emulate_gradients(received, dy, contract, io).rounded for dy in given)
    if plain.keys() != scaled.keys():
        raise ContractOverflow(f"{factor:g} times the loss overflows in a legal kernel of {contract.name}")
    lost = GAIN * max(problem.K, problem.V) * contract.vanishing

    def kept(name: str) -> Tensor:
        pairs = [(plain[member].named()[name], scaled[member].named()[name]) for member in plain]
        return torch.stack([~_differs(factor, a, b) & (a.abs() > lost) & (b.abs() > lost) for a, b in pairs]).all(0)

    return {name: kept(name) for name in GRADIENTS}


def _zero(adapter: Adapter, problem: Problem, inputs: Inputs, of: str) -> list[Outcome]:
    found = run_backward(adapter, inputs, combined([coarse_cotangents(problem, of, 0)], [0.0]))
    return [_bits(name, x != 0, torch.zeros_like(x).double(), x.double(), inputs) for name, x in found.items()]


def _bits(name: str, wrong: Tensor, wanted: Tensor, found: Tensor, inputs: Inputs) -> Outcome:
    if not bool(wrong.any()):
        return Outcome(name, Status.PASS, f"{name}: exact in all {wrong.numel()} elements")
    lost = wrong & ~torch.isfinite(found)
    status = Status.NONFINITE if bool(lost.any()) else Status.FAIL
    at = first_true(lost if bool(lost.any()) else wrong)
    where = place(name, at, found.shape, inputs)
    message = f"{name}: {int(wrong.sum())} of {wrong.numel()} elements are not exact\n  first at {where}"
    return Outcome(name, status, f"{message}\n  got {found.flatten()[at]:.9g}, wanted {wanted.flatten()[at]:.9g}")
