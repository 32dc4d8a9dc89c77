"""Ports that repeat key heads for their value heads in their own format: autograd stores dq and dk
of every value head before it sums them, and stores each sum where heads are repeated by an index.
They conform; a sum over other heads, or in a narrower format, does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, reduce
from itertools import combinations
from typing import Literal

import pytest
import torch
from torch import Tensor

from kdaverify.budgets.backward import emulate_gradients
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.gradient_standard import gradient_standard
from kdaverify.budgets.standard import Reference
from kdaverify.problems import Problem, cotangents
from oracles.gradients import Cotangents
from oracles.inputs import Inputs
from oracles.recurrence import recurrence

H, HV = 2, 8
Sum = Callable[[Tensor], Tensor]
CONTRACTS: dict[str, Literal["channel", "head"]] = {
    "recurrent-fp32": "head",
    "chunk32-fp32[decay:scalar]": "head",
    "chunk64-fp32": "channel",
}


def _problem(contract: str) -> Problem:
    return Problem(
        B=1,
        T=40,
        H=H,
        HV=HV,
        K=16,
        V=16,
        dtype="bf16",
        gates=CONTRACTS[contract],
        gate="log-sigmoid",
        key="random",
        beta="uniform",
        state="random",
        value="normal",
        seed=1,
    )


@cache
def _tested(name: str) -> tuple[Inputs, Cotangents, Reference]:
    problem = _problem(name)
    x, loss = problem.inputs(), cotangents(problem, "both")
    contract, io = contract_from_name(name), FORMATS["bf16"]
    return (
        x,
        loss,
        gradient_standard(x, loss, contract, io, emulate_gradients(x, loss, contract, io)),
    )


@torch.inference_mode(mode=False)
def _of_value_heads(x: Inputs, loss: Cotangents) -> dict[str, Tensor]:
    """[B, T, HV, K] dq and dk of every value head, stored in bf16, by automatic differentiation."""
    wide = {
        name: getattr(x, name).clone().repeat_interleave(HV // H, 2).requires_grad_()
        for name in ("q", "k")
    }
    of_heads = Inputs(
        **wide,
        v=x.v,
        g=x.g,
        beta=x.beta,
        scale=x.scale,
        initial_state=x.initial_state,
    )
    with torch.enable_grad():
        outputs = recurrence(of_heads, dtype=torch.float32)
    found = torch.autograd.grad(outputs, [*wide.values()], list(loss.of(x, torch.float32)))
    return dict(zip(("dq", "dk"), found, strict=True))


def _worst(contract: str, over_heads: Sum) -> dict[str, float]:
    x, loss, reference = _tested(contract)
    found = {name: over_heads(y.float()).bfloat16() for name, y in _of_value_heads(x, loss).items()}

    def ratio(name: str, value: Tensor) -> float:
        budget, exact = reference.budgets[name], reference.exact(name)
        measured = budget.measure(exact.error(value.double()), exact)
        return max(budget.ratios(measured).values())

    return {name: ratio(name, value) for name, value in found.items()}


def _groups(x: Tensor) -> Tensor:
    return x.unflatten(2, (H, HV // H))


@pytest.mark.parametrize("contract", CONTRACTS)
def test_heads_may_be_stored_before_they_are_summed(contract: str) -> None:
    assert max(_worst(contract, lambda x: _groups(x).sum(3)).values()) <= 1


@pytest.mark.parametrize("name", CONTRACTS)
@pytest.mark.parametrize("gradient", ["dq", "dk"])
def test_every_sum_over_heads_rounds_elsewhere(name: str, gradient: str) -> None:
    """Stages of one gate store no dq and dk of single heads: there, stored heads had no effect."""
    x, loss, _ = _tested(name)
    runs = emulate_gradients(x, loss, contract_from_name(name), FORMATS["bf16"]).rounded
    plain = next(iter(runs))
    found = [runs[plain].named()[gradient]] + [
        run.named()[gradient] for member, run in runs.items() if "heads" in member
    ]
    assert len(found) == 4
    assert not any(torch.equal(a, b) for a, b in combinations(found, 2))


def _first_twice(x: Tensor) -> Tensor:
    return _groups(x).sum(3) + _groups(x)[:, :, :, 0]


WRONG: dict[str, Sum] = {
    "one head of a group": lambda x: _groups(x)[:, :, :, 0],
    "the last head of a group missing": lambda x: _groups(x)[:, :, :, :-1].sum(3),
    "a head counted twice": _first_twice,
    "the group of tiled heads": lambda x: torch.stack(x.split(H, 2)).sum(0),
    "heads averaged": lambda x: _groups(x).mean(3),
}


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("over_heads", WRONG.values(), ids=WRONG)
def test_a_sum_over_other_heads_is_rejected(contract: str, over_heads: Sum) -> None:
    assert min(_worst(contract, over_heads).values()) > 10


def _added_in_turn(heads: Iterable[Tensor]) -> Tensor:
    return reduce(torch.add, (x.bfloat16() for x in heads)).float()


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("step", [1, -1])
def test_heads_may_be_summed_one_by_one_in_the_format_returned(contract: str, step: int) -> None:
    found = _worst(contract, lambda x: _added_in_turn(_groups(x).unbind(3)[::step]))
    assert max(found.values()) <= 1


def test_automatic_differentiation_of_an_index_sums_one_by_one() -> None:
    """The sum that is admitted is torch's own."""
    x = torch.randn(3, H, 5, generator=torch.Generator().manual_seed(0)).bfloat16()
    d_heads = torch.randn(3, HV, 5, generator=torch.Generator().manual_seed(1)).bfloat16()
    (found,) = torch.autograd.grad(x.requires_grad_()[:, torch.arange(HV) // (HV // H)], x, d_heads)
    in_turn = _added_in_turn(d_heads.unflatten(1, (H, HV // H)).unbind(2))
    assert torch.equal(found.float(), in_turn)


def _truncated(x: Tensor) -> Tensor:
    return (x.float().view(torch.int32) & -(1 << 16)).view(torch.float32)


NARROWER: dict[str, Sum] = {
    "sums truncated": lambda x: reduce(
        lambda a, b: _truncated(a + b), map(_truncated, _groups(x).unbind(3))
    ),
    "sums of one bit less": lambda x: reduce(
        lambda a, b: _short(a + b), map(_short, _groups(x).unbind(3))
    ),
}


def _short(x: Tensor) -> Tensor:
    """Seven significant bits, to nearest."""
    mantissa, exponent = torch.frexp(x.float())
    return torch.ldexp((mantissa * 2**7).round() / 2**7, exponent)


@pytest.mark.parametrize("over_heads", NARROWER.values(), ids=NARROWER)
def test_a_sum_over_heads_in_less_than_their_format_is_over_tolerance(over_heads: Sum) -> None:
    assert max(_worst("chunk64-fp32", over_heads).values()) > 1
