"""Forward substitution as an operation of its own: every way of it on the Akk of a problem, by
residual and by componentwise error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kdaverify.adapters.stages import formats_of, stored
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.formats import FORMATS, Format
from kdaverify.budgets.solves import SOLVES, Solve
from kdaverify.budgets.stages import StageQuestion, solving, stage_standard
from kdaverify.checks.closures import closures
from kdaverify.checks.compare import Comparison, compare
from kdaverify.checks.status import Status
from kdaverify.problems import Problem
from oracles.arithmetic import Arithmetic
from oracles.chunk import STAGES
from oracles.stages import defined, run_stages


@dataclass(frozen=True)
class Substitution:
    """What one way of the solve made of one problem.

    Args:
        way: its name.
        error: rms error of the strictly lower part of R, relative to its rms.
        comparison: of that part with the exact one, against the substitutions that the contract
            allows.
        residual: of R (I + Akk) = I, as a fraction of what roundings can do.
    """

    way: str
    error: float
    comparison: Comparison
    residual: float

    @property
    def conforming(self) -> bool:
        """Whether both the error and the residual are within tolerance."""
        return self.comparison.status is Status.PASS and self.residual <= 1


def substitutions(
    problem: Problem, contract: Contract, products: Format, ways: Mapping[str, Solve] = SOLVES
) -> list[Substitution]:
    """Every way on the Akk of one problem, rounded as the contract stores it.

    Args:
        problem: its keys, gates and betas make Akk.
        contract: declared for all of them.
        products: the format in which they take the operands of their products; sums are made in the
            contract's accumulator.
    """
    inputs, formats = problem.inputs(), formats_of(contract, FORMATS[problem.dtype])
    exact = run_stages(inputs, {}, covers=("cumsum", "scores"), chunk_size=contract.chunk_size)
    given = {"Akk": stored("Akk", exact["Akk"], formats).double()}
    question = StageQuestion(inputs, given, ("solve",), ("R",), contract, FORMATS[problem.dtype])
    held = stage_standard(question, formats)
    truth = held.exact("R")
    arithmetic = Arithmetic(store=lambda name, tensor: formats(name).round(tensor))

    def product(a: Tensor, b: Tensor) -> Tensor:
        return torch.matmul(products.round(a), products.round(b))

    rows: list[Substitution] = []
    for name, way in ways.items():
        stages = replace(STAGES, solve=solving(way, product))
        run = run_stages(
            inputs,
            given,
            covers=("solve",),
            chunk_size=contract.chunk_size,
            dtype=contract.work,
            arithmetic=arithmetic,
            stages=stages,
        )
        R = defined("R", run["R"].double(), inputs, contract.chunk_size)
        error = float(truth.error(R).norm() / truth.high.norm())
        residual = closures({**given, "R": R}, inputs, contract, formats)["R (I + Akk) = I"]
        rows.append(Substitution(name, error, compare("R", R, held, inputs), residual))
    return rows
