"""Truth and tolerance of one stage on given inputs: the ensemble, restricted to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from kdaverify.budgets import scalar_decay
from kdaverify.budgets.backward_stages import backward_ensemble
from kdaverify.budgets.budget import Budget, budget
from kdaverify.budgets.cancellation import sizes_of_terms
from kdaverify.budgets.constants import GAIN, SUMS_LOSE
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.emulate import (
    Emulator,
    residual_state,
    residual_wy,
    running_cumsum,
    scaled_output,
    scaled_wy,
    substituted_state,
    summed_in_base_2,
    unsolved,
)
from kdaverify.budgets.ensemble import ContractOverflow, ensemble
from kdaverify.budgets.factored import (
    column_output,
    column_scores,
    column_wy,
    difference_output,
    difference_scores,
    difference_state,
    difference_wy,
    factored_residual_wy,
)
from kdaverify.budgets.formats import Format
from kdaverify.budgets.monte_carlo import SEED, MonteCarloArithmetic
from kdaverify.budgets.solves import SUBSTITUTIONS, Dot, Solve
from kdaverify.budgets.stage_forms import StageForm, form_of
from kdaverify.budgets.stochastic_rounding import StochasticRounding
from kdaverify.budgets.sums import matrix_units
from oracles.chunk import STAGES, Chunk, ScannedState, Stage, Stages
from oracles.enclosure import Enclosure
from oracles.inputs import Inputs
from oracles.stages import Named, defined, region

# Conforming forms that give tensors of the same name another meaning: their error is no stage's.
_OTHER_MEANING = (
    residual_wy, residual_state, unsolved, substituted_state, scaled_wy, scaled_output,
    column_scores, column_wy, column_output, difference_scores, difference_wy, difference_state,
    difference_output, factored_residual_wy, scalar_decay.residual_wy, scalar_decay.residual_state,
    scalar_decay.substituted_state,
)  # fmt: skip


@dataclass(frozen=True)
class StageQuestion:
    """A stage, or stages fused into one, and what it is given.

    Args:
        inputs: the call that it is a part of.
        given: what it receives of earlier stages, float64, exactly.
        covers: the stages, consecutive.
        gives: the tensors requested.
        contract, io: the arithmetic declared, and the format of q, k, v and o.
    """

    inputs: Inputs
    given: Named
    covers: tuple[str, ...]
    gives: tuple[str, ...]
    contract: Contract
    io: Format

    @property
    def backward(self) -> bool:
        """Whether its stages are those of the backward."""
        return self.covers[0] in self.form.backward

    @property
    def form(self) -> StageForm:
        """How the kernels of the contract are cut."""
        return form_of(self.contract)

    def run(self, **how: object) -> dict[str, Tensor]:
        """All that the stages write, float64, 0 where undefined; `how` goes to the oracle."""
        size = self.contract.chunk_size
        written = self.form.run(self.inputs, self.given, self.covers, chunk_size=size, **how)
        return {
            name: defined(name, tensor.double(), self.inputs, size)
            for name, tensor in written.items()
        }


@dataclass(frozen=True)
class StageStandard:
    """The exact outputs of a stage on what it received, and the tolerances under the contract."""

    truth: dict[str, Enclosure]
    budgets: dict[str, Budget]

    def exact(self, output: str) -> Enclosure:
        return self.truth[output]


@torch.inference_mode()
def stage_standard(question: StageQuestion, formats: Callable[[str], Format]) -> StageStandard:
    """What the outputs of a stage are held against.

    Math: the truth is the stage in float64 on exactly what the kernel received; no radius is
    proven, one stage in float64 is off by some 2^-50 of its terms where the formats judged are off
    by 2^-24 or more.

    Args:
        formats: the format in which each named tensor is stored.
    Raises:
        ContractOverflow: every emulated kernel overflows in this stage.
    """
    exact = question.run()
    rounded = [
        run
        for run in (question.run(**way) for way in _ways(question))
        if all(bool(torch.isfinite(run[name]).all()) for name in question.gives)
    ]
    if not rounded:
        raise ContractOverflow(
            f"every emulated kernel of {question.contract.name} overflows in"
            f" {', '.join(question.covers)}"
        )
    drawn = _draws(question)
    truth = {name: _enclosure(name, exact[name], question) for name in question.gives}
    contract, terms, longest = question.contract, _terms(question, formats), _longest(question)

    def allowed(name: str) -> Budget:
        made = budget(
            truth[name],
            [run[name] for run in rounded],
            [run[name] for run in drawn],
            io=formats(name),
            unit=max(contract.operands.unit, formats(name).unit),
            lost=longest * contract.vanishing,
            moved=exact[name] - question.inputs.state.double() if name == "final_state" else None,
            terms=terms.get(name),
            floor=SUMS_LOSE * contract.accumulate.unit * terms[name] if name in terms else 0.0,
            sharp=False,
        )
        return made if name not in terms else _of_a_sum(made, contract.accumulate.unit)

    return StageStandard(truth, {name: allowed(name) for name in question.gives})


def _terms(question: StageQuestion, formats: Callable[[str], Format]) -> dict[str, Tensor]:
    """Sizes of the terms of the backward's sums that are stored as they were summed: beside storage
    in fewer bits the error of a sum is negligible.
    """
    if not question.backward:
        return {}
    contract = question.contract
    sizes = sizes_of_terms(
        question.inputs, question.given, question.covers, contract.chunk_size, question.form
    )
    return {name: size for name, size in sizes.items() if formats(name) is contract.accumulate}


def _longest(question: StageQuestion) -> float:
    """How many numbers that vanish may be summed to one."""
    x, size = question.inputs, question.contract.chunk_size
    return GAIN * max(x.K, x.V, size) if question.backward else max(x.K, size)


def _of_a_sum(made: Budget, unit: float) -> Budget:
    """The floor of sums for relative errors: exact ensembles may still underflow once."""
    found = made.allowed
    return replace(
        made,
        allowed=replace(
            found, median=max(found.median, 2 * unit), tail=max(found.tail, 2 * SUMS_LOSE * unit)
        ),
    )


def stage_ensemble(question: StageQuestion) -> tuple[Emulator, ...]:
    """Conforming kernels whose stages mean what math.md 3 says, in chunks of their size.

    Alone, the solve shows the format of its products, which the scores hide end to end: where it is
    covered, every substitution belongs to the reference ensemble, with the products that the
    contract declares.
    """
    contract = question.contract
    whole = [
        m for m in ensemble(contract, question.io) if m.contract.chunk_size == contract.chunk_size
    ]
    members = [replace(m, stages=_plain(m.stages, question.form.stages)) for m in whole]
    plain = members[0]
    if question.covers == ("cumsum",) and contract.exponential != "natural":
        members += [
            replace(
                plain, name="gates in base 2", stages=replace(STAGES, cumsum=summed_in_base_2(way))
            )
            for way in (plain.stages.cumsum, running_cumsum)
        ]
    if "solve" in question.covers:
        products = contract.solve or contract.operands
        if products is contract.accumulate:
            units = {"vector units": plain.dot}
        else:
            units = matrix_units(products, contract)
        for unit, dot in units.items():
            members += [
                replace(
                    plain,
                    name=f"solve by {name} on {unit}",
                    stages=replace(plain.stages, solve=solving(way, dot)),
                )
                for name, way in SUBSTITUTIONS.items()
            ]
    return tuple(members)


def solving(way: Solve, dot: Dot) -> Stage:
    """Math: 3.3 one way, with products of one kind."""

    def solve(c: Chunk) -> None:
        c.R = c.store("R", way(c.Akk, dot))

    return solve


def _plain(stages: Stages, plain: Stages) -> Stages:
    """The same stages, but plain ones for those of another meaning."""
    own = {field.name: getattr(stages, field.name) for field in fields(stages)}
    # Called alone, a scan does not take the state past its chunk.
    other = [
        name
        for name, stage in own.items()
        if stage in _OTHER_MEANING or isinstance(stage, ScannedState)
    ]
    return replace(stages, **{name: getattr(plain, name) for name in other})


def _ways(question: StageQuestion) -> list[dict[str, object]]:
    """The reference ensemble's ways through the stages, as `StageQuestion.run` takes them."""
    if question.backward:
        return [vars(way) for way in backward_ensemble(question.contract, question.io)]
    return [
        {"dtype": m.contract.work, "arithmetic": m.arithmetic, "stages": m.stages}
        for m in stage_ensemble(question)
    ]


def _draws(question: StageQuestion) -> list[dict[str, Tensor]]:
    def once(noise: MonteCarloArithmetic, rounding: StochasticRounding) -> list[Tensor]:
        drawn = noise.way_back(rounding) if question.backward else noise.way(rounding)
        written = question.run(**dict(zip(("dtype", "arithmetic", "stages"), drawn, strict=False)))
        return [written[name] for name in question.gives]

    rng = torch.Generator(question.inputs.q.device).manual_seed(SEED)
    drawn = MonteCarloArithmetic(question.contract, question.io).draws(
        lambda noise, calls, rounding: [once(noise, rounding) for _ in range(calls)], rng
    )
    return [dict(zip(question.gives, run, strict=True)) for run in drawn]


def _enclosure(name: str, exact: Tensor, question: StageQuestion) -> Enclosure:
    outside = ~region(name, question.inputs, question.contract.chunk_size).expand_as(exact)
    return Enclosure(exact, torch.zeros_like(exact), torch.full_like(exact, torch.inf), outside)
