"""Legal kernels of a contract, emulated: one pipeline, many roundings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from kdaverify.budgets.contract import Contract
from kdaverify.budgets.formats import Format, truncate_tf32
from kdaverify.budgets.parts import Outputs, run_in_parts
from kdaverify.budgets.pipeline import run_form
from kdaverify.budgets.solves import Dot, by_blocks, by_rows, identity
from oracles.arithmetic import NATIVE, Arithmetic
from oracles.chunk import STAGES, SUB_BLOCK, Chunk, Stage, Stages
from oracles.chunk_backward import BACKWARD, BackwardStage, BackwardStages, ChunkGradients, intra_bwd
from oracles.inputs import Inputs

# 1 / ln 2: kernels with a base-2 exponential unit scale the gate first, and round that.
LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Emulator:
    """One legal kernel: a contract's roundings with the freedoms it leaves open decided one way."""

    name: str
    contract: Contract
    io: Format
    dot: Dot = torch.matmul
    exp: Callable[[Tensor], Tensor] = torch.exp
    total: Callable[[Tensor], Tensor] = NATIVE.total
    stages: Stages = STAGES
    backward: BackwardStages = BACKWARD
    softplus: bool = False

    def run(self, inputs: Inputs, cuts: tuple[int, ...] = ()) -> Outputs:
        """o [B, T, HV, V] and S_T [N, HV, K, V] as float64 tensors holding the formats this kernel stores, resumed at `cuts`."""
        return run_in_parts(self._run, short_gates(inputs, self.contract) if self.softplus else inputs, cuts)

    def _run(self, inputs: Inputs) -> Outputs:
        o, final = run_form(self.contract, inputs, dtype=self.contract.work, arithmetic=self.arithmetic, stages=self.stages)
        return o.double(), final.double()

    @property
    def arithmetic(self) -> Arithmetic:
        return Arithmetic(self.store, self.dot, self.exp, self.total)

    def store(self, name: str, tensor: Tensor) -> Tensor:
        """`tensor` in the format that the contract stores it in."""
        return self.contract.storage(name, self.io).round(tensor)


def short_gates(inputs: Inputs, contract: Contract) -> Inputs:
    """The call as a kernel sees it whose softplus, log(1 + exp x), has lost the last bit of its sum everywhere: g less that bit."""
    return replace(inputs, g=inputs.g.double() - 2 * contract.accumulate.unit)


def flushed(emulator: Emulator) -> Emulator:
    """The same kernel on a unit that flushes: whatever leaves a dot product or an exponential below the normal range is 0."""
    smallest = emulator.contract.accumulate.min_normal

    def flush(tensor: Tensor) -> Tensor:
        return tensor.masked_fill(tensor.abs() < smallest, 0.0)

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return flush(emulator.dot(flush(a), flush(b)))

    def exp(x: Tensor) -> Tensor:
        return flush(emulator.exp(x))

    return replace(emulator, name=f"{emulator.name}, subnormals flushed", dot=dot, exp=exp)


def matrix_units(fmt: Format) -> dict[str, Dot]:
    """Ways of matrix units, by name: both operands brought to `fmt`, products summed in the working type."""
    ways = {"matrix units": fmt.round}
    if fmt.name == "tf32":
        ways["matrix units that truncate"] = truncate_tf32
    return {name: _with_operands(bring) for name, bring in ways.items()}


def _with_operands(bring: Callable[[Tensor], Tensor]) -> Dot:
    return lambda a, b: torch.matmul(bring(a), bring(b))


def with_dot(stage: Stage, dot: Dot) -> Stage:
    """`stage` with its dot products taken by `dot`."""

    def changed(c: Chunk) -> None:
        arithmetic = c.arithmetic
        c.arithmetic = replace(arithmetic, dot=dot)
        stage(c)
        c.arithmetic = arithmetic

    return changed


def scores_backward(dot: Dot, *, diagonal: bool) -> BackwardStages:
    """The backward of kernels whose scores take their dot products by `dot`, in blocks off the diagonal or in all: theirs do too."""
    return replace(BACKWARD, intra_bwd=pairs_with(dot=dot) if diagonal else partial(intra_bwd, across=dot))


def pairs_with(**changed: Callable[..., Tensor]) -> BackwardStage:
    """Math: VJP of 3.2 with products, or exponentials, of one kind."""

    def pairs(b: ChunkGradients) -> None:
        arithmetic = b.c.arithmetic
        b.c.arithmetic = replace(arithmetic, **changed)
        intra_bwd(b)
        b.c.arithmetic = arithmetic

    return pairs


def tree(fmt: Format) -> Callable[[Tensor], Tensor]:
    """Sums over the last axis that never leave `fmt`: products rounded, then pairs, pairs of pairs, each sum rounded."""

    def total(products: Tensor) -> Tensor:
        terms = fmt.round(products)
        while terms.shape[-1] > 1:
            even = terms if terms.shape[-1] % 2 == 0 else torch.cat((terms, torch.zeros_like(terms[..., :1])), dim=-1)
            terms = fmt.round(even[..., ::2] + even[..., 1::2])
        return terms.squeeze(-1)

    return total


def sequential(a: Tensor, b: Tensor) -> Tensor:
    """A dot product summed in order, in at most 16 partial sums, instead of by a library's tree."""
    return _in_parts(a, b, min(a.shape[-1], 16))


def one_by_one(a: Tensor, b: Tensor) -> Tensor:
    """A dot product summed in order, term by term, as a plain loop does."""
    return _in_parts(a, b, a.shape[-1])


def _in_parts(a: Tensor, b: Tensor, parts: int) -> Tensor:
    pieces = zip(a.tensor_split(parts, dim=-1), b.tensor_split(parts, dim=-2), strict=True)
    total = None
    for left, right in pieces:
        product = left @ right
        total = product if total is None else total + product
    return a @ b if total is None else total


def exp_base_2(x: Tensor) -> Tensor:
    """exp through a base-2 exponential unit: one more rounding, of x / ln 2."""
    return torch.exp2(x * LOG2_E)


def substitute_rows(c: Chunk) -> None:
    """Math: 3.3 row by row, as vector units do it."""
    c.R = c.store("R", by_rows(c.Akk, c.dot))


def merge_blocks(c: Chunk) -> None:
    """Math: 3.3 by 16-row blocks."""
    c.R = c.store("R", by_blocks(c.Akk, c.dot, size=SUB_BLOCK))


def residual_wy(c: Chunk) -> None:
    """Math: 3.4 of the residual form: R is applied after the state is subtracted, so w and u stay unsolved."""
    solved, c.R = c.R, identity(c.R)
    STAGES.wy(c)
    c.R = solved


def residual_state(c: Chunk) -> None:
    """Math: 3.5 with v_new = R (beta v - beta k exp(G) h)."""
    c.h = c.store("h", c.S)
    c.v_new = c.store("v_new", c.dot(c.R, c.store("residual", c.u - c.dot(c.w, c.h))))
    carried = c.S * c.decay(slice(-1, None)).transpose(-1, -2)
    c.S = c.store("S", carried + c.dot(c.kg.transpose(-1, -2), c.v_new))


def scaled_wy(c: Chunk) -> None:
    """Math: 3.4 with the scale inside qg: stored after it, a small qg has fewer bits in a format with subnormals."""
    STAGES.wy(c)
    c.qg = c.store("qg", c.scale * c.tokens.q * c.decay(slice(None)))


def scaled_output(c: Chunk) -> None:
    """Math: 3.6 with the scale already in qg."""
    c.o = c.store("o", c.dot(c.qg, c.h) + c.dot(c.Aqk, c.v_new))


def running_cumsum(c: Chunk) -> None:
    """Math: 3.1 with every partial sum rounded to the working type (torch sums in a wider one)."""
    hard = c.tokens.g.isneginf()
    c.resets = hard.long().cumsum(-2) if bool(hard.any()) else None
    rows = list(c.tokens.g.masked_fill(hard, 0.0).unbind(-2))
    c.G = c.store("G", torch.stack(list(accumulate(rows)), dim=-2))


ROWWISE = replace(STAGES, cumsum=running_cumsum, solve=substitute_rows)
ROWWISE_SCALED = replace(ROWWISE, wy=scaled_wy, output=scaled_output)
RESIDUAL = replace(STAGES, wy=residual_wy, state=residual_state)
