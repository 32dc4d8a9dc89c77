"""Elements of tensors in the words of KDA: sequence, token, head, channel, inputs there."""

from __future__ import annotations

from kdaverify.checks.place import ElementPlace
from oracles.inputs import Inputs
from oracles.tensors import GRADIENTS, SIGNATURE

OF_CHUNKS = {"h": "the state before it", "dh": "the gradient of the state after it"}


def place(output: str, index: tuple[int, ...], inputs: Inputs) -> ElementPlace:
    """The element at `index` of an output, of a gradient, or of a stage tensor."""
    if output in OF_CHUNKS:
        batch, m, head, channel, column = index
        where = (
            f"batch entry {batch}, chunk {m}, value head {head}, key channel {channel}, column"
            f" {column}"
        )
        return ElementPlace(index, where, OF_CHUNKS[output])
    if SIGNATURE.is_state(output):
        return _of_state(index, inputs)
    # Stage tensors are those of value heads, whatever they are made from.
    return _of_token(
        index, inputs, by_key_head=output in GRADIENTS and "H" in SIGNATURE[output].axes
    )


def _of_token(index: tuple[int, ...], inputs: Inputs, *, by_key_head: bool) -> ElementPlace:
    b, t, drawn_head, *column = index
    n, first = _sequence(b * inputs.T + t, inputs)
    element = f"{'key' if by_key_head else 'value'} head {drawn_head}" + "".join(
        f", column {c}" for c in column
    )
    if n is None:
        return ElementPlace(index, f"padding row {t}, {element}", "a token past the last offset")
    token = f"token {b * inputs.T + t - first} of {inputs.lengths[n]}"
    # a tile of the pack is no tile of the sequence
    row = "" if inputs.cu_seqlens is None else f" (row {t} of the pack)"
    where = f"sequence {n}, {token}{row}, {element}"
    group = inputs.HV // inputs.H
    head, key_head = (
        (drawn_head * group, drawn_head) if by_key_head else (drawn_head, drawn_head // group)
    )
    g = inputs.decays[b, t, head]
    norms = (float(x[b, t, key_head].double().norm()) for x in (inputs.q, inputs.k))
    made_by = "|q| {:.3g}, |k| {:.3g}, beta {:.3g}, g in [{:.3g}, {:.3g}]".format(
        *norms, inputs.beta[b, t, head], g.min(), g.max()
    )
    return ElementPlace(index, where, made_by)


def _of_state(index: tuple[int, ...], inputs: Inputs) -> ElementPlace:
    n, head, channel, column = index
    length = inputs.lengths[n]
    tokens = "1 token" if length == 1 else f"{length} tokens"
    where = f"sequence {n} ({tokens}), value head {head}, key channel {channel}, column {column}"
    start = "absent" if inputs.initial_state is None else f"{float(inputs.state[index]):.3g}"
    if not length:
        return ElementPlace(index, where, f"S_0 {start}, no token")
    first = inputs.starts[n]
    g = inputs.decays.flatten(0, 1)[first : first + length, head, channel].double()
    return ElementPlace(
        index,
        where,
        f"S_0 {start}, gates of the channel sum to {float(g.sum()):.4g}, last {float(g[-1]):.3g}",
    )


def _sequence(row: int, inputs: Inputs) -> tuple[int | None, int]:
    for n, (first, length) in enumerate(zip(inputs.starts, inputs.lengths, strict=True)):
        if first <= row < first + length:
            return n, first
    return None, 0
