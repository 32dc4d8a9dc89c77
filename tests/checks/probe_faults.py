"""Kernels that make one wrong decision each, under any contract,
and the probes that must show it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter, Output
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.emulate import Emulator
from kdaverify.budgets.formats import FORMATS, Format, format_of
from kdaverify.budgets.parts import Outputs
from kdaverify.budgets.pipeline import run_form
from kdaverify.budgets.solves import Dot, by_neumann
from oracles.arithmetic import SUB_BLOCK, keep
from oracles.chunk import STAGES, Chunk
from oracles.inputs import Inputs
from tests.checks.staged import exp_of_minus_cumsum, tables

Kernel = Callable[[Inputs, Contract, Format], Outputs]
BF16: Final = FORMATS["bf16"]
NARROWER: Final = {"fp64": FORMATS["fp32"], "fp32": FORMATS["tf32"], "tf32": BF16, "fp16": BF16}


class Planted(Adapter):
    """A kernel that declares `contract` and runs `kernel`."""

    def __init__(self, contract: Contract, dtype: str, kernel: Kernel) -> None:
        self.name, self.dtypes, self._contract, self._kernel = "planted", (dtype,), contract, kernel

    def contract(self, dtype: str) -> Contract:
        return self._contract

    def forward(self, inputs: Inputs) -> Output:
        o, final = self._kernel(inputs, self._contract, format_of(inputs.q.dtype))
        return Output(o.to(inputs.q.dtype), final.to(self._contract.carry.dtype))

    def proof(self) -> str:
        return "planted"


def conforming(
    x: Inputs,
    contract: Contract,
    io: Format,
    *,
    also: Callable[[str, Tensor], Tensor] = keep,
    **changed: Any,
) -> Outputs:
    """The baseline reference kernel of a contract; `also` rounds what it stored once more,
    `changed` are fields of an Emulator.
    """
    emulator = Emulator("planted", contract, io, **changed)

    def store(name: str, tensor: Tensor) -> Tensor:
        return also(name, emulator.store(name, tensor))

    arithmetic = replace(emulator.arithmetic, store=store)
    o, final = run_form(
        contract, x, dtype=contract.work, arithmetic=arithmetic, stages=emulator.stages
    )
    return o.double(), final.double()


def rounded_decay(x: Inputs, contract: Contract, io: Format) -> Outputs:
    def exp(exponent: Tensor) -> Tensor:
        return BF16.round(exponent.exp())

    return conforming(x, contract, io, exp=exp)


def rounded_gate_sums(x: Inputs, contract: Contract, io: Format) -> Outputs:
    """G in bf16; of a kernel without G, g."""

    def cumsum(c: Chunk) -> None:
        STAGES.cumsum(c)
        c.G = BF16.round(c.G)

    given = replace(x, g=BF16.round(x.g)) if contract.form == "recurrent" else x
    return conforming(given, contract, io, stages=tables(cumsum=cumsum))


def carried_in(fmt: Format) -> Kernel:
    return lambda x, contract, io: conforming(
        x, contract, io, also=lambda name, t: fmt.round(t) if name == "S" else t
    )


def carried_in_fewer_bits(x: Inputs, contract: Contract, io: Format) -> Outputs:
    return carried_in(NARROWER[contract.carry.name])(x, contract, io)


def checkpoint_in_bf16(x: Inputs, contract: Contract, io: Format) -> Outputs:
    o, final = conforming(x, contract, io)
    return o, BF16.round(final)


def residual_in_bf16(x: Inputs, contract: Contract, io: Format) -> Outputs:
    """S^T k rounded before it is subtracted."""

    def state(c: Chunk) -> None:
        c.h = c.store("h", c.S)
        c.v_new = c.store("v_new", c.u - BF16.round(c.dot(c.w, c.h)))
        c.S = c.store(
            "S",
            c.S * c.decay(slice(-1, None)).transpose(-1, -2)
            + c.dot(c.kg.transpose(-1, -2), c.v_new),
        )

    return conforming(
        x,
        contract,
        io,
        also=lambda name, t: BF16.round(t) if name == "p" else t,
        stages=tables(state=state),
    )


def on_units_of(fmt: Format) -> Dot:
    """Products of operands rounded to `fmt`."""
    return lambda a, b: fmt.round(a) @ fmt.round(b)


def narrow_operands(x: Inputs, contract: Contract, io: Format) -> Outputs:
    narrow = NARROWER[io.name if contract.form == "recurrent" else contract.operands.name]
    return conforming(x, contract, io, dot=on_units_of(narrow))


def beta_in_bf16(x: Inputs, contract: Contract, io: Format) -> Outputs:
    return conforming(replace(x, beta=BF16.round(x.beta)), contract, io)


def dead_zone(x: Inputs, contract: Contract, io: Format) -> Outputs:
    """Values below 1e-6 taken for 0."""
    return conforming(replace(x, v=x.v.masked_fill(x.v.abs() < 1e-6, 0.0)), contract, io)


def clamped_exponents(x: Inputs, contract: Contract, io: Format) -> Outputs:
    def exp(exponent: Tensor) -> Tensor:
        return torch.where(exponent.isneginf(), 0.0, exponent.clamp(min=-20).exp())

    return conforming(x, contract, io, exp=exp)


def clamped_gates(x: Inputs, contract: Contract, io: Format) -> Outputs:
    return conforming(replace(x, g=x.g.clamp(min=-80)), contract, io)


def infinite_sums(x: Inputs, contract: Contract, io: Format) -> Outputs:
    """Hard resets summed like other gates: inf - inf after them."""

    def cumsum(c: Chunk) -> None:
        c.G, c.resets = c.store("G", c.tokens.g.cumsum(-2)), None

    return conforming(x, contract, io, stages=tables(cumsum=cumsum))


def last_gate_lost(x: Inputs, contract: Contract, io: Format) -> Outputs:
    """The last row of a chunk's buffer read, where a short chunk holds zeros; without chunks, the
    last gate left out.
    """

    def cumsum(c: Chunk) -> None:
        STAGES.cumsum(c)
        c.G = c.G.masked_fill(~c.tokens.valid[:, None, :, None], 0.0)

    if contract.form == "recurrent":
        x = replace(x, g=torch.cat((x.g[:, :-1], torch.zeros_like(x.g[:, -1:])), dim=1))
    return conforming(x, contract, io, stages=tables(cumsum=cumsum))


def factors_from_the_start(x: Inputs, contract: Contract, io: Format) -> Outputs:
    return conforming(x, contract, io, stages=tables(scores=exp_of_minus_cumsum))


def doubling(x: Inputs, contract: Contract, io: Format) -> Outputs:
    """(I - A)(I + A^2)(I + A^4)... on matrix units of the operands' format, TF32 beside fp32."""
    unit = FORMATS["tf32"] if contract.operands.name == "fp32" else contract.operands

    def solve(c: Chunk) -> None:
        c.R = c.store("R", by_neumann(c.Akk, on_units_of(unit)))

    return conforming(x, contract, io, stages=tables(solve=solve))


def diagonal_blocks_only(x: Inputs, contract: Contract, io: Format) -> Outputs:
    """The blocks of the scores left of the diagonal lost."""

    def scores(c: Chunk) -> None:
        STAGES.scores(c)
        block = torch.arange(c.Akk.shape[-1]) // SUB_BLOCK
        c.Akk = c.Akk * (block[:, None] == block)

    return conforming(x, contract, io, stages=tables(scores=scores))


def zero_differences_dropped(x: Inputs, contract: Contract, io: Format) -> Outputs:
    def exp(exponent: Tensor) -> Tensor:
        return torch.where(exponent < 0, exponent.exp(), 0.0)

    return conforming(x, contract, io, exp=exp)


def one_row_tail_skips_the_state(x: Inputs, contract: Contract, io: Format) -> Outputs:
    """v_new = u in the last chunk, where that has one row."""

    def wy(c: Chunk) -> None:
        STAGES.wy(c)
        short = c.tokens.valid.sum(-1) == 1
        c.w = c.w.masked_fill(short[:, None, None, None], 0.0)

    return conforming(x, contract, io, stages=tables(wy=wy))


def empty_sequences_zeroed(x: Inputs, contract: Contract, io: Format) -> Outputs:
    o, final = conforming(x, contract, io)
    empty = torch.tensor([length == 0 for length in x.lengths])
    return o, final.masked_fill(empty[:, None, None, None], 0.0)


def states_of_the_neighbour(x: Inputs, contract: Contract, io: Format) -> Outputs:
    """Empty sequences return the final state of the sequence before them."""
    o, final = conforming(x, contract, io)
    empty = torch.tensor([length == 0 for length in x.lengths])
    return o, torch.where(empty[:, None, None, None], final.roll(1, 0), final)


@dataclass(frozen=True)
class Fault:
    """One wrong decision, of kernels of the forms given."""

    kernel: Kernel
    forms: tuple[str, ...] = ("chunk", "recurrent")

    @property
    def name(self) -> str:
        return getattr(self.kernel, "__name__", "")


_CHUNK: Final = ("chunk",)
# Without chunks, exponentials that are biased by half a bit a token conform, which is as much as
# the error of a short gate of 1e-4: the probe pure-decay finds that.
_GATE_SUMS: Final = Fault(rounded_gate_sums, _CHUNK)
_MEMORY: Final = (Fault(rounded_decay), Fault(checkpoint_in_bf16), Fault(carried_in_fewer_bits))
_INVERSE: Final = (Fault(doubling, _CHUNK),)

FAULTS: Final[Mapping[str, tuple[Fault, ...]]] = {
    "long-memory": (*_MEMORY, _GATE_SUMS),
    "long-memory-4096": _MEMORY,
    "kept-state": (Fault(carried_in_fewer_bits), Fault(checkpoint_in_bf16)),
    "nine-bit-state": (Fault(checkpoint_in_bf16),),
    "converged-residual": (Fault(residual_in_bf16),),
    "overwrite": (Fault(one_row_tail_skips_the_state, _CHUNK), Fault(zero_differences_dropped)),
    "whole-value": (Fault(narrow_operands),),
    "write-strength": (Fault(beta_in_bf16),),
    "powers-of-two": (Fault(dead_zone),),
    "deep-decay": (Fault(clamped_exponents, _CHUNK),),
    "pure-decay": (Fault(rounded_gate_sums), Fault(rounded_decay)),
    "hard-reset": (Fault(clamped_gates), Fault(infinite_sums, _CHUNK)),
    "huge-step": (Fault(clamped_gates), Fault(clamped_exponents)),
    "strong-then-weak": (Fault(factors_from_the_start, _CHUNK), _GATE_SUMS),
    "last-gate": (Fault(last_gate_lost),),
    "coherent-keys-0.5": _INVERSE,
    "coherent-keys-0.9": _INVERSE,
    "identical-tokens": _INVERSE,
    "sub-block-edges": (Fault(diagonal_blocks_only, _CHUNK),),
    "single-tokens": (Fault(one_row_tail_skips_the_state, _CHUNK),),
    "empty-sequences": (Fault(empty_sequences_zeroed), Fault(states_of_the_neighbour)),
    "chunks-plus-one": (Fault(one_row_tail_skips_the_state, _CHUNK),),
}
"""The faults that every probe must show, by its name."""
