"""A short convolution in torch whose parts can be replaced, as faults replace them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from kdaverify.adapters import kernel
from kdaverify.faults.fault import Fault

EVERY: Final = ("fp32", "bf16", "fp16")
Result = tuple[Tensor, Tensor]


def silu(z: Tensor) -> Tensor:
    return z * torch.sigmoid(z)


def windows(x: Tensor, W: int) -> list[Tensor]:
    """[T, D] of a stream [W - 1 + T, D]: the factors of every tap, the oldest first."""
    return [x[j : x.shape[0] - W + 1 + j] for j in range(W)]


@dataclass(frozen=True)
class Parts:
    """What a convolution is made of; a fault replaces one of them.

    Args:
        cut: (offsets or None, B, T) -> (entry, first, end) of every sequence.
        history: (state or None, W, entry) -> the W - 1 columns before a sequence, [D, W - 1].
        take: (x [T, D] with its history in front, weight, bias) -> z.
        act: (z, activation) -> y.
        final: (history [D, W - 1], x [T, D], W, y) -> [D, W].
        wide: the type of sums.
    """

    cut: Callable[[Tensor | None, int, int], list[tuple[int, int, int]]]
    history: Callable[[Tensor | None, int, Tensor], Tensor]
    take: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    act: Callable[[Tensor, str | None], Tensor]
    final: Callable[[Tensor, Tensor, int, Tensor], Tensor]
    wide: torch.dtype = torch.float32

    def replaced(self, **parts: Any) -> Parts:
        return replace(self, **parts)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, *options: Any) -> Result:
        """y and the states; options are the state, the offsets and the activation."""
        state, cu, act = options
        (B, T, _), W = x.shape, weight.shape[1]
        wide, w = x.to(self.wide), weight.to(self.wide)
        b = None if bias is None else bias.to(self.wide)
        rows, states = [list[Tensor]() for _ in range(B)], list[Tensor]()
        for n, (entry, first, end) in enumerate(self.cut(cu, B, T)):
            before = self.history(None if state is None else state[n], W, x[entry])
            stream = torch.cat((before.mT.to(self.wide), wide[entry, first:end]))
            y = self.act(self.take(stream, w, b), act)
            rows[entry].append(y)
            states.append(self.final(before, x[entry, first:end], W, y.to(x.dtype)))
        y = torch.stack(
            [functional.pad(torch.cat(part), (0, 0, 0, T - sum(map(len, part)))) for part in rows]
        )
        return y.to(x.dtype), torch.stack(states)


def sequences(cu: Tensor | None, B: int, T: int) -> list[tuple[int, int, int]]:
    if cu is None:
        return [(b, 0, T) for b in range(B)]
    return [(0, first, end) for first, end in pairwise(cu.tolist())]


def old_columns(state: Tensor | None, W: int, x: Tensor) -> Tensor:
    return x.new_zeros(x.shape[1], W - 1) if state is None else state[:, 1:]


def summed(stream: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    z = sum((w[:, j] * x for j, x in enumerate(windows(stream, w.shape[1]))), torch.zeros(()))
    return z if b is None else z + b


def summed_backwards(stream: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    taps = windows(stream, w.shape[1])
    z = torch.zeros_like(taps[0]) if b is None else b.expand_as(taps[0])
    for j in reversed(range(w.shape[1])):
        z = z + w[:, j] * taps[j]
    return z


def activated(z: Tensor, name: str | None) -> Tensor:
    return silu(z) if name else z


def shifted_in(before: Tensor, x: Tensor, W: int, _: Tensor) -> Tensor:
    return functional.pad(torch.cat((before, x.mT), 1), (1, 0))[:, -W:]


RIGHT: Final = Parts(sequences, old_columns, summed, activated, shifted_in)


def by_tanh(z: Tensor, name: str | None) -> Tensor:
    return z * (0.5 + 0.5 * torch.tanh(0.5 * z)) if name else z


@dataclass(frozen=True)
class OneByOne(Parts):
    """A loop over sequences that widens the parameters in each: autograd adds their gradients in
    the format of the parameters.
    """

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, *options: Any) -> Result:
        state, cu, act = options
        found = [
            Parts.__call__(
                self,
                x[entry : entry + 1, first:end],
                weight,
                bias,
                None if state is None else state[n : n + 1],
                None,
                act,
            )
            for n, (entry, first, end) in enumerate(self.cut(cu, *x.shape[:2]))
        ]
        y = torch.cat([rows[0] for rows, _ in found])
        past = x.shape[0] * x.shape[1] - len(y)
        states = torch.cat([states for _, states in found])
        return functional.pad(y, (0, 0, 0, past)).view(x.shape), states


def adapted(
    parts: Parts, name: str, dtypes: tuple[str, ...] = EVERY, contract: str = "short-conv"
) -> Any:
    """The implementation of an operator's parts."""

    def short_conv(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *,
        initial_state: Tensor | None,
        cu_seqlens: Tensor | None,
        activation: str | None,
    ) -> Result:
        return parts(x, weight, bias, initial_state, cu_seqlens, activation)

    given: dict[str, Any] = {"name": name, "packing": "cu_seqlens", "contract": contract}
    return kernel(op="short_conv", dtypes=dtypes, **given)(short_conv)


@kernel(op="short_conv", conv_state="W-1", dtypes=EVERY, packing="cu_seqlens")
def w_minus_one(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    activation: Any = None,
) -> Result:
    padded = (
        None if initial_state is None else functional.pad(initial_state, (1, 0), value=torch.nan)
    )
    y, final = RIGHT(x, weight, bias, padded, cu_seqlens, activation)
    return y, final[..., 1:].contiguous()


def planted(parts: Parts | None, fault: Fault) -> Any:
    """The implementation with a fault; without one, the right one that it is held against."""
    name = f"fault:{fault.id}"
    return adapted(parts or RIGHT, name, fault.dtypes)
