"""Where an output is worst, in the words of its operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kdaverify.operator import call_operator
from oracles.signature import TensorCall


@dataclass(frozen=True)
class ElementPlace:
    """One element of an output.

    Args:
        index: its index in the output tensor.
        where: the axes of it in words ("sequence 0, token 17 of 80, value head 1, column 3").
        made_by: the inputs at that place.
    """

    index: tuple[int, ...]
    where: str
    made_by: str

    def __str__(self) -> str:
        return f"{self.where} ({self.made_by})"


def place(output: str, flat: int, shape: torch.Size, call: TensorCall) -> ElementPlace:
    """The element of an output, gradient or stage tensor at position `flat`."""
    return call_operator(call.op).place(output, index_of(flat, shape), call)


def index_of(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The index, in a tensor of `shape`, of an element of the flattened tensor.

    That of torch loads its symbolic shapes and SymPy: half a second of every process that judges.
    """
    index: list[int] = []
    for size in reversed(shape):
        flat, i = divmod(flat, size)
        index.append(i)
    return tuple(index[::-1])


def first_true(mask: Tensor) -> int:
    """Position of the first True of a flattened mask."""
    return int(mask.flatten().to(torch.uint8).argmax())
