"""What a contract declares beyond formats, and what it leaves open, decided for a kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from kdaverify.budgets.accelerator import exp_approximate, exp_astray, exp_of_vectors, exp_short
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.emulate import (
    Emulator,
    exp_base_2,
    running_cumsum_bwd,
    running_cumsum_in,
    substituted_in_order,
    summed_in_base_2,
)
from kdaverify.budgets.formats import Format
from kdaverify.budgets.solves import Dot
from kdaverify.budgets.sums import library
from oracles.chunk import STAGES

Exp = Callable[[Tensor], Tensor]


def plainest(contract: Contract, io: Format) -> Emulator:
    """The reference kernel that does what is declared, and elsewhere what a library does."""
    return Emulator(
        "library order", contract, io, dot=library(contract), exp=_exponential(contract)
    )


def _exponential(contract: Contract) -> Exp:
    if contract.exponential == "approximate":
        return _approximate(contract)
    return exp_base_2 if contract.exponential == "base-2" else torch.exp


def _approximate(contract: Contract) -> Exp:
    # Token by token the last bits that a unit leaves out add up; within a chunk all that it may be
    # off counts once.
    return exp_short if contract.form == "recurrent" else exp_approximate


def in_base_2(member: Emulator) -> Emulator:
    """The same kernel with a base-2 exponential unit and gates for it, where that is open."""
    if not _is_open(member):
        return member
    stages = replace(member.stages, cumsum=summed_in_base_2(member.stages.cumsum))
    return replace(member, name=f"{member.name}, base-2 exponential", exp=exp_base_2, stages=stages)


def approximately(member: Emulator) -> Emulator:
    """The same kernel with an approximate exponential unit, where that is open."""
    if not _is_open(member):
        return member
    return replace(
        member, name=f"{member.name}, approximate exponential", exp=_approximate(member.contract)
    )


def coarsely(member: Emulator) -> Emulator:
    """The same kernel with the exponential of a vector library, where that is open."""
    return _of_fp32(member, "vector exponential", exp_of_vectors)


def astray(member: Emulator) -> Emulator:
    """The same kernel with an exponential that is off by all it may be, on either side, where that
    is open.
    """
    return _of_fp32(member, "inaccurate exponential", exp_astray)


def _of_fp32(member: Emulator, name: str, exp: Exp) -> Emulator:
    """The same kernel with another exponential, where that is open and its sums are fp32."""
    if not _is_open(member) or member.contract.accumulate.name != "fp32":
        return member
    return replace(member, name=f"{member.name}, {name}", exp=exp)


def _is_open(member: Emulator) -> bool:
    return member.contract.exponential == "free"


def flushed(emulator: Emulator) -> Emulator:
    """The same kernel on a flushing unit: what is below the normal range becomes 0."""
    smallest = emulator.contract.accumulate.min_normal
    dot, exp = flushing(emulator.dot, smallest), flushing_exp(emulator.exp, smallest)
    return replace(
        emulator, name=f"{emulator.name}, subnormals flushed", dot=dot, exp=exp, flushes=True
    )


def flushing(dot: Dot, smallest: float) -> Dot:
    """Dot products of a unit whose operands and results are 0 below `smallest`."""
    return lambda a, b: _flush(dot(_flush(a, smallest), _flush(b, smallest)), smallest)


def flushing_exp(exp: Exp, smallest: float) -> Exp:
    """Exponentials that are 0 below `smallest`."""
    return lambda x: _flush(exp(x), smallest)


def _flush(tensor: Tensor, smallest: float) -> Tensor:
    return tensor.masked_fill(tensor.abs() < smallest, 0.0)


def as_declared(members: tuple[Emulator, ...]) -> tuple[Emulator, ...]:
    """The contract's reference kernels, each once, with what is declared of all of them."""
    flush = members[0].contract.flush
    if flush == "never":
        members = tuple(member for member in members if not member.flushes)
    if flush == "always":
        members = tuple(member if member.flushes else flushed(member) for member in members)
    # The first stays first, which is the baseline kernel: of chunks of 16 in fp32, a later one is
    # the same.
    once = dict[Emulator, Emulator]()
    for member in members:
        once.setdefault(replace(member, name=""), member)
    return tuple(_summing_as_declared(member) for member in once.values())


def _summing_as_declared(member: Emulator) -> Emulator:
    contract = member.contract
    if contract.order == "free" and not contract.narrow_sums:
        return member
    cumsum = running_cumsum_in(contract.accumulate.round if contract.narrow_sums else None)
    exp = _rounded(member.exp, contract.accumulate) if contract.narrow_sums else member.exp
    # A library's triangular solve sums in an order, and a format, of its own.
    if member.stages.solve is STAGES.solve:
        solve = substituted_in_order(contract)
    else:
        solve = member.stages.solve
    stages = replace(member.stages, cumsum=cumsum, solve=solve)
    backward = replace(member.backward, cumsum_bwd=running_cumsum_bwd)
    return replace(member, stages=stages, backward=backward, exp=exp)


def _rounded(exp: Exp, fmt: Format) -> Exp:
    return lambda x: fmt.round(exp(x))
