"""A problem of an operation beside the kernel: gate activation, sigmoid, l2norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from kdaverify.canonical import Canonical
from kdaverify.operators.pointwise.draws import BIASES, COTANGENTS, RATES, ROWS, VALUES
from kdaverify.problems.axes import TORCH
from kdaverify.problems.portable import Array, Stream
from kdaverify.problems.problem import Count, Size
from kdaverify.problems.tensors import rounded
from oracles.pointwise.activation import L2NORM_EPS
from oracles.pointwise.operations import OPERATIONS
from oracles.stages import Named

Op = Literal["gate_softplus", "gate_bounded", "beta_sigmoid", "l2norm"]
Lies = Literal["dense", "x01", "x12", "x23", "dy01", "dy12", "dy23"]
"""How tensors lie in memory: dense, or the inputs, or the incoming gradient, with two neighbouring
axes exchanged. Where sizes are equal, strides alone say which axis is which."""
GATES: Final[tuple[Op, ...]] = ("gate_softplus", "gate_bounded")
SETTINGS: Final[dict[Op, float]] = {
    "gate_softplus": 0.0,
    "gate_bounded": -5.0,
    "beta_sigmoid": 1.0,
    "l2norm": L2NORM_EPS,
}
"""The setting of each operation where a problem states none: no setting, the lower bound, the
factor, eps."""


@dataclass(frozen=True)
class ActivationTensors:
    """The tensors of a problem.

    Args:
        tensors: what the operation takes, by name; no dt_bias where it is absent.
        cotangent: of the result: in fp32 for gates and beta, in the problem's dtype for l2norm.
        setting: as the operation takes it.
    """

    tensors: Named
    cotangent: Tensor
    setting: float


class ActivationProblem(Canonical):
    """One problem of an operation beside the kernel.

    Args:
        op: a key of `oracles.pointwise.operations.OPERATIONS`.
        B, T, HV, K: batch entries, tokens, heads and channels; of beta K = 1, of l2norm HV counts
            the heads of q or k.
        dtype: type of z, the logits or x.
        parameters: type of A_log and dt_bias.
        values, rates, bias, cotangent: names of samples (`activation_draws`); those an operation
            does not take are left alone.
        lies: in memory, of Lies.
        setting: lower bound, factor of beta or eps; None: the usual one.
        seed: of every random number.
    Raises:
        pydantic.ValidationError: (a ValueError) naming every field that is wrong.
    """

    omits_defaults = True

    op: Op
    B: Size = 1
    T: Size
    HV: Size = 1
    K: Size = 1
    dtype: Literal["fp32", "bf16", "fp16"]
    parameters: Literal["fp32", "bf16"] = "fp32"
    values: str
    rates: str = "usual"
    bias: str = "absent"
    cotangent: str = "normal"
    lies: Lies = "dense"
    setting: Annotated[float | None, Field(allow_inf_nan=False)] = None
    seed: Count = 0

    @model_validator(mode="after")
    def _check(self) -> ActivationProblem:
        tables = {
            "values": ROWS if self.op == "l2norm" else VALUES,
            "rates": RATES,
            "bias": BIASES,
            "cotangent": COTANGENTS,
        }
        complaints = [
            f"{axis}: no distribution named {getattr(self, axis)!r}; known ones are"
            f" {', '.join(table)}"
            for axis, table in tables.items()
            if getattr(self, axis) not in table
        ]
        if self.op == "gate_bounded" and self.tested >= 0:
            complaints.append(
                f"setting: wanted a negative lower bound, got {self.tested}; -5 is usual"
            )
        if self.op in ("beta_sigmoid", "l2norm") and self.tested <= 0:
            complaints.append(f"setting: wanted a positive number, got {self.tested}")
        if self.op == "beta_sigmoid" and self.K != 1:
            complaints.append(f"K: beta has no channels, got {self.K}; leave it out")
        if complaints:
            raise ValueError("; ".join(complaints))
        return self

    @property
    def tested(self) -> float:
        """The setting, the usual one where none is stated."""
        return SETTINGS[self.op] if self.setting is None else self.setting

    @property
    def regime(self) -> str:
        if self.op in GATES:
            return f"{self.values}-values-{self.rates}-rates"
        return f"{self.values}-values"

    @property
    def stem(self) -> str:
        return f"{self.op}-{self.dtype}-B{self.B}T{self.T}-HV{self.HV}-K{self.K}-{self.regime}"

    def question(self) -> ActivationTensors:
        """The tensors, bit-identical on every machine."""
        if self.op == "beta_sigmoid":
            shape = (self.B, self.T, self.HV)
        else:
            shape = (self.B, self.T, self.HV, self.K)
        drawn = ROWS[self.values] if self.op == "l2norm" else VALUES[self.values]
        first = OPERATIONS[self.op].takes[0]
        tensors = {first: rounded(drawn(self._stream(first), shape, self.dtype), TORCH[self.dtype])}
        if self.op in GATES:
            tensors["A_log"] = self._parameter(RATES[self.rates](self._stream("A_log"), (self.HV,)))
            bias = BIASES[self.bias](self._stream("dt_bias"), (self.HV, self.K))
            if bias is not None:
                tensors["dt_bias"] = self._parameter(bias)
        laid = {name: self._laid(tensor, "x") for name, tensor in tensors.items()}
        return ActivationTensors(laid, self._laid(self._cotangent(shape), "dy"), self.tested)

    def _laid(self, tensor: Tensor, which: str) -> Tensor:
        """The tensor as it lies; without both axes, dense."""
        *name, first, second = self.lies
        axes = (int(first), int(second)) if "".join(name) == which else ()
        if not axes or axes[1] >= tensor.ndim:
            return tensor
        return tensor.transpose(*axes).contiguous().transpose(*axes)

    def _cotangent(self, shape: tuple[int, ...]) -> Tensor:
        drawn = COTANGENTS[self.cotangent](self._stream("cotangent"), shape)
        dtype = TORCH[self.dtype if self.op == "l2norm" else "fp32"]
        return rounded(drawn, dtype).clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max)

    def _parameter(self, values: Array) -> Tensor:
        return rounded(values, TORCH[self.parameters])

    def _stream(self, tensor: str) -> Stream:
        return Stream(self.seed, self.op, tensor)
