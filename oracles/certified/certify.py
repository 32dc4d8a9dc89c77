"""Raise the precision until the caller is content, or say why it cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from oracles.cache import AnswerCache, cached
from oracles.certified.chunk_form import chunk
from oracles.certified.token_form import recurrence
from oracles.enclosure import Answer
from oracles.inputs import Inputs

Form = Literal["chunk", "recurrence"]

FORMS: dict[Form, Callable[[Inputs, int], Answer]] = {
    "chunk": lambda inputs, bits: chunk(inputs, bits=bits),
    "recurrence": lambda inputs, bits: recurrence(inputs, bits=bits),
}
# Radius lost to dependency at slow gates, in bits a token; 80 = 64 to keep and 16 to spare.
BITS_PER_TOKEN: dict[Form, float] = {"chunk": 0.13, "recurrence": 0.35}
FIRST_BITS = 80
# Unnormalised keys (beta |k|^2 > 2) may need far more than the rule; a precision past this is not doubled again.
CEILING_BITS = 4096


class UncertifiedError(RuntimeError):
    """No precision up to the ceiling gave a radius that the caller accepts; the message says the radius reached."""


def certify(
    inputs: Inputs,
    *,
    accept: Callable[[Answer], bool],
    form: Form = "chunk",
    extra_bits: int = 0,
    cache: AnswerCache | None = None,
) -> Answer:
    """The exact outputs, at a precision raised until `accept` takes the answer.

    Math: section 3 (form "chunk") or 2 (form "recurrence"); first 80 + 0.13 T or 80 + 0.35 T bits, T the longest sequence, then doubled.

    Args:
        inputs: the call; every number enters exactly.
        accept: True where the radii are small enough for the caller's purpose.
        form: which of the two independent forms.
        extra_bits: added to the first precision, where the caller knows that the rule gives too few.
        cache: where an earlier answer may lie; it is accepted anew, and replaced where too wide.
    Returns:
        The first answer accepted.
    Raises:
        UncertifiedError: the ceiling was reached, or more bits no longer help.
    """
    if form not in FORMS:
        raise ValueError(f"form: wanted one of {', '.join(FORMS)}, got {form!r}")
    if cache is None:
        return _raise_precision(inputs, accept, form, extra_bits)
    return cached(inputs, lambda: _raise_precision(inputs, accept, form, extra_bits), options={"form": form}, accept=accept, cache=cache)


def _raise_precision(inputs: Inputs, accept: Callable[[Answer], bool], form: Form, extra_bits: int) -> Answer:
    bits = FIRST_BITS + extra_bits + round(BITS_PER_TOKEN[form] * max(inputs.lengths, default=0))
    ceiling = max(CEILING_BITS, bits)
    answer, settled = FORMS[form](inputs, bits), False
    while not accept(answer):
        if settled or bits > ceiling:
            raise UncertifiedError(_refusal(inputs, form, answer, settled=settled))
        bits *= 2
        previous, answer = answer, FORMS[form](inputs, bits)
        settled = _settled(previous, answer)
    return answer


def _refusal(inputs: Inputs, form: Form, answer: Answer, *, settled: bool) -> str:
    reason = "more bits no longer narrow it, it is what two float64 leave out" if settled else "the most bits tried"
    return (
        f"{form} form, q {list(inputs.q.shape)}, v {list(inputs.v.shape)}: wanted radii that `accept` takes, got at best "
        f"{_widest(answer)} ({answer.method}; {reason}); accept a wider radius, shorten the sequences, or keep beta |k|^2 below 2"
    )


def _settled(before: Answer, after: Answer) -> bool:
    pairs = ((before.o.radius, after.o.radius), (before.final_state.radius, after.final_state.radius))
    return all(torch.equal(a, b) and bool(b.isfinite().all()) for a, b in pairs)


def _widest(answer: Answer) -> str:
    parts = (("o", answer.o.radius), ("final_state", answer.final_state.radius))
    return " and ".join(f"radius {radius.max():.3g} on {name}" for name, radius in parts if radius.numel())
