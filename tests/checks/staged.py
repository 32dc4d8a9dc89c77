"""Adapters of stages: eager's own, one of them replaced by a planted fault."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain as in_turn

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter, Output
from kdaverify.adapters.eager import EAGER
from kdaverify.adapters.stages import StageArguments, StageCall, chain, formats_of, torch_stages
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.formats import FORMATS, format_of
from kdaverify.checks.stages import walk, walk_back
from kdaverify.problems import Problem
from oracles.chunk import STAGES, Chunk, Stages
from oracles.inputs import Inputs
from oracles.stages import Named, region, run_stages

Change = Callable[[StageArguments, dict[str, Tensor]], Named]
Fault = Stages | tuple[str, Change]


class Staged(Adapter):
    """Eager's stages one after the other, by a table of stages with a fault in it, or with what one
    of them returns changed.
    """

    dtypes = ("fp64", "fp32", "bf16", "fp16")

    def __init__(self, name: str, fault: Fault = STAGES) -> None:
        self.name, self._fault = name, fault

    def contract(self, dtype: str) -> Contract:
        return EAGER.contract(dtype)

    def forward(self, inputs: Inputs) -> Output:
        dtype = format_of(inputs.q.dtype).name
        contract = self.contract(dtype)
        written = chain(
            self.stages(dtype),
            StageArguments(inputs, {}, contract.chunk_size, formats_of(contract, FORMATS[dtype])),
        )
        return Output(written["o"], written["final_state"])

    def proof(self) -> str:
        return "stages of its own"

    def stages(self, dtype: str) -> Mapping[str, StageCall]:
        table = self._fault if isinstance(self._fault, Stages) else STAGES
        calls = torch_stages(
            self.contract(dtype), FORMATS[dtype], functools.partial(run_stages, stages=table)
        )
        if not isinstance(self._fault, Stages):
            name, change = self._fault
            calls[name] = changed(calls[name], change)
        return calls


def changed(stage: StageCall, change: Change) -> StageCall:
    def call(x: StageArguments) -> Named:
        return change(x, dict(stage.call(x)))

    return replace(stage, call=call)


def truncated_neumann(c: Chunk) -> None:
    """Math: 3.3 as (I - A)(I + A^2), which ends at A^3."""
    identity = torch.eye(c.Akk.shape[-1], dtype=c.Akk.dtype)
    c.R = c.store("R", (identity - c.Akk) @ (identity + c.Akk @ c.Akk))


def exp_of_minus_cumsum(c: Chunk) -> None:
    """Math: 3.2 as (q exp G)(k exp -G)^T over the whole chunk,
    the upper triangle not masked before exp.
    """
    STAGES.scores(c)
    back = (c.tokens.k * (-c.G).exp()).transpose(-1, -2)
    c.Aqk = c.store("Aqk", (c.scale * (c.tokens.q * c.G.exp()) @ back).tril())
    c.Akk = c.store("Akk", (c.tokens.beta[..., None] * (c.tokens.k * c.G.exp()) @ back).tril(-1))


def from_the_padded_row(c: Chunk) -> None:
    """Math: 3.4 with kg relative to the chunk's last row as memory holds it: past the end of a
    sequence the sums are 0.
    """
    STAGES.wy(c)
    valid = c.tokens.valid[:, None, :, None]
    end = torch.where(valid[:, :, -1:], c.G[..., -1:, :], 0.0)
    c.kg = c.store("kg", c.tokens.k * (end - c.G).clamp(max=0).exp())


def without_decay(c: Chunk) -> None:
    """Math: 3.4 with w = R (beta k)."""
    STAGES.wy(c)
    c.w = c.store("w", c.dot(c.R, c.tokens.beta[..., None] * c.tokens.k))


def carried_in_bf16(c: Chunk) -> None:
    """Math: 3.5 with the state rounded to bf16 after every chunk."""
    STAGES.state(c)
    c.S = c.S.bfloat16().to(c.S.dtype)


def the_last_decay_left_out(c: Chunk) -> None:
    """Math: 3.5 with h decayed by all gates of the chunk but the last row's."""
    kept = c.S
    STAGES.state(c)
    c.S = kept * c.G[..., -2:-1, :].exp().transpose(-1, -2) + c.dot(c.kg.transpose(-1, -2), c.v_new)


def h_transposed(x: StageArguments, written: dict[str, Tensor]) -> Named:
    return written | {"h": written["h"].transpose(-1, -2).contiguous()}


def v_new_gated(x: StageArguments, written: dict[str, Tensor]) -> Named:
    """v_new scaled by the decay to the chunk's end before it is stored,
    as a scalar-gated kernel may do inside.
    """
    G = x.tensors["G"]
    scaled = (
        written["v_new"] * (G[:, x.inputs.T - 1 :] - G).mean(-1, keepdim=True).clamp(max=0).exp()
    )
    return written | {"v_new": scaled.to(written["v_new"].dtype)}


def columns_by_pack(x: StageArguments, written: dict[str, Tensor]) -> Named:
    """Columns of Aqk counted from the start of the pack instead of the start of the chunk."""
    Aqk = written["Aqk"].clone()
    for first, length in zip(x.inputs.starts, x.inputs.lengths, strict=True):
        Aqk[:, first : first + length] = Aqk[:, first : first + length].roll(
            first % x.chunk_size, dims=-1
        )
    return written | {"Aqk": Aqk}


def cumsum_across_chunks(x: StageArguments, written: dict[str, Tensor]) -> Named:
    return {"G": x.inputs.g.cumsum(1)}


def unscaled(x: StageArguments, written: dict[str, Tensor]) -> Named:
    return {"o": (written["o"].float() / x.inputs.factor).to(written["o"].dtype)}


def upper_left_undefined(x: StageArguments, written: dict[str, Tensor]) -> Named:
    """Conforming: what no kernel may read holds NaN."""
    return {
        name: tensor.masked_fill(~region(name, x.inputs, x.chunk_size), torch.nan)
        for name, tensor in written.items()
    }


def input_overwritten(x: StageArguments, written: dict[str, Tensor]) -> Named:
    x.tensors["u"].copy_(written["v_new"])
    return written


def tables(**stages: Callable[[Chunk], None]) -> Stages:
    return replace(STAGES, **stages)


def first_wrong(adapter: Adapter, problem: Problem, *, backward: bool = False) -> str | None:
    """The first stage outside its tolerance, on exact inputs, then on its own; None if none.

    Args:
        backward: whether a gradient is wrong: backward stages then follow the forward's.
    """
    steps = in_turn(walk(adapter, problem), walk_back(adapter, problem) if backward else ())
    return next((step.name for step in steps if step.outcome.status.rejects), None)
