"""A frozen, JSON-able question: sizes, packing, regimes, dtype and seed, from which the same tensors are built on every machine."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kdaverify.problems.axes import Dtype
from kdaverify.problems.regimes import REGIMES
from kdaverify.problems.tensors import build
from oracles.inputs import Inputs

_SHOWN_LENGTHS = 12

Size = Annotated[int, Field(ge=1, strict=True)]
Count = Annotated[int, Field(ge=0, strict=True)]


class ProblemError(ValueError):
    """A problem that cannot be asked; the message names the field, what was wanted, what came, what to do."""


class Problem(BaseModel):
    """One question to a kernel.

    Args:
        op: the operation.
        B, T: batch entries and tokens of each (packed: B = 1 and T tokens in all).
        H, HV: key heads and value heads, HV a multiple of H.
        K, V: key and value width of a head.
        lengths: tokens of each packed sequence, or None for B separate ones; tokens past their sum are padding.
        dtype: type of q, k, v and beta; gates and states are fp32 (fp64 beside fp64).
        gate, key, beta, state, value: regime names.
        scale: factor of the output; None means K^-1/2.
        seed: of every random number.
    Raises:
        pydantic.ValidationError: (a ValueError) naming every field that is wrong.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    op: Literal["kda"] = "kda"
    B: Size
    T: Count
    H: Size
    HV: Size
    K: Size
    V: Size
    lengths: tuple[Count, ...] | None = None
    dtype: Dtype
    gate: str
    key: str
    beta: str
    state: str
    value: str
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
        return tuple((0, sum(self.lengths[:n]), length) for n, length in enumerate(self.lengths))

    @property
    def id(self) -> str:
        """A readable stem and 10 hexadecimal digits of the SHA-256 of `to_json()`."""
        pack = f"-pack{self.N}" if self.packed else ""
        stem = f"{self.op}-{self.dtype}-B{self.B}T{self.T}{pack}-H{self.H}HV{self.HV}-K{self.K}V{self.V}-{self.gate}"
        return f"{stem}-{hashlib.sha256(self.to_json().encode()).hexdigest()[:10]}"

    def to_json(self) -> str:
        """The one canonical form: sorted keys, no spaces, absent options left out (so a new option moves no id)."""
        return json.dumps(self.model_dump(mode="json", exclude_none=True), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Problem:
        """The problem that `to_json` wrote.

        Raises:
            ProblemError: the text is no JSON object, or a field is missing, unknown or wrong.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ProblemError(f"problem: {explain(error)}; write it with Problem(...).to_json()") from None

    def replace(self, **changes: Any) -> Problem:
        """The same problem with some fields changed, checked again."""
        return Problem(**{**self.model_dump(), **changes})

    def inputs(self) -> Inputs:
        """The tensors, bit-identical on every machine."""
        return build(self)

    def describe(self) -> str:
        """One line for people."""
        sizes = f"B={self.B} T={self.T} H={self.H} HV={self.HV} K={self.K} V={self.V}"
        regimes = " ".join(f"{axis}={getattr(self, axis)}" for axis in REGIMES)
        scale = "" if self.scale is None else f" scale={self.scale:g}"
        return f"{self.op} {sizes}{_pack(self.lengths)} {self.dtype} {regimes}{scale} seed={self.seed}"


def _pack(lengths: tuple[int, ...] | None) -> str:
    if lengths is None:
        return ""
    shown = ",".join(str(length) for length in lengths[:_SHOWN_LENGTHS])
    more = f",... {len(lengths)} sequences" if len(lengths) > _SHOWN_LENGTHS else ""
    return f" pack ({shown}{more})"


def _sizes(p: Problem) -> list[str]:
    complaints: list[str] = []
    if p.HV % p.H:
        complaints.append(f"HV: wanted a multiple of H = {p.H}, got {p.HV}; value head j reads key head j // (HV / H)")
    if p.scale is not None and not math.isfinite(p.scale):
        complaints.append(f"scale: wanted a finite number or None, got {p.scale}; None means K^-1/2")
    if p.T == 0 and p.lengths is None:
        complaints.append("T: wanted at least 1 token, got 0; only a pack may be empty, give lengths=(0,)")
    return complaints


def _packing(p: Problem) -> list[str]:
    if p.lengths is None:
        return []
    complaints: list[str] = []
    if p.B != 1:
        complaints.append(f"B: packed sequences need B = 1, got {p.B}; put all sequences in lengths")
    if not p.lengths:
        complaints.append("lengths: wanted at least one sequence, got (); use None for an unpacked problem")
    if sum(p.lengths) > p.T:
        complaints.append(f"lengths: wanted a sum of at most T = {p.T}, got {sum(p.lengths)}; raise T or shorten a sequence")
    return complaints


def _names(p: Problem) -> list[str]:
    return [
        f"{axis}: no regime named {getattr(p, axis)!r}; known ones are {', '.join(table)}"
        for axis, table in REGIMES.items()
        if getattr(p, axis) not in table
    ]


def explain(error: ValidationError) -> str:
    """Every field that is wrong, in one line."""
    parts: list[str] = []
    for item in error.errors(include_url=False):
        where = ".".join(str(step) for step in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        parts.append(f"{where}: {message} (got {item['input']!r})" if where else message)
    return "; ".join(parts)
