"""Conforming kernels of a contract, emulated: one pipeline, many roundings."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, reduce
from itertools import accumulate
from typing import Final, Literal

import torch
from torch import Tensor

from kdaverify.budgets.contract import Contract
from kdaverify.budgets.conversions import as_computed
from kdaverify.budgets.finite import ContractOverflow
from kdaverify.budgets.formats import Format
from kdaverify.budgets.parts import Outputs, run_in_parts
from kdaverify.budgets.pipeline import run_form
from kdaverify.budgets.solves import (
    Dot,
    Inverse,
    by_blocks,
    by_columns,
    by_library,
    by_neumann,
    by_rows,
    identity,
)
from oracles.arithmetic import NATIVE, Arithmetic, is_finite
from oracles.chunk import STAGES, Chunk, Stage, Stages, finite_gates
from oracles.chunk_backward import BACKWARD, BackwardStages, ChunkGradients
from oracles.inputs import Inputs

RESETS: Final = (-106.0, -119.0, -128.0, -151.0)
"""Log gates that kernels clamp hard resets to: below -103.97 exp is 0 in fp32. The error is that of
few roundings, alike in all channels of a head: of one value a right port was at 1.2 times its
tolerance. Far larger ones cost digits that a port should keep, and are no freedom."""
HeadSums = Literal["packed", "alone", "in turn", "last first"]
# 1 / ln 2: kernels with a base-2 exponential unit scale the gate first, and round that.
LOG2_E = 1.4426950408889634
_Scaled = tuple[Tensor, Tensor]
"""Numbers in [1/2, 1) and the exponents of 2 that go with them."""


@dataclass(frozen=True)
class Emulator:
    """One conforming kernel: a contract with the freedoms it leaves open decided one way.

    `lean`: units by which its 1 / sqrt is too large, where it normalises q and k itself; by twice
    as many its sigmoids are.
    `wide_state`: the state stays in the accumulator's format within a run, and is brought to the
    carried one as it is returned.
    `narrow_start`: an initial state is brought to the carried format as it is read.
    `narrow_tensor`: the carried state is a tensor of its format: see `cast_states`.
    `heads`: of the backward, whether the dq and dk of the value heads of a key head are summed in
    the accumulator (packed), or each is stored as it is returned before they are summed (alone), or
    every partial sum is stored likewise (in turn, and from the last head on).
    `onto`: how what a chunk adds to the state, and to o, is added; None: as one product.
    """

    name: str
    contract: Contract
    io: Format
    dot: Dot = torch.matmul
    exp: Callable[[Tensor], Tensor] = torch.exp
    total: Callable[[Tensor], Tensor] = NATIVE.total
    stages: Stages = STAGES
    backward: BackwardStages = BACKWARD
    softplus: bool = False
    lean: float = 0.0
    flushes: bool = False
    wide_state: bool = False
    narrow_start: bool = False
    narrow_tensor: bool = False
    heads: HeadSums = "packed"
    onto: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None

    def run(self, inputs: Inputs, cuts: tuple[int, ...] = ()) -> Outputs:
        """o [B, T, HV, V], S_T [N, HV, K, V], float64 holding stored formats, resumed at `cuts`."""
        return run_in_parts(
            self._run, short_gates(inputs, self.contract) if self.softplus else inputs, cuts
        )

    def _run(self, inputs: Inputs) -> Outputs:
        inputs = scaled_queries(self.computed(inputs), self.contract, self.io.round)
        o, final = run_form(
            self.contract,
            inputs,
            dtype=self.contract.work,
            arithmetic=self.arithmetic,
            stages=self.stages,
        )
        if self.wide_state:
            final = self.contract.stored("S", final, self.io)
        return o.double(), final.double()

    def computed(self, inputs: Inputs) -> Inputs:
        """The call as this kernel goes on with it, its conventions converted."""
        if self.narrow_start and inputs.initial_state is not None:
            start = self.contract.stored("S", inputs.initial_state, self.io)
            if not is_finite(start):
                carry = self.contract.carry.name
                raise ContractOverflow(
                    f"initial_state: {self.contract.name} carries it in {carry}, which does not"
                    " hold it; choose milder values"
                )
            inputs = replace(inputs, initial_state=start)
        return as_computed(inputs, self.contract, self.io, self.exp, lean=self.lean)

    def returned(self, gradient: str, value: Tensor) -> Tensor:
        """A gradient rounded as this kernel returns it."""
        return self.contract.returned(gradient, self.io).round(value)

    @property
    def arithmetic(self) -> Arithmetic:
        # Sums of gates in base 2 lie between the numbers that nats have in the working type: their
        # differences no longer do.
        work, exp = self.contract.work, self.exp
        return Arithmetic(
            self.store,
            self.dot,
            lambda x: exp(x if x.dtype is work else x.to(work)),
            self.total,
            self.contract.sub_block,
            over_heads=self._over_heads,
            onto=self.onto,
            together=True,
        )

    def store(self, name: str, tensor: Tensor) -> Tensor:
        """`tensor` in the format that the contract stores it in."""
        if self.wide_state and name == "S":
            return tensor
        stored = self.contract.stored(name, tensor, self.io)
        narrow = self.narrow_tensor and name == "S"
        return stored.to(self.contract.carry.dtype) if narrow else stored

    def _over_heads(self, per_value_head: Tensor) -> Tensor:
        """dq or dk [B, T, H, HV / H, ...] summed over the value heads of a key head."""
        if self.heads == "packed":
            return NATIVE.over_heads(per_value_head)
        # Kernels of one gate leave dk in parts, [..., K, 2].
        whole = per_value_head.sum(-1) if per_value_head.ndim > 5 else per_value_head
        of_heads = self.returned("dq", whole)
        if self.heads == "alone":
            return NATIVE.over_heads(of_heads)
        in_order = of_heads.unbind(3)[:: 1 if self.heads == "in turn" else -1]
        return reduce(lambda a, b: self.returned("dq", a + b), in_order)


def short_gates(inputs: Inputs, contract: Contract) -> Inputs:
    """The call as a kernel sees it whose softplus, log(1 + exp x), has lost the last bit of its sum
    everywhere: g less that bit.
    """
    return replace(inputs, g=inputs.g.double() - 2 * contract.accumulate.unit)


def scaled_queries(inputs: Inputs, contract: Contract, keep: Callable[[Tensor], Tensor]) -> Inputs:
    """The call as a kernel goes on with it that keeps q times the scale in the format of q, or
    rounds the scale; any other as it is.
    """
    if contract.scale == "in-q":
        return replace(inputs, q=keep(inputs.q.double() * inputs.factor), scale=1.0)
    if contract.scale == "rounded":
        return replace(
            inputs,
            scale=contract.operands.round(torch.tensor(inputs.factor, dtype=torch.float32)).item(),
        )
    return inputs


def with_dot(stage: Stage, dot: Dot) -> Stage:
    """`stage` with its dot products taken by `dot`."""

    def changed(c: Chunk) -> None:
        arithmetic = c.arithmetic
        c.arithmetic = replace(arithmetic, dot=dot)
        stage(c)
        c.arithmetic = arithmetic

    return changed


def exp_base_2(x: Tensor) -> Tensor:
    """exp through a base-2 exponential unit: one more rounding, of x / ln 2."""
    return torch.exp2(x * LOG2_E)


def summed_in_base_2(way: Stage) -> Stage:
    """Math: 3.1 one way, stored as G / ln 2 for a base-2 exponential unit: between its roundings
    lie other numbers. In nats, float64.
    """

    def cumsum(c: Chunk) -> None:
        way(c)
        c.G = c.store("G", c.G * LOG2_E).double() / LOG2_E

    return cumsum


def substitute_rows(c: Chunk) -> None:
    """Math: 3.3 row by row, as vector units do it."""
    c.R = c.store("R", by_rows(c.Akk, c.dot))


def substitute_columns(c: Chunk) -> None:
    """Math: 3.3 row by row, every sum made term by term in the working type:
    all rows at once, which is quicker.
    """
    c.R = c.store("R", by_columns(c.Akk, c.dot))


def substituted_in_order(contract: Contract) -> Stage:
    """Math: 3.3 row by row, every sum made term by term and kept as the contract says."""
    return substitute_rows if contract.narrow_sums else substitute_columns


def merge_blocks(c: Chunk, own: Inverse = by_library) -> None:
    """Math: 3.3 by blocks of the size of the scores', those on the diagonal by `own`."""
    c.R = c.store("R", by_blocks(c.Akk, c.dot, size=c.arithmetic.sub_block, own=own))


def sum_series(c: Chunk) -> None:
    """Math: 3.3 by blocks, those on the diagonal as products of I + powers of A."""
    merge_blocks(c, lambda A: by_neumann(A, c.dot))


def residual_wy(c: Chunk) -> None:
    """Math: 3.4 of the residual form: R is applied after the state is subtracted,
    so w and u stay unsolved.
    """
    solved, c.R = c.R, identity(c.R)
    STAGES.wy(c)
    c.R = solved


def residual_state(c: Chunk) -> None:
    """Math: 3.5 with v_new = R (beta v - beta k exp(G) h)."""
    c.h = c.store("h", c.S)
    _write(c, c.dot(c.R, c.store("residual", c.u - c.dot(c.w, c.h))))


def unsolved(c: Chunk) -> None:
    """Math: 3.3 of kernels that never make R."""
    c.R = identity(c.Akk)


def substituted_state(c: Chunk) -> None:
    """Math: 3.5 with (I + Akk) v_new = beta v - beta k exp(G) h solved for v_new.

    Substitution rounds what the state brings once a row, an inverse its own elements. Where writes
    erase the state those are nearly 0, and substitution has ten times the error: kernels that solve
    so, right and in fp32, were rejected for single elements of dk and dbeta at 1.3 to 4.1 times
    their tolerance.
    """
    c.h = c.store("h", c.S)
    _write(c, c.arithmetic.substitute(c.Akk, c.store("residual", c.u - c.dot(c.w, c.h))))


def _write(c: Chunk, v_new: Tensor) -> None:
    c.v_new = c.store("v_new", v_new)
    carried = c.S * c.decay(slice(-1, None)).transpose(-1, -2)
    c.S = c.store("S", c.added(carried, c.kg.transpose(-1, -2), c.v_new))


def scaled_wy(c: Chunk) -> None:
    """Math: 3.4 with the scale inside qg: stored after it,
    a small qg has fewer bits in a format with subnormals.
    """
    STAGES.wy(c)
    c.qg = c.store("qg", c.scale * c.tokens.q * c.decay(slice(None)))


def scaled_output(c: Chunk) -> None:
    """Math: 3.6 with the scale already in qg."""
    c.o = c.store("o", c.added(c.dot(c.qg, c.h), c.Aqk, c.v_new))


def running_cumsum(c: Chunk) -> None:
    """Math: 3.1 with every partial sum rounded to the working type (torch sums in a wider one)."""
    _running_cumsum(c, operator.add)


def running_cumsum_in(keep: Callable[[Tensor], Tensor] | None) -> Stage:
    """Math: 3.1 with every partial sum rounded as `keep` does; None: to the working type."""
    if keep is None:
        return running_cumsum
    return lambda c: _running_cumsum(c, lambda total, g: keep(total + g))


def _running_cumsum(c: Chunk, add: Callable[[Tensor, Tensor], Tensor]) -> None:
    rows = finite_gates(c).unbind(-2)
    c.G = c.store("G", torch.stack(list(accumulate(rows, add)), dim=-2))


@cache
def multiplied_decays(fmt: Format) -> Stage:
    """Math: 3.1 of kernels that are given decays and multiply them: G is the logarithm of running
    products, each rounded to `fmt`.

    Where the gate of a channel never changes, neither do the roundings of its products: a right
    kernel in chunks of 4 tokens was rejected for a median error of 3 times its tolerance.
    """

    def product(passed: _Scaled, decay: _Scaled) -> _Scaled:
        # Apart from its exponent a product neither underflows nor has fewer bits.
        size, exponent = torch.frexp(passed[0] * decay[0])
        return fmt.round(size), passed[1] + decay[1] + exponent

    def stage(c: Chunk) -> None:
        size, exponent = torch.frexp(finite_gates(c).double().exp())
        rows = zip(size.unbind(-2), exponent.unbind(-2), strict=True)
        sums = [m.log() + e * math.log(2.0) for m, e in accumulate(rows, product)]
        c.G = c.store("G", torch.stack(sums, dim=-2).to(c.tokens.g.dtype))

    return stage


@cache
def clamped_resets(reset: float) -> Stage:
    """Math: 3.1 of kernels that sum a hard reset as the gate `reset`.

    Later gates of the chunk then have the digits that sums of such a size leave. A right port that
    clamps the logarithms of its decays was rejected at 1.4 to 8 times its tolerance behind resets.
    """

    def stage(c: Chunk) -> None:
        c.resets = None
        gates = c.tokens.g
        c.G = c.store("G", gates.masked_fill(gates.isneginf(), reset).cumsum(-2))

    return stage


def running_cumsum_bwd(b: ChunkGradients) -> None:
    """Math: VJP of 3.1 with every partial sum rounded
    to the working type (torch sums in a wider one).
    """
    BACKWARD.cumsum_bwd(b)
    rows = list(accumulate(reversed(b.dG.unbind(-2))))
    hard = b.c.tokens.g[..., : b.dG.shape[-1]].isneginf()
    b.dg = b.store("dg", torch.stack(rows[::-1], dim=-2).masked_fill(hard, 0.0))


ROWWISE = replace(STAGES, cumsum=running_cumsum, solve=substitute_rows)
SCALED = replace(STAGES, cumsum=running_cumsum, wy=scaled_wy, output=scaled_output)
RESIDUAL = replace(STAGES, wy=residual_wy, state=residual_state)
SUBSTITUTED = replace(RESIDUAL, solve=unsolved, state=substituted_state)
