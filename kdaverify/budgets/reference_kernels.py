"""Reference kernels by the form of a contract: token by token, in chunks, with factored or anchored
scores, with scores and solve in formats of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kdaverify.budgets.accelerator import truncated_state
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.emulate import (
    RESIDUAL,
    ROWWISE,
    SCALED,
    Emulator,
    merge_blocks,
    substituted_in_order,
    with_dot,
)
from kdaverify.budgets.factored import (
    FACTORED,
    FACTORED_COLUMNS,
    FACTORED_DIFFERENCE,
    FACTORED_RESIDUAL,
)
from kdaverify.budgets.formats import Format
from kdaverify.budgets.freedoms import approximately, astray, coarsely, flushed, in_base_2
from kdaverify.budgets.score_blocks import VECTOR, blocks_of
from kdaverify.budgets.scores_backward import RIGHT_FIRST, SCALED_STATE, scores_backward
from kdaverify.budgets.solves import Dot
from kdaverify.budgets.sums import matrix_units, onto_first, ordered, running, term_by_term, tree
from oracles.chunk import STAGES, Stages

# Of kernels in use: FlashKDA carries its state between chunks of 16.
SMALLEST_CHUNK = 16
MERGING = replace(STAGES, solve=merge_blocks)


def smaller_chunks(contract: Contract) -> tuple[int, int]:
    """Half and a quarter of the declared size."""
    half, quarter = (max(SMALLEST_CHUNK, contract.chunk_size // parts) for parts in (2, 4))
    return half, quarter


def members_of_form(plain: Emulator) -> tuple[Emulator, ...]:
    """The reference kernels of the contract of the plainest one, which is the first of them."""
    contract = plain.contract
    if contract.form == "recurrent":
        return _token_by_token(plain)
    if contract.solve is not None:
        return (*_solved_apart(plain, contract.solve), *_truncating(plain))
    # no narrower to round to
    if contract.operands.name in ("fp32", "fp64"):
        units = {}
    else:
        units = matrix_units(contract.operands, contract)
    members = _in_chunks(plain, units)
    if contract.anchored:
        return (*members, *_anchored(plain, units or {"library order": plain.dot}))
    if contract.factors is None:
        return members
    return (*members, *_factored(plain), *_difference_first(plain, _first(units, plain)))


def _token_by_token(plain: Emulator) -> tuple[Emulator, ...]:
    contract = plain.contract
    in_order = replace(plain, name="sums term by term", dot=term_by_term(contract))
    units = () if contract.accumulate.name == "fp64" else (approximately(plain),)
    return (
        plain,
        in_order,
        in_base_2(replace(in_order, name="ordered sums")),
        flushed(astray(plain)),
        *units,
    )


def _first(units: Mapping[str, Dot], plain: Emulator) -> Dot:
    """The first of the matrix units; the library's order where there are none."""
    return next(iter(units.values()), plain.dot)


def _in_chunks(plain: Emulator, units: Mapping[str, Dot]) -> tuple[Emulator, ...]:
    """The kernels of every contract in chunks, on the matrix units that round to its operands."""
    contract, unit = plain.contract, _first(units, plain)
    half, quarter = (replace(contract, chunk_size=size) for size in smaller_chunks(contract))
    rows = ", by rows" if quarter == half else ""
    quarters = replace(
        plain, name=f"chunks of {quarter.chunk_size}{rows}", contract=quarter, stages=ROWWISE
    )
    return (
        plain,
        _in_order(replace(plain, backward=replace(RIGHT_FIRST, state_bwd=SCALED_STATE))),
        flushed(plain),
        *(replace(plain, name=name, dot=dot) for name, dot in units.items()),
        *(_truncating(replace(plain, dot=unit)) if units else ()),
        *(
            replace(
                plain,
                name=f"{name}, solve by blocks",
                dot=dot,
                stages=MERGING,
                backward=RIGHT_FIRST,
            )
            for name, dot in units.items()
        ),
        *(
            _on_vector_diagonal(plain, dot, name)
            for name, dot in units.items()
            if contract.operands.name == "tf32"
        ),
        in_base_2(replace(plain, name="matrix units, residual form", dot=unit, stages=RESIDUAL)),
        replace(plain, name=f"chunks of {half.chunk_size}", contract=half, dot=unit),
        quarters if units else coarsely(quarters),
        *scores_kept(plain),
    )


def _in_order(plain: Emulator) -> Emulator:
    """The kernel that sums in order, and takes the scale into qg, and into do in its backward.

    Where it has no matrix unit, or declares the order, the sum of what a chunk writes begins with
    the state: ExecuTorch's loops, the same bits, were rejected for a state at 2.7 times its
    tolerance (tiny keys, large state).
    """
    contract = plain.contract
    stages = replace(SCALED, solve=substituted_in_order(contract))
    loops = contract.order == "in-order" or contract.operands.name in ("fp32", "fp64")
    onto = onto_first(contract) if loops else None
    made = replace(plain, name="ordered sums", dot=ordered(contract), stages=stages, onto=onto)
    return in_base_2(made)


def scores_kept(plain: Emulator) -> tuple[Emulator, ...]:
    """The kernel that inverts its system unrounded and rounds the inverse, as in registers.

    Stored scores can have the larger bits and the smaller error: what R of rounded scores does is
    exact for a neighbouring system, and of equal keys that one erases what it writes. Rounding R
    instead leaves some of it in every row: a right kernel was rejected for d_initial_state at 1.08
    times its tolerance, in 69 of 100 seeds.
    """
    contract = plain.contract
    if contract.storage("Akk", plain.io).unit <= contract.accumulate.unit:
        return ()
    kept = replace(contract, tensors=(*contract.tensors, ("Akk", contract.accumulate)))
    return (replace(plain, name="scores kept until the solve", contract=kept),)


def _truncating(plain: Emulator) -> tuple[Emulator, ...]:
    """The unit with truncated fp32 sums, many terms at once; none where declared otherwise."""
    contract = plain.contract
    if contract.order != "free" or contract.accumulate.name != "fp32":
        return ()
    cut = replace(STAGES, state=truncated_state(contract.operands))
    return (approximately(replace(plain, name="sums that truncate", stages=cut)),)


def _factored(plain: Emulator) -> tuple[Emulator, ...]:
    whole, columns, residual = factored(plain)
    return whole, columns, in_base_2(residual), flushed(columns)


def factored(plain: Emulator) -> tuple[Emulator, ...]:
    """Kernels whose scores are products of two factors, if declared. Where autograd differentiates
    these, the parts of dG of a pair (i, i) cancel, each rounded as the product of another factor:
    without them a right port was rejected for a tail of dg at 4 times its tolerance.
    """
    if plain.contract.factors is None:
        return ()
    return (
        replace(plain, name="factored decays", stages=FACTORED),
        replace(plain, name="factored decays, beta on the columns", stages=FACTORED_COLUMNS),
        replace(plain, name="factored decays, residual form", stages=FACTORED_RESIDUAL),
    )


def _difference_first(plain: Emulator, unit: Dot) -> tuple[Emulator, ...]:
    """The kernels that subtract before beta multiplies and merge inverses, if declared.

    Where gates are alike in all channels, so are the roundings of their factors: with the state in
    more bits than declared, which is no fault, o then leans by another amount than with the
    declared ones.
    """
    contract = plain.contract
    if not contract.difference_first:
        return ()
    own = replace(
        plain,
        name="factored decays, difference first",
        stages=replace(FACTORED_DIFFERENCE, solve=with_dot(merge_blocks, unit)),
    )
    if contract.carry == contract.accumulate:
        return (own,)
    return (
        own,
        replace(
            own,
            name=f"{own.name}, state in {contract.accumulate.name} within a run",
            wide_state=True,
        ),
    )


def _on_vector_diagonal(plain: Emulator, unit: Dot, name: str) -> Emulator:
    """The kernel whose scores take their diagonal blocks on vector units, there and back."""
    return replace(
        plain,
        name=f"{name}, diagonal on vector units",
        dot=unit,
        stages=replace(MERGING, scores=VECTOR.scores),
        backward=scores_backward(unit, VECTOR, plain.dot),
    )


def _anchored(plain: Emulator, units: Mapping[str, Dot]) -> tuple[Emulator, ...]:
    """Kernels whose diagonal score blocks are products of two factors, both ways."""
    if plain.contract.anchor == "free":
        rows = ("off the first row", "at the middle row")
    else:
        rows = (f"by its {plain.contract.anchor} row",)
    ways = [
        replace(
            plain,
            name=f"{name}, diagonal anchored {row}",
            dot=dot,
            stages=replace(STAGES, scores=blocks.scores),
            backward=scores_backward(dot, blocks, plain.dot),
        )
        for row, blocks in zip(rows, blocks_of(plain.contract), strict=True)
        for name, dot in units.items()
    ]
    return (*ways, *(replace(in_base_2(way), name=f"{way.name}, base 2") for way in ways))


def _solved_apart(plain: Emulator, solve: Format) -> tuple[Emulator, ...]:
    """The ensemble where scores and solve have own formats; the rest stays free."""
    contract = plain.contract
    ways = [
        replace(
            plain,
            name=name if i == 0 else f"{name}, other anchor",
            stages=replace(
                STAGES, scores=with_dot(blocks.scores, dot), solve=with_dot(merge_blocks, dot)
            ),
            backward=scores_backward(dot, blocks, plain.dot),
        )
        for i, blocks in enumerate(blocks_of(contract))
        for name, dot in matrix_units(solve, contract).items()
    ]
    total = tree(contract.operands) if contract.order == "free" else running(contract.operands)
    return (
        plain,
        _in_order(plain),
        flushed(plain),
        *(
            replace(
                in_base_2(way),
                name=f"{way.name}, products of states summed in storage",
                total=total,
            )
            for way in ways
        ),
        *ways,
        replace(ways[0], name="residual form", stages=_residual(ways[0].stages)),
    )


def _residual(stages: Stages) -> Stages:
    """The same where R is applied after the state is subtracted: the difference is rounded first. A
    right port in fp16 was rejected at 1.25 to 1.4 times its tolerance (keys of one channel).
    """
    return replace(stages, wy=RESIDUAL.wy, state=RESIDUAL.state)
