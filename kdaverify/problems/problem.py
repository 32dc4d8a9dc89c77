"""A frozen JSON-able question, from which every machine builds the same tensors."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from kdaverify.canonical import Canonical
from kdaverify.problems.axes import Dtype, Gates
from kdaverify.problems.regimes import REGIMES
from kdaverify.problems.tensors import betas, build, gates
from oracles.inputs import Inputs

# In a description; of a longer pack the number of sequences follows.
_SHOWN_LENGTHS = 12

Size = Annotated[int, Field(ge=1, strict=True)]
Count = Annotated[int, Field(ge=0, strict=True)]
Limits = tuple[float | None, float | None]


class Problem(Canonical):
    """One problem of a kernel.

    Args:
        op: the operation.
        B, T: batch entries and tokens of each (packed: B = 1 and T tokens in all).
        H, HV: key heads and value heads, HV a multiple of H.
        K, V: key and value width of a head.
        lengths: tokens of each packed sequence, or None for B separate ones; tokens past their sum
            are padding.
        dtype: type of q, k, v and beta; gates and states are fp32 (fp64 beside fp64).
        gates: log decays of a value head and token: one a key channel, one for all of them, or
            none.
        gate, key, beta, state, value: regime names.
        gate_range, beta_range: what g and beta are clamped to, (lowest, highest), None where a side
            is open; None: they are as generated.
        scale: factor of the output; None means K^-1/2.
        seed: of every random number.
    Raises:
        pydantic.ValidationError: (a ValueError) naming every field that is wrong.
    """

    op: Literal["kda"] = "kda"
    B: Size
    T: Count
    H: Size
    HV: Size
    K: Size
    V: Size
    lengths: tuple[Count, ...] | None = None
    dtype: Dtype
    # Left out where it is as it was before there was another: a problem keeps its JSON, and its id.
    gates: Gates = Field(default="channel", exclude_if=lambda gates: gates == "channel")
    gate: str
    key: str
    beta: str
    state: str
    value: str
    gate_range: Limits | None = None
    beta_range: Limits | None = None
    scale: float | None = None
    seed: Count

    @model_validator(mode="after")
    def _check(self) -> Problem:
        complaints = [*_sizes(self), *_packing(self), *_names(self)]
        if complaints:
            raise ValueError("; ".join(complaints))
        return self

    @property
    def packed(self) -> bool:
        return self.lengths is not None

    @property
    def N(self) -> int:
        """Sequences."""
        return self.B if self.lengths is None else len(self.lengths)

    @property
    def spans(self) -> tuple[tuple[int, int, int], ...]:
        """(batch entry, first token, length) of every sequence."""
        if self.lengths is None:
            return tuple((b, 0, self.T) for b in range(self.B))
        starts = accumulate(self.lengths, initial=0)
        return tuple(
            (0, start, length) for start, length in zip(starts, self.lengths, strict=False)
        )

    @property
    def stem(self) -> str:
        pack = f"-pack{self.N}" if self.packed else ""
        gates = "" if self.gates == "channel" else f"-{self.gates}"
        sizes = f"B{self.B}T{self.T}{pack}-H{self.H}HV{self.HV}-K{self.K}V{self.V}"
        return f"{self.op}{gates}-{self.dtype}-{sizes}-{self.gate}"

    @property
    def regime(self) -> str:
        """The gate regime; "-clamped" where a declared range changed its gates."""
        if self.gate_range is None or torch.equal(
            self.decays(), self.replace(gate_range=None).decays()
        ):
            return self.gate
        return f"{self.gate}-clamped"

    def inputs(self) -> Inputs:
        """The tensors, bit-identical on every machine."""
        return build(self)

    def decays(self) -> Tensor:
        """g of `inputs`, without the other tensors."""
        return gates(self)

    def betas(self) -> Tensor:
        """beta of `inputs`, without the other tensors."""
        return betas(self)

    def describe(self) -> str:
        """One line for people."""
        sizes = f"B={self.B} T={self.T} H={self.H} HV={self.HV} K={self.K} V={self.V}"
        regimes = " ".join(f"{axis}={getattr(self, axis)}" for axis in REGIMES)
        scale = "" if self.scale is None else f" scale={self.scale:g}"
        clamped = "".join(
            _clamped(name, getattr(self, f"{name}_range")) for name in ("gate", "beta")
        )
        gates = "" if self.gates == "channel" else f" gates={self.gates}"
        return (
            f"{self.op} {sizes}{_pack(self.lengths)} {self.dtype}{gates} {regimes}{clamped}{scale}"
            f" seed={self.seed}"
        )


def _clamped(name: str, limits: Limits | None) -> str:
    if limits is None:
        return ""
    low, high = ("" if limit is None else f"{limit:g}" for limit in limits)
    return f" {name}_range={low}..{high}"


def _pack(lengths: tuple[int, ...] | None) -> str:
    if lengths is None:
        return ""
    shown = ",".join(str(length) for length in lengths[:_SHOWN_LENGTHS])
    more = f",... {len(lengths)} sequences" if len(lengths) > _SHOWN_LENGTHS else ""
    return f" pack ({shown}{more})"


def _sizes(p: Problem) -> list[str]:
    complaints: list[str] = []
    if p.HV % p.H:
        complaints.append(
            f"HV: wanted a multiple of H = {p.H}, got {p.HV}; value head j reads key head j // (HV"
            " / H)"
        )
    if p.scale is not None and not math.isfinite(p.scale):
        complaints.append(
            f"scale: wanted a finite number or None, got {p.scale}; None means K^-1/2"
        )
    if p.T == 0 and p.lengths is None:
        complaints.append(
            "T: wanted at least 1 token, got 0; only a pack may be empty, give lengths=(0,)"
        )
    return complaints


def _packing(p: Problem) -> list[str]:
    if p.lengths is None:
        return []
    complaints: list[str] = []
    if p.B != 1:
        complaints.append(
            f"B: packed sequences need B = 1, got {p.B}; put all sequences in lengths"
        )
    if not p.lengths:
        complaints.append(
            "lengths: wanted at least one sequence, got (); use None for an unpacked problem"
        )
    if sum(p.lengths) > p.T:
        complaints.append(
            f"lengths: wanted a sum of at most T = {p.T}, got {sum(p.lengths)}; raise T or shorten"
            " a sequence"
        )
    return complaints


def _names(p: Problem) -> list[str]:
    return [
        f"{axis}: no regime named {getattr(p, axis)!r}; known ones are {', '.join(table)}"
        for axis, table in REGIMES.items()
        if getattr(p, axis) not in table
    ]
