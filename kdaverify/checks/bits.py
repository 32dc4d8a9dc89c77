"""Two calls of one kernel whose results agree to the bit, whatever its arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.isolation.arena import same
from kdaverify.budgets.backward import emulate_gradients
from kdaverify.budgets.constants import GAIN
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.ensemble import ContractOverflow, emulate
from kdaverify.budgets.formats import FORMATS, Format
from kdaverify.checks.execute import CallError, execute
from kdaverify.checks.gradients import run_backward
from kdaverify.checks.outcome import Outcome, skipped
from kdaverify.checks.place import first_true, place
from kdaverify.checks.status import Status
from kdaverify.problems import Problem
from oracles.autograd import ForwardOnlyError
from oracles.gradients import Cotangents
from oracles.inputs import Inputs
from oracles.tensors import OUTPUTS

UNREACHED: Final = 2.0**-100
"""Formats whose normal numbers go down to here lose no bits on the way from the values that
problems have."""


@dataclass(frozen=True)
class BitwiseCall:
    """A call, there alone or, with cotangents, there and back."""

    inputs: Inputs
    given: Cotangents | None = None


def everywhere(_: str, found: Tensor) -> Tensor:
    return torch.ones_like(found, dtype=torch.bool)


@dataclass(frozen=True)
class Relation:
    """What the results of a second call are of those of the first.

    Args:
        factors: powers of two that results are multiplied by, by name; 1 where not named.
        alike: (name, result) -> where it is compared.
    """

    first: BitwiseCall
    second: BitwiseCall
    factors: Mapping[str, float] = field(default_factory=dict[str, float])
    alike: Callable[[str, Tensor], Tensor] = everywhere

    def factor(self, name: str) -> float:
        return self.factors.get(name, 1.0)


def same_bits(adapter: Adapter, problem: Problem, relation: Relation) -> list[Outcome]:
    """Tests both calls and compares to the bit.

    Bits are demanded wherever every reference kernel that rounds keeps them: the reference ensemble
    is run only where a kernel does not.

    Args:
        problem: whose sizes the calls have.
    """
    exposed = adapter.exposes(problem)
    try:
        first, second = (_run(adapter, call, exposed) for call in (relation.first, relation.second))
        if not adapter.answers:
            return skipped("exported, not judged")
        other = {
            name: _differs(relation, name, first[name], found) for name, found in second.items()
        }
        if any(bool(mask.any()) for mask in other.values()):
            again = _run(adapter, relation.first, exposed)
            if any(not same(first[name], again[name]) for name in first):
                return skipped("its results are not the same bits at every call")
            kept = _kept(adapter, problem, relation)
            other = {name: mask & kept[name] for name, mask in other.items()}
    except (ForwardOnlyError, ContractOverflow) as reason:
        return skipped(str(reason))
    except CallError as fault:
        return [Outcome(fault.output, fault.status, fault.message)]
    compared = {name: relation.alike(name, found) for name, found in second.items()}
    judged = [
        exactly(
            name,
            other[name],
            found.double(),
            relation.second.inputs,
            wanted=relation.factor(name) * first[name].double(),
            compared=compared[name],
        )
        for name, found in second.items()
        if bool(compared[name].any())
    ]
    return judged or skipped("nothing is left to compare")


def subnormals(storage: Format) -> str | None:
    """Why a power of two may cost bits of kernels that store in this format; else None."""
    if storage.min_normal <= UNREACHED:
        return None
    return (
        f"what is stored in {storage.name} may be subnormal, and a power of two then costs bits of"
        " any kernel"
    )


def exactly(
    name: str, wrong: Tensor, found: Tensor, inputs: Inputs, *, wanted: Tensor, compared: Tensor
) -> Outcome:
    """The result for one output that is to be `wanted` to the bit.

    Args:
        wrong: where it is not.
        inputs: of the call that gave `found`.
        wanted: of its shape.
        compared: where it was looked at.
    """
    number = int(compared.sum())
    if not bool(wrong.any()):
        return Outcome(name, Status.PASS, f"{name}: exact in all {number} elements")
    lost = wrong & ~torch.isfinite(found)
    status = Status.NONFINITE if bool(lost.any()) else Status.FAIL
    at = first_true(lost if bool(lost.any()) else wrong)
    where = place(name, at, found.shape, inputs)
    message = f"{name}: {int(wrong.sum())} of {number} elements are not exact\n  first at {where}"
    return Outcome(
        name,
        status,
        f"{message}\n  got {found.flatten()[at]:.9g}, wanted {wanted.flatten()[at]:.9g}",
    )


def _run(adapter: Adapter, call: BitwiseCall, exposed: tuple[str, ...]) -> dict[str, Tensor]:
    if call.given is None:
        return execute(adapter, call.inputs, exposed).outputs
    return run_backward(adapter, call.inputs, call.given)


def _differs(relation: Relation, name: str, first: Tensor, second: Tensor) -> Tensor:
    """Where bits are lost below the normal numbers: a kernel may keep more than references."""
    factor = relation.factor(name)
    wanted = factor * first.double()
    other = (wanted != second.double()) & relation.alike(name, second)
    if abs(factor) == 1.0:
        return other
    tiny = torch.finfo(first.dtype).tiny
    # Strictly above: what is rounded up to the smallest normal number had the spacing of the
    # subnormal ones.
    return other & (torch.minimum(first.double().abs(), wanted.abs()) > tiny)


def _kept(adapter: Adapter, problem: Problem, relation: Relation) -> dict[str, Tensor]:
    """Where all reference kernels keep the bits, above underflow if the calls' sizes differ.

    Raises:
        ContractOverflow: a reference kernel is finite at one of the two calls alone.
    """
    back = relation.first.given is not None
    contract = (adapter.backward_contract if back else adapter.contract)(problem.dtype)
    first, second = (
        _ensemble(adapter, call, contract, problem.dtype)
        for call in (relation.first, relation.second)
    )
    if first.keys() != second.keys():
        raise ContractOverflow(
            f"one of the two calls overflows in a conforming kernel of {contract.name}"
        )
    lost = (GAIN * max(problem.K, problem.V) if back else problem.K) * contract.vanishing

    def kept(name: str) -> Tensor:
        factor = relation.factor(name)
        pairs = [(first[member][name], second[member][name]) for member in first]
        exact = torch.stack([factor * a == b for a, b in pairs]).all(0)
        if abs(factor) == 1.0:
            return exact
        return exact & torch.stack([(a.abs() > lost) & (b.abs() > lost) for a, b in pairs]).all(0)

    return {name: kept(name) for name in next(iter(first.values()))}


def _ensemble(
    adapter: Adapter, call: BitwiseCall, contract: Contract, dtype: str
) -> dict[str, dict[str, Tensor]]:
    """The results of every reference kernel that stays finite, by its name."""
    received, io = adapter.received(call.inputs), FORMATS[dtype]
    if call.given is None:
        runs = emulate(received, contract, io).rounded
        return {
            member: dict(zip(OUTPUTS, outputs, strict=True)) for member, outputs in runs.items()
        }
    return {
        member: run.named()
        for member, run in emulate_gradients(received, call.given, contract, io).rounded.items()
    }
