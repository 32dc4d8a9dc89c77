"""Scores relative to a row of their block, differentiated by autograd: the gradient of that row is
there, and so are the casts of operands.
"""

from __future__ import annotations

from dataclasses import replace

from kdaverify.budgets.contract import Contract
from kdaverify.budgets.differentiable import product
from kdaverify.budgets.emulate import Emulator, with_dot
from kdaverify.budgets.ensemble import ensemble
from kdaverify.budgets.formats import Format
from kdaverify.budgets.score_blocks import AT_FIRST, anchor_rows, blocks_of
from kdaverify.budgets.solves import Dot
from kdaverify.budgets.sums import matrix_units


def at_first(contract: Contract, io: Format) -> dict[str, Emulator]:
    """The kernel whose anchors are first rows as they are, where the row is free. Its factor of up
    to exp 75 meets the incoming gradient: at 2^20 times an ordinary one dq is infinite in fp32, and
    right kernels of this design were rejected for it. It shows which gradients the contract holds.
    """
    if not contract.anchored or contract.anchor != "free":
        return {}
    plain = ensemble(contract, io)[0]
    stages = replace(plain.stages, scores=AT_FIRST)
    return {"autograd, anchored at first rows": replace(plain, stages=stages)}


def at_declared(contract: Contract, io: Format) -> dict[str, Emulator]:
    """Those whose anchors are rows as declared, as plain torch: the anchor's own gradient is there,
    0 but for roundings, and a factor below 1 meets a small gradient before one above 1 does. Where
    that product was subnormal, a right kernel was rejected for a tail of dg at 3.4 times its
    tolerance.
    """
    if not contract.anchored:
        return {}
    plain = ensemble(contract, io)[0]
    ways = {
        f"autograd, anchored by its {row} row{what}": with_dot(blocks.scores, dot)
        for row, blocks in zip(anchor_rows(contract), blocks_of(contract), strict=True)
        for what, dot in _differentiated_units(contract).items()
    }
    return {
        name: replace(plain, stages=replace(plain.stages, scores=scores))
        for name, scores in ways.items()
    }


def _differentiated_units(contract: Contract) -> dict[str, Dot]:
    """Matrix units whose gradients are products like theirs; and where operands are cast to 16
    bits, those whose operands autograd casts the gradients of. Where pairs (i, i) cancel, that
    leaves more of them: without it such a port was rejected for a row of dg at 1.6 times its
    tolerance.
    """
    operands = contract.solve or contract.operands
    unit = next(iter(matrix_units(operands, contract).values()))
    cast = {} if operands.name == "tf32" else {", gradients of operands cast": unit}
    return {"": product(unit), **cast}
