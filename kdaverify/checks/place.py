"""Where an output is worst, in the words of the problem: sequence, token, head, element, and the inputs that made it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from oracles.inputs import Inputs
from oracles.tensors import GRADIENTS, SIGNATURE

OF_CHUNKS = {"h": "the state before it", "dh": "the gradient of the state after it"}


@dataclass(frozen=True)
class ElementPlace:
    """One element of an output.

    Args:
        index: its index in the output tensor.
        where: sequence, token or key channel, value head, element.
        made_by: the inputs at that place.
    """

    index: tuple[int, ...]
    where: str
    made_by: str

    def __str__(self) -> str:
        return f"{self.where} ({self.made_by})"


def place(output: str, flat: int, shape: torch.Size, inputs: Inputs) -> ElementPlace:
    """The element of `output`, of a gradient, or of a stage tensor, at position `flat` of its flattened tensor."""
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), shape))
    if output in OF_CHUNKS:
        batch, m, head, channel, column = index
        where = f"batch entry {batch}, chunk {m}, value head {head}, key channel {channel}, column {column}"
        return ElementPlace(index, where, OF_CHUNKS[output])
    if SIGNATURE.is_state(output):
        return _of_state(index, inputs)
    # Stage tensors are those of value heads, whatever they are made from.
    return _of_token(index, inputs, by_key_head=output in GRADIENTS and "H" in SIGNATURE[output].axes)


def _of_token(index: tuple[int, ...], inputs: Inputs, *, by_key_head: bool) -> ElementPlace:
    b, t, drawn_head, *column = index
    n, first = _sequence(b * inputs.T + t, inputs)
    element = f"{'key' if by_key_head else 'value'} head {drawn_head}" + "".join(f", column {c}" for c in column)
    if n is None:
        return ElementPlace(index, f"padding row {t}, {element}", "a token past the last offset")
    where = f"sequence {n}, token {b * inputs.T + t - first} of {inputs.lengths[n]}, {element}"
    group = inputs.HV // inputs.H
    head, key_head = (drawn_head * group, drawn_head) if by_key_head else (drawn_head, drawn_head // group)
    g = inputs.g[b, t, head]
    norms = (float(x[b, t, key_head].double().norm()) for x in (inputs.q, inputs.k))
    made_by = "|q| {:.3g}, |k| {:.3g}, beta {:.3g}, g in [{:.3g}, {:.3g}]".format(*norms, inputs.beta[b, t, head], g.min(), g.max())
    return ElementPlace(index, where, made_by)


def _of_state(index: tuple[int, ...], inputs: Inputs) -> ElementPlace:
    n, head, channel, column = index
    length = inputs.lengths[n]
    where = f"sequence {n} of {length} tokens, value head {head}, key channel {channel}, column {column}"
    start = "absent" if inputs.initial_state is None else f"{float(inputs.state[index]):.3g}"
    if not length:
        return ElementPlace(index, where, f"S_0 {start}, no token")
    first = inputs.starts[n]
    g = inputs.g.flatten(0, 1)[first : first + length, head, channel].double()
    return ElementPlace(index, where, f"S_0 {start}, gates of the channel sum to {float(g.sum()):.4g}, last {float(g[-1]):.3g}")


def _sequence(row: int, inputs: Inputs) -> tuple[int | None, int]:
    for n, (first, length) in enumerate(zip(inputs.starts, inputs.lengths, strict=True)):
        if first <= row < first + length:
            return n, first
    return None, 0


def first_true(mask: Tensor) -> int:
    """Position of the first True of a flattened mask."""
    return int(mask.flatten().to(torch.uint8).argmax())
