"""The reference ensemble: the conforming kernels whose worst error is the tolerance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from kdaverify.budgets import scalar_decay
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.emulate import (
    RESETS,
    Emulator,
    clamped_resets,
    multiplied_decays,
    sum_series,
)
from kdaverify.budgets.finite import ContractOverflow, finite_runs
from kdaverify.budgets.formats import Format
from kdaverify.budgets.freedoms import as_declared, plainest
from kdaverify.budgets.maps import mapped, mapped_back
from kdaverify.budgets.monte_carlo import MonteCarloArithmetic
from kdaverify.budgets.parts import Outputs
from kdaverify.budgets.reference_kernels import members_of_form, smaller_chunks
from kdaverify.budgets.sums import matrix_units
from oracles.inputs import Inputs
from oracles.row_norm import GIVEN
from oracles.tokens import gathered_once

# Units by which an approximate 1 / sqrt of an accelerator errs (rsqrt.approx.ftz.f32: 2^-22.9).
APPROXIMATE = 2.0
IN_STEPS = 2
"""Reference kernels with smaller chunks of a delta product: with a library's sums, and in order."""


@dataclass(frozen=True)
class Emulation:
    """What the reference ensemble made of one problem.

    Args:
        rounded: (o, S_T) of every reference kernel that stays finite, by its name; of every
            reference kernel where a deciding one does not, but one of the two is finite in all of
            them, and single outputs are wanted.
        drawn: (o, S_T) of every stochastic-rounding sample.
    """

    rounded: dict[str, Outputs]
    drawn: list[Outputs]


# Nothing in here is differentiated: without autograd's bookkeeping small problems take a sixth less
# time.
@torch.inference_mode()
def emulate(
    inputs: Inputs,
    contract: Contract,
    io: Format,
    *,
    cuts: tuple[int, ...] = (),
    single: bool = False,
) -> Emulation:
    """Runs the reference ensemble and the stochastic-rounding samples on one problem.

    Args:
        inputs: what the kernel receives.
        contract: what it declares.
        io: format of q, k, v and o.
        cuts: tokens at which the run is cut and resumed from its stored state.
        single: whether reference kernels count where a deciding one overflows in an output, but all
            are finite in the other.
    Raises:
        ContractOverflow: a deciding reference kernel overflows on these inputs.
    """
    members = (*ensemble(contract, io), *by_tokens(contract, io))
    members = (*members, *clamping(members[0], inputs))
    with gathered_once():
        runs = {member.name: member.run(inputs, cuts) for member in members}
    finite = finite_runs(runs, iter, deciding=deciding(members), single=single)
    if not finite:
        raise ContractOverflow(
            f"emulated kernels of {contract.name} overflow on this problem; choose milder values"
        )
    return Emulation(finite, MonteCarloArithmetic(contract, io).run(inputs, cuts))


def by_tokens(contract: Contract, io: Format) -> tuple[Emulator, ...]:
    """The recurrence, the smallest chunks of all, of contracts in fp32 that store nothing narrower:
    a kernel may take it where gates are too deep for its chunks, for all heads at once.

    ExecuTorch's does: beside one head with strong gates the others, of slow ones, are rounded once
    a token, not once a chunk, and were rejected at 1.1 times their tolerance in 9 of 9 seeds.
    """
    if contract.form == "recurrent" or contract.operands.name != "fp32":
        return ()
    if any(fmt.unit > contract.operands.unit for _, fmt in contract.tensors):
        return ()
    return (replace(plainest(contract.by_tokens(), io), name="token by token"),)


def clamping(plain: Emulator, inputs: Inputs) -> tuple[Emulator, ...]:
    """The same kernel in fp32 that clamps hard resets, if there are any. In 16 bits the digits
    that this costs are none that the operands hold.
    """
    contract = plain.contract
    wide = contract.operands.name in ("fp32", "tf32") and contract.accumulate.name == "fp32"
    if contract.form == "recurrent" or not wide or not bool(inputs.g.isneginf().any()):
        return ()
    return tuple(
        replace(
            plain,
            name=f"hard resets clamped to {reset:.0f}",
            stages=replace(plain.stages, cumsum=clamped_resets(reset)),
        )
        for reset in RESETS
    )


def ensemble(contract: Contract, io: Format) -> tuple[Emulator, ...]:
    """Emulated conforming kernels of `contract` for a problem stored in `io`.

    They span what the contract leaves open: order of summation, base of the exponential, form (WY
    or residual), way of the triangular solve, where the scale enters, whether matrix units round or
    truncate operands and sums, whether subnormals are flushed, and smaller chunks than declared.
    """
    members = (*members_of_form(plainest(contract, io)), *_in_steps(contract, io))
    if contract.decay == "scalar":
        members = tuple(scalar_decay.members_of_one_gate(members))
    if contract.makes_softplus:
        members = (*members, replace(members[0], name="softplus short by a bit", softplus=True))
    if contract.qk != GIVEN or contract.beta != "value":
        members = (*members, *_leaning(members[0]))
    of_maps = mapping((*members[:2], *on_units(members[0])), contract)
    members = (*members, *multiplying(members[:1], contract), *of_maps)
    members = (*members, *by_series((*members[:2], *_on_unit_of_solve(members[0])), contract))
    if contract.carry.unit > contract.accumulate.unit:
        # A cache in 16 bits holds the initial state too. Where gates are near 0 every element then
        # rounds back: a right kernel was rejected for a bias of 4 times its tolerance.
        start = replace(members[0], name="initial state rounded as it is read", narrow_start=True)
        members = (*members, start)
    return as_declared(members)


def _leaning(plain: Emulator) -> Iterator[Emulator]:
    """Kernels whose functions of inputs are approximate: all rows too long, and all sigmoids too
    large, or too short and too small.
    """
    for name, lean in (("large", APPROXIMATE), ("small", -APPROXIMATE)):
        yield replace(plain, name=f"functions of inputs too {name} by a bit", lean=lean)


def multiplying(members: Sequence[Emulator], contract: Contract) -> Iterator[Emulator]:
    """The same kernels with products of the decays that they are given, where those are no logs."""
    if contract.gate != "decay" or contract.form == "recurrent":
        return
    for member in members:
        stages = replace(member.stages, cumsum=multiplied_decays(contract.accumulate))
        yield replace(member, name=f"{member.name}, products of decays", stages=stages)


def mapping(members: Sequence[Emulator], contract: Contract) -> Iterator[Emulator]:
    """The same kernels with the map of the state of each chunk formed first, where declared: taken
    past the state one by one, and joined before it is there.
    """
    if contract.transition != "formed":
        return
    for member in members:
        for what, joined in (("maps of the state", False), ("joined maps of the state", True)):
            stages = mapped(member.stages, contract, joined=joined)
            back = mapped_back(member.backward, contract)
            yield replace(member, name=f"{member.name}, {what}", stages=stages, backward=back)


def on_units(plain: Emulator) -> tuple[Emulator, ...]:
    """The same kernel on matrix units that bring what is stored in fp32 to TF32."""
    contract = plain.contract
    if contract.operands.name != "tf32":
        return ()
    units = matrix_units(contract.operands, contract)
    return tuple(replace(plain, name=name, dot=dot) for name, dot in units.items())


def _on_unit_of_solve(plain: Emulator) -> tuple[Emulator, ...]:
    """The same kernel on a matrix unit that rounds what inverts, the powers of a series among it.

    A right port with powers in fp16 was rejected at 1.9 times its tolerance (coherent keys).
    """
    contract = plain.contract
    fmt = contract.solve or contract.operands
    if fmt.name in ("fp32", "fp64"):
        return ()
    name, dot = next(iter(matrix_units(fmt, contract).items()))
    return (replace(plain, name=name, dot=dot),)


def by_series(members: Sequence[Emulator], contract: Contract) -> Iterator[Emulator]:
    """The same kernels whose inverse is a series, where that is declared."""
    if contract.inverse != "series":
        return
    for member in members:
        stages = replace(member.stages, solve=sum_series)
        yield replace(member, name=f"{member.name}, inverse by a series", stages=stages)


def deciding(members: Sequence[Emulator]) -> list[str]:
    """The reference kernels that show what the declared formats hold: those of the declared chunk
    size whose decays are no products of factors, which overflow by themselves on deep gates.
    """
    plain = members[0]
    return [
        member.name
        for member in members
        if member.contract.chunk_size == plain.contract.chunk_size
        and member.stages.scores is plain.stages.scores
    ]


def solves_by_library(contract: Contract) -> bool:
    """Whether kernels of the contract may leave a triangular system to a library, which sums in an
    order of its own in the accumulator's format.
    """
    return (
        contract.form == "chunk"
        and contract.factors is None
        and contract.order == "free"
        and not contract.narrow_sums
    )


def chunk_sizes(contract: Contract) -> tuple[int, ...]:
    """The declared size, and those of the smaller chunks that conform too."""
    of_steps = () if contract.steps == 1 else (_in_tokens(contract),)
    fixed = contract.form == "recurrent" or contract.solve is not None
    return (contract.chunk_size, *(() if fixed else smaller_chunks(contract)), *of_steps)


def _in_tokens(contract: Contract) -> int:
    """The fewest tokens of a chunk of a delta product."""
    return max(1, contract.chunk_size // contract.steps)


def _in_steps(contract: Contract, io: Format) -> Iterator[Emulator]:
    """Of a delta product whose tokens take one step each of their own, with others of beta 0 beside
    it: chunks of so many steps, which store the state after fewer tokens.

    A right port of two steps, whose chunks of 64 steps hold 32 tokens, was rejected at 5 times its
    tolerance under a contract that admits no smaller chunks.
    """
    if contract.steps == 1 or (size := _in_tokens(contract)) == contract.chunk_size:
        return
    for one in members_of_form(plainest(replace(contract, chunk_size=size), io))[:IN_STEPS]:
        yield replace(one, name=f"{one.name}, chunks of {size}")
