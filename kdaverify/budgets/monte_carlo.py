"""Stochastic rounding: the same contract on the same problem with other roundings.

A handful of deterministic kernels is a poor estimate where an output hangs on a few roundings (one
wide key, one deep channel): they may all have unusually small errors. Replacing each rounding to
nearest by a uniform sample of the same size estimates what any conforming kernel may meet, and the
spread of the samples measures how far to trust a single one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from kdaverify.budgets import scalar_decay
from kdaverify.budgets.constants import (
    AGAIN,
    FEW_ELEMENTS,
    MAGNIFIED,
    MANY_ELEMENTS,
    SAMPLES,
    SCATTERED,
)
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.conversions import drawn
from kdaverify.budgets.differentiable import differentiable
from kdaverify.budgets.emulate import (
    SUBSTITUTED,
    merge_blocks,
    scaled_queries,
    sum_series,
    with_dot,
)
from kdaverify.budgets.factored import FACTORED, FACTORED_DIFFERENCE
from kdaverify.budgets.formats import Format
from kdaverify.budgets.freedoms import flushing, flushing_exp
from kdaverify.budgets.maps import joined_where_formed, mapped_back
from kdaverify.budgets.parts import Outputs, run_in_parts
from kdaverify.budgets.pipeline import Way, run_form
from kdaverify.budgets.scalar_decay import of_one_gate
from kdaverify.budgets.score_blocks import blocks_of
from kdaverify.budgets.scores_backward import scores_backward
from kdaverify.budgets.solves import Dot, by_library
from kdaverify.budgets.stochastic_rounding import (
    DrawnExp,
    DrawnOperands,
    DrawnSum,
    StochasticRounding,
)
from kdaverify.budgets.sums import running, tree
from oracles.arithmetic import Arithmetic, is_finite
from oracles.chunk import STAGES, Chunk, Stage, Stages
from oracles.chunk_backward import BACKWARD, BackwardStages
from oracles.inputs import Inputs
from oracles.together import states_apart, together, tokens_apart

# The same for all problems: a tolerance is the same on every call and machine, and can be cached.
SEED = 20
# Elements of the states of calls that one core draws together.
STATES_AT_ONCE = 2**18

# The outputs of several runs.
Several = Sequence[Sequence[Tensor]]


@dataclass(frozen=True)
class MonteCarloArithmetic:
    """The emulator whose roundings are stochastic.

    Args:
        contract: what is stored in which format.
        io: format of q, k, v and o.
    """

    contract: Contract
    io: Format

    def run(self, inputs: Inputs, cuts: tuple[int, ...] = (), *, seed: int = SEED) -> list[Outputs]:
        """Independent (o, S_T), float64, resumed at `cuts`; always the same SAMPLES, AGAIN more."""

        def at_once(
            noise: MonteCarloArithmetic, calls: int, rounding: StochasticRounding
        ) -> list[Outputs]:
            o, final = run_in_parts(
                lambda part: noise.forward(part, rounding), together([inputs] * calls), cuts
            )
            return list(
                zip(tokens_apart(o, inputs, calls), states_apart(final, inputs, calls), strict=True)
            )

        rng = torch.Generator(inputs.q.device).manual_seed(seed)
        several = calls_at_once(inputs)
        drawn = self.draws(at_once, rng, several=several)
        if any(_hangs_on_few([run[i] for run in drawn]) for i in range(2)):
            drawn += self.draws(at_once, rng, AGAIN * SAMPLES, several=several)
        return [(o, final) for o, final in drawn]

    def once(self, inputs: Inputs, rng: torch.Generator) -> Outputs:
        """One uncut (o, S_T), float64, whose roundings are the next samples of `rng`."""
        ((o, final),) = self.draws(
            lambda noise, _, rounding: [noise.forward(inputs, rounding)], rng, 1
        )
        return o, final

    def draws(
        self, run: Run, rng: torch.Generator, number: int = SAMPLES, *, several: int = SAMPLES
    ) -> list[list[Tensor]]:
        """What so many runs make of the next samples of `rng`, float64.

        Args:
            run: the outputs of so many calls of a kernel with those roundings.
            several: calls that are made at once.
        """
        drawn = self._resolved(
            partial(run, self),
            rng,
            [min(several, number - first) for first in range(0, number, several)],
        )
        if self.contract.factors is None or all(
            is_finite(output) for outputs in drawn for output in outputs
        ):
            return drawn
        # Factors overflow where decay is deep: what is sampled then is a kernel that takes
        # differences.
        return replace(self, contract=self.contract.unfactored()).draws(
            run, rng, number, several=several
        )

    def _resolved(
        self,
        run: Callable[[int, StochasticRounding], Several],
        rng: torch.Generator,
        groups: list[int],
    ) -> list[list[Tensor]]:
        """The same, also where roundings are too small for float64."""
        if self.contract.accumulate.name != "fp64":
            return [
                [output.double() for output in outputs]
                for calls in groups
                for outputs in run(calls, StochasticRounding(rng))
            ]
        (none,) = run(1, StochasticRounding(rng, 0.0))
        magnified = [
            large for calls in groups for large in run(calls, StochasticRounding(rng, MAGNIFIED))
        ]
        return [
            [_reduced(y_0, y_s) for y_0, y_s in zip(none, large, strict=True)]
            for large in magnified
        ]

    def forward(self, inputs: Inputs, rounding: StochasticRounding) -> Outputs:
        """One uncut (o, S_T) with those roundings, in the type computed in."""
        dtype, arithmetic, stages = self.way(rounding)
        return run_form(
            self.contract,
            self.computed(inputs, rounding),
            dtype=dtype,
            arithmetic=arithmetic,
            stages=stages,
        )

    def way(self, rounding: StochasticRounding) -> tuple[torch.dtype, Arithmetic, Stages]:
        """The type computed in, the arithmetic with stochastic rounding, and the stages."""
        contract = self.contract
        if contract.operands.precision < contract.accumulate.precision and not contract.narrow_sums:
            # Beside 16-bit storage the sums' own roundings are nothing: they may fall as they do in
            # the working type. Those of gates are all that is left to a state to which nothing is
            # written.
            stages = replace(self._matrix_stages(rounding), cumsum=self._running_cumsum(rounding))
            if contract.inverse == "series":
                unit = self._matrix_unit(contract.solve or contract.operands, rounding)
                stages = replace(stages, solve=with_dot(sum_series, unit))
            return contract.work, self._narrow(rounding), self._of_gates(stages)
        stages = replace(
            self._blocks(), cumsum=self._running_cumsum(rounding), solve=self._drawn_solve(rounding)
        )
        return torch.float64, self._wide(rounding), self._of_gates(stages)

    def substituting(self, rounding: StochasticRounding) -> Way:
        """The way of kernels that solve for right-hand sides, differentiated by autograd."""
        dtype, arithmetic, stages = self.way(rounding)
        whole = self._of_gates(replace(SUBSTITUTED, cumsum=stages.cumsum))
        return Way(dtype, differentiable(arithmetic), whole)

    def _of_gates(self, stages: Stages) -> Stages:
        of_gates = of_one_gate(stages) if self.contract.decay == "scalar" else stages
        return joined_where_formed(of_gates, self.contract)

    def backward(self, rounding: StochasticRounding) -> BackwardStages:
        """The backward stages of the same kernel."""
        return mapped_back(self._unmapped_backward(rounding), self.contract)

    def _unmapped_backward(self, rounding: StochasticRounding) -> BackwardStages:
        contract = self.contract
        if contract.decay == "scalar":
            return scalar_decay.BACKWARD
        if contract.solve is None and contract.anchored:
            unit = self.way_back(rounding)[1].dot
            return scores_backward(unit, blocks_of(contract)[0], unit)
        if contract.solve is None:
            return BACKWARD
        return scores_backward(
            self._matrix_unit(contract.solve, rounding), blocks_of(contract)[0], torch.matmul
        )

    def _blocks(self) -> Stages:
        """The stages with the scores by blocks, where diagonal ones are anchored."""
        if self.contract.anchored:
            return replace(STAGES, scores=blocks_of(self.contract)[0].scores)
        return STAGES

    def way_back(self, rounding: StochasticRounding) -> tuple[torch.dtype, Arithmetic]:
        """The same for backward stages: accumulated tensors show the accumulator's roundings."""
        operands = self.contract.operands
        if operands.name == "tf32":
            return self.contract.work, self._narrow(rounding)
        if self.contract.solve is None:
            return torch.float64, self._wide(rounding)
        # Products of states may be summed in storage: few roundings, all of their size, and in an
        # order of the kernel's own if it may.
        if self.contract.order == "free":
            total = rounding.in_any_order(tree(operands))
        else:
            total = running(operands)
        return torch.float64, replace(self._wide(rounding), total=total)

    def computed(self, inputs: Inputs, rounding: StochasticRounding) -> Inputs:
        """The call after conversions, and q times the scale if stored, stochastically rounded.

        A rounded scale stays exact here: a constant that no sample moves, it leans one way, and
        every kernel that rounds to nearest has it.
        """
        converted = drawn(inputs, self.contract, self.io, rounding.rounded)
        if self.contract.scale == "rounded":
            return converted
        return scaled_queries(converted, self.contract, lambda q: rounding.rounded(q, self.io))

    def _narrow(self, rounding: StochasticRounding) -> Arithmetic:
        """Every tensor stored in fewer bits than it is computed in is rounded stochastically."""

        def store(name: str, tensor: Tensor) -> Tensor:
            if self.contract.storage(name, self.io) is self.contract.accumulate:
                return tensor
            return self._stored(name, tensor, rounding)

        def exp(x: Tensor) -> Tensor:
            return x.to(self.contract.work).exp()

        # TF32 is a format of operands alone: nothing is stored in it, so every product rounds its
        # own.
        operands = self.contract.operands
        dot = self._matrix_unit(operands, rounding) if operands.name == "tf32" else torch.matmul
        return self._flushing(
            Arithmetic(
                store=store,
                dot=dot,
                exp=exp,
                sub_block=self.contract.sub_block,
                samples=rounding,
                together=True,
            )
        )

    def _stored(self, name: str, tensor: Tensor, rounding: StochasticRounding) -> Tensor:
        if name == "rounded_beta":
            # An input, not a sum: every conforming kernel rounds it alike, and its error is shared
            # by all columns of a token.
            return self.contract.stored(name, tensor, self.io)
        return rounding.rounded(
            tensor,
            self.contract.storage(name, self.io),
            cut=self.contract.storage_rounding == "truncate",
        )

    def _matrix_unit(self, fmt: Format, rounding: StochasticRounding) -> Dot:
        return DrawnOperands(rounding, fmt, cut=self.contract.operand_rounding == "truncate")

    def _flushing(self, arithmetic: Arithmetic) -> Arithmetic:
        """The same on a unit that flushes, where that is declared."""
        if self.contract.flush != "always":
            return arithmetic
        smallest = self.contract.accumulate.min_normal
        return replace(
            arithmetic,
            dot=flushing(arithmetic.dot, smallest),
            exp=flushing_exp(arithmetic.exp, smallest),
            computes_padding=True,
        )

    def _matrix_stages(self, rounding: StochasticRounding) -> Stages:
        """The scores' operands are stored nowhere, but rounded by matrix units all the same."""
        solve = self.contract.solve
        if self.contract.difference_first:
            return replace(
                FACTORED_DIFFERENCE,
                solve=with_dot(merge_blocks, self._matrix_unit(self.contract.operands, rounding)),
            )
        if self.contract.factors is not None:
            return FACTORED
        if solve is None:
            return replace(
                STAGES,
                scores=with_dot(
                    self._blocks().scores, self._matrix_unit(self.contract.operands, rounding)
                ),
            )
        unit = self._matrix_unit(solve, rounding)
        return replace(
            STAGES,
            scores=with_dot(blocks_of(self.contract)[0].scores, unit),
            solve=with_dot(merge_blocks, unit),
        )

    def _wide(self, rounding: StochasticRounding) -> Arithmetic:
        """Every store, dot product and exponential is rounded stochastically, in float64."""
        contract = self.contract
        # Token by token the argument of a natural exponential is the gate itself: nothing of it is
        # rounded.
        exact_argument = (
            contract.form == "recurrent"
            and contract.exponential == "natural"
            and contract.gate == "log"
        )
        return self._flushing(
            Arithmetic(
                store=lambda name, tensor: self._stored(name, tensor, rounding),
                dot=DrawnSum(rounding, contract.accumulate),
                exp=DrawnExp(rounding, contract.accumulate, argument=not exact_argument),
                sub_block=contract.sub_block,
                row_sum=lambda products: rounding.row_sum(products, contract.accumulate),
                substitute=lambda A, r: rounding.substituted(A, r, contract.accumulate),
                samples=rounding,
                together=True,
                twice=True,
            )
        )

    def _running_cumsum(self, rounding: StochasticRounding) -> Stage:
        """What is left of the sums' roundings in float64: less than a spacing in fp32, they move a
        base-2 unit's numbers all the same.
        """
        accumulate, scaled = self.contract.accumulate, self.contract.exponential != "natural"

        def cumsum(c: Chunk) -> None:
            STAGES.cumsum(c)
            # Sums made in fp32 fit in fp32: only sums in float64 show which of them are not
            # exact.
            gates = c.tokens.g.detach().double()
            c.G = c.G + rounding.cumsum(
                gates.masked_fill(gates.isneginf(), 0.0), accumulate, scaled=scaled
            )

        return cumsum

    def _drawn_solve(self, rounding: StochasticRounding) -> Stage:
        """By blocks, as libraries do: where keys are coherent that rounds more than rows do. By
        rows where sums are made in order.
        """
        accumulate = self.contract.accumulate

        def by_rows(A: Tensor) -> Tensor:
            R = by_library(A)
            return R + rounding.substitution(A, R, accumulate)

        def solve(c: Chunk) -> None:
            c.R = c.store("R", by_rows(c.Akk))

        if self.contract.inverse == "series":
            return sum_series
        return partial(merge_blocks, own=by_rows) if self.contract.order == "free" else solve


# A kernel of that noise, so many times under that sampling variation.
Run = Callable[[MonteCarloArithmetic, int, StochasticRounding], Several]


def calls_at_once(inputs: Inputs) -> int:
    """How many calls are sampled together: all if their number costs, else a cache full."""
    if inputs.q.device.type != "cpu":
        return AGAIN * SAMPLES
    return max(1, STATES_AT_ONCE // max(1, inputs.state.numel()))


def _reduced(y_0: Tensor, y_s: Tensor) -> Tensor:
    """An output with stochastic rounding, from one without and from one make of it MAGNIFIED.

    Math: y_0 + (y_s - y_0) / s, to first order in the samples.
    """
    return y_0 + (y_s - y_0) / MAGNIFIED


def _hangs_on_few(draws: list[Tensor]) -> bool:
    """Whether an output is to be sampled again: how much its samples' distances differ."""
    if FEW_ELEMENTS < draws[0].numel() < MANY_ELEMENTS:
        return False
    middle = torch.stack(draws).mean(0)
    sizes = torch.stack([(draw - middle).norm() for draw in draws])
    return float(sizes.std()) > SCATTERED * float(sizes.mean())
