"""What a pipeline computes with: a hook for each named tensor, dot product, exponential."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

SUB_BLOCK = 16


def keep(_: str, tensor: Tensor) -> Tensor:
    """The identity hook: `name` is stored as computed."""
    return tensor


def is_finite(tensor: Tensor) -> bool:
    """Whether all are: a finite sum suffices, in a tenth of the time; others are tested."""
    return math.isfinite(tensor.sum().item()) or bool(torch.isfinite(tensor).all())


def _sum(products: Tensor) -> Tensor:
    return products.sum(-1)


def _over_heads(per_value_head: Tensor) -> Tensor:
    return per_value_head.sum(3)


def _substitute(A: Tensor, right: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(A, right, upper=False, unitriangular=True)


Shape = tuple[int, ...]


class Drawing(ABC):
    """An operation whose roundings are samples, taken one after the other.

    No protocol: to test for one of those took 2.4 of 280 s of CPU time of a smoke.
    """

    @abstractmethod
    def pass_over(self, *shapes: Shape) -> None:
        """Takes the samples that operands of these shapes would, for nothing."""

    @abstractmethod
    def of_first(self, live: int, number: int) -> Callable[..., Tensor]:
        """The same operation on what the first `live` hold; others' samples are taken unused."""


class Samples(ABC):
    """Where samples of roundings come from, one after the other."""

    @property
    @abstractmethod
    def taken(self) -> int:
        """How many were."""

    @abstractmethod
    def skip(self, number: int) -> None:
        """Takes so many for nothing."""


def pass_over(operation: Callable[..., Tensor], *shapes: Shape) -> None:
    """The samples of what is left out are taken all the same, so that all that follows has those
    that it would have if it had been computed.
    """
    if isinstance(operation, Drawing):
        operation.pass_over(*shapes)


def of_first(operation: Callable[..., Tensor], live: int, number: int) -> Callable[..., Tensor]:
    """An operation on what the first `live` of so many sequences hold, with the samples that those
    have where it is on all.
    """
    return operation.of_first(live, number) if isinstance(operation, Drawing) else operation


@dataclass(frozen=True)
class Arithmetic:
    """One pipeline, many roundings: the algebra once, this for every inexact step.

    Args:
        store: (name, tensor) -> tensor; called once for each tensor of math.md 2, 3, in order.
        dot: matrix product [..., m, n] x [..., n, p]; rounds operands, chooses summation order.
        exp: natural exponential of a tensor whose entries are <= 0.
        total: sum over the last axis of an elementwise product of two stored tensors.
        row_sum: sum over the last axis of an elementwise product inside one unit.
        over_heads: sum over the value heads of a key head, of dq or dk [B, T, H, HV / H, ...].
        sub_block: rows of a block of the scores, within which every pair takes its own exponent.
        computes_padding: whether blocks of the scores in which no sequence has a row are computed
            like any others, where samples for them decide those for later blocks and cannot be
            passed over.
        onto: (x, a, b) -> x + a b, of the state and what a chunk writes, and of both parts of o;
            None: the product by `dot`, then one sum.
        substitute: (A, r) -> (I + A)^-1 r of a strictly lower triangular A, without the inverse.
        samples: where roundings come from that are samples.
        together: whether stages that need no state take many chunks of a sequence at once, as so
            many sequences: 2 to 4 times as fast where there are several. Not of kernels under test,
            whose faults may keep something of the chunk before.
        twice: whether the token recurrence holds its state twice, as compilers do that want it in
            other registers for its product with q than for that with k. What rounding takes from
            the copy no later token mends: Triton 3.7.1 for sm_90 does so to FLA's recurrence.
    """

    store: Callable[[str, Tensor], Tensor] = keep
    dot: Callable[[Tensor, Tensor], Tensor] = torch.matmul
    exp: Callable[[Tensor], Tensor] = torch.exp
    total: Callable[[Tensor], Tensor] = _sum
    sub_block: int = SUB_BLOCK
    row_sum: Callable[[Tensor], Tensor] = _sum
    over_heads: Callable[[Tensor], Tensor] = _over_heads
    computes_padding: bool = False
    onto: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    substitute: Callable[[Tensor, Tensor], Tensor] = _substitute
    samples: Samples | None = None
    together: bool = False
    twice: bool = False


NATIVE = Arithmetic()
TOGETHER = Arithmetic(together=True)
