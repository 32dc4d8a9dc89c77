"""The family of a contract: the legal kernels whose worst error is the budget."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from kdaverify.budgets.accelerator import exp_approximate, exp_short, truncated_state
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.emulate import (
    RESIDUAL,
    ROWWISE,
    ROWWISE_SCALED,
    Emulator,
    exp_base_2,
    flushed,
    matrix_units,
    merge_blocks,
    one_by_one,
    scores_backward,
    sequential,
    tree,
    with_dot,
)
from kdaverify.budgets.factored import FACTORED, FACTORED_COLUMNS, FACTORED_RESIDUAL
from kdaverify.budgets.formats import Format
from kdaverify.budgets.noise import Noise
from kdaverify.budgets.parts import Outputs
from kdaverify.budgets.score_blocks import scores_of
from oracles.chunk import STAGES
from oracles.inputs import Inputs

SMALLEST_CHUNK = 16
MERGING = replace(STAGES, solve=merge_blocks)


class ContractOverflow(Exception):
    """No legal kernel of the contract keeps this problem finite: nothing can be concluded from it."""


@dataclass(frozen=True)
class Emulation:
    """What the family made of one problem.

    Args:
        rounded: (o, S_T) of every member that stays finite, by its name.
        drawn: (o, S_T) of every draw of the noise.
    """

    rounded: dict[str, Outputs]
    drawn: list[Outputs]


def emulate(inputs: Inputs, contract: Contract, io: Format, *, cuts: tuple[int, ...] = ()) -> Emulation:
    """Runs the family and the noise on one problem.

    Args:
        inputs: what the kernel receives.
        contract: what it declares.
        io: format of q, k, v and o.
        cuts: tokens at which the run is cut and resumed from its stored state.
    Raises:
        ContractOverflow: every member overflows on these inputs.
    """
    runs = {member.name: member.run(inputs, cuts) for member in family(contract, io)}
    finite = {name: run for name, run in runs.items() if all(bool(torch.isfinite(output).all()) for output in run)}
    if not finite:
        raise ContractOverflow(f"every emulated kernel of {contract.name} overflows on this problem; choose milder values")
    return Emulation(finite, Noise(contract, io).run(inputs, cuts))


def family(contract: Contract, io: Format) -> tuple[Emulator, ...]:
    """Emulated legal kernels of `contract` for a problem whose inputs and output are stored in `io`.

    They span what the contract leaves open: order of summation, base of the exponential, form (WY or residual), way of the
    triangular solve, where the scale enters, whether matrix units round or truncate operands and sums, and smaller chunks than
    declared.
    """
    members = _members(Emulator("library order", contract, io))
    return (*members, replace(members[0], name="softplus short by a bit", softplus=True)) if contract.softplus else members


def chunk_sizes(contract: Contract) -> tuple[int, ...]:
    """The declared size, and those of the smaller chunks that are legal too."""
    if contract.form == "recurrent" or contract.solve is not None:
        return (contract.chunk_size,)
    return (contract.chunk_size, *(max(SMALLEST_CHUNK, contract.chunk_size // n) for n in (2, 4)))


def _members(plain: Emulator) -> tuple[Emulator, ...]:
    contract = plain.contract
    cut = replace(STAGES, state=truncated_state(contract.operands))
    truncating = replace(plain, name="sums that truncate, approximate exponential", exp=exp_approximate, stages=cut)
    base_2 = replace(plain, name="ordered sums, base-2 exponential", dot=sequential, exp=exp_base_2)
    if contract.form == "recurrent":
        in_order = replace(plain, name="sums term by term", dot=one_by_one)
        approximate = replace(plain, name="approximate exponential", exp=exp_short)
        units = () if contract.operands.name == "fp64" else (approximate,)
        return (plain, in_order, replace(base_2, dot=one_by_one), flushed(plain), *units)
    if contract.solve is not None:
        in_storage = replace(plain, name="products of states summed in storage", total=tree(contract.operands))
        return (*_solved_apart(plain, contract.solve), truncating, in_storage)
    units = {} if contract.operands.name in ("fp32", "fp64") else matrix_units(contract.operands)  # nothing narrower to round to
    unit = next(iter(units.values()), plain.dot)
    _, half, quarter = (replace(contract, chunk_size=size) for size in chunk_sizes(contract))
    members = (
        plain,
        replace(base_2, stages=ROWWISE_SCALED),
        flushed(plain),
        *(replace(plain, name=name, dot=dot) for name, dot in units.items()),
        *((replace(truncating, dot=unit),) if units else ()),
        *(replace(plain, name=f"{name}, solve by blocks", dot=dot, stages=MERGING) for name, dot in units.items()),
        replace(plain, name="matrix units, residual form", dot=unit, stages=RESIDUAL, exp=exp_base_2),
        replace(plain, name=f"chunks of {half.chunk_size}", contract=half, dot=unit),
        replace(plain, name=f"chunks of {quarter.chunk_size}", contract=quarter, stages=ROWWISE),
    )
    factored = (
        replace(plain, name="factored decays", stages=FACTORED),
        replace(plain, name="factored decays, beta on the columns", stages=FACTORED_COLUMNS),
        replace(plain, name="factored decays, residual form", stages=FACTORED_RESIDUAL, exp=exp_base_2),
        flushed(replace(plain, name="factored decays, beta on the columns", stages=FACTORED_COLUMNS)),
    )
    return members if contract.factors is None else (*members, *factored)


def _solved_apart(plain: Emulator, solve: Format) -> tuple[Emulator, ...]:
    """The family where scores and solve have a format of their own: free are order, exponential, flushing and the way of the solve."""
    ways = [
        Emulator(
            name if i == 0 else f"{name}, other anchor",
            plain.contract,
            plain.io,
            stages=replace(STAGES, scores=with_dot(scores, dot), solve=with_dot(merge_blocks, dot)),
            backward=scores_backward(dot, diagonal=plain.contract.anchored),
        )
        for i, scores in enumerate(scores_of(plain.contract))
        for name, dot in matrix_units(solve).items()
    ]
    return (
        plain,
        replace(plain, name="ordered sums, base-2 exponential", dot=sequential, exp=exp_base_2, stages=ROWWISE_SCALED),
        flushed(plain),
        *(replace(way, name=f"{way.name}, base-2 exponential", exp=exp_base_2) for way in ways),
        *ways,
    )
