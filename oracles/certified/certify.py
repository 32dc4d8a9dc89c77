"""Raise the precision until the caller is content, or say why it cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

import torch

from oracles.cache import AnswerCache, cached
from oracles.certified.adjoint import adjoint
from oracles.certified.chunk_form import chunk
from oracles.certified.token_form import recurrence
from oracles.enclosure import CertifiedOutputs
from oracles.gradients import Cotangents, GradientAnswer
from oracles.inputs import Inputs

A = TypeVar("A", CertifiedOutputs, GradientAnswer)
Form = Literal["chunk", "recurrence"]

FORMS: dict[Form, Callable[[Inputs, int], CertifiedOutputs]] = {
    "chunk": lambda inputs, bits: chunk(inputs, bits=bits),
    "recurrence": lambda inputs, bits: recurrence(inputs, bits=bits),
}
# Radius lost to dependency at slow gates, in bits a token; 80 = 64 to keep and 16 to spare.
BITS_PER_TOKEN: dict[Form, float] = {"chunk": 0.13, "recurrence": 0.35}
ADJOINT_BITS_PER_TOKEN = 0.5
FIRST_BITS = 80
# Unnormalised keys (beta |k|^2 > 2) may need far more than the rule; a precision past this is not
# doubled again.
CEILING_BITS = 4096


class UncertifiedError(RuntimeError):
    """No precision up to the ceiling gave an accepted radius; the message has the one reached."""


def certify(
    inputs: Inputs,
    *,
    accept: Callable[[CertifiedOutputs], bool],
    form: Form = "chunk",
    extra_bits: int = 0,
    cache: AnswerCache | None = None,
) -> CertifiedOutputs:
    """The exact outputs, at a precision raised until `accept` takes the answer.

    Math: section 3 (form "chunk") or 2 (form "recurrence"); first 80 + 0.13 T or 80 + 0.35 T bits,
    T the longest sequence, then doubled.

    Args:
        inputs: the call; every number enters exactly.
        accept: True where the radii are small enough for the caller's purpose.
        form: which of the two independent forms.
        extra_bits: added to the first precision, where the caller knows that the rule gives too
            few.
        cache: where an earlier answer may lie; it is accepted again, and replaced where too wide.
    Returns:
        The first answer accepted.
    Raises:
        UncertifiedError: the ceiling was reached, or more bits no longer help.
    """
    if form not in FORMS:
        raise ValueError(f"form: wanted one of {', '.join(FORMS)}, got {form!r}")

    def compute() -> CertifiedOutputs:
        first = _first_bits(inputs, BITS_PER_TOKEN[form], extra_bits)
        return _raise_precision(
            lambda bits: FORMS[form](inputs, bits), accept, first, _subject(f"{form} form", inputs)
        )

    if cache is None:
        return compute()
    return cached(inputs, compute, options={"form": form}, accept=accept, cache=cache)


def certify_gradients(
    inputs: Inputs,
    cotangents: Cotangents,
    *,
    accept: Callable[[GradientAnswer], bool],
    extra_bits: int = 0,
    cache: AnswerCache | None = None,
) -> GradientAnswer:
    """The exact gradients, by the adjoint, at a precision raised until `accept` takes the answer.

    Math: section 5; first 80 + 0.5 T bits, T the longest sequence, then doubled.

    Args:
        inputs, extra_bits, cache: as of `certify`.
        cotangents: of o and S_T; every number enters exactly.
        accept: True where the radii are small enough for the caller's purpose.
    Returns:
        The first answer accepted.
    Raises:
        InputError: the cotangents do not fit the inputs.
        UncertifiedError: the ceiling was reached, or more bits no longer help.
    """

    def compute() -> GradientAnswer:
        first = adjoint_bits(inputs, extra_bits)
        return _raise_precision(
            lambda bits: adjoint(inputs, cotangents, bits=bits),
            accept,
            first,
            _subject("adjoint", inputs),
        )

    if cache is None:
        return compute()
    others = (cotangents.do, cotangents.d_final_state)
    return cached(
        inputs, compute, options={"form": "adjoint"}, others=others, accept=accept, cache=cache
    )


def adjoint_bits(inputs: Inputs, extra: int = 0) -> int:
    """The first precision of the adjoint: 80 + 0.5 T bits, T the longest sequence."""
    return _first_bits(inputs, ADJOINT_BITS_PER_TOKEN, extra)


def _first_bits(inputs: Inputs, per_token: float, extra: int) -> int:
    return FIRST_BITS + extra + round(per_token * max(inputs.lengths, default=0))


def _subject(form: str, inputs: Inputs) -> str:
    return f"{form}, q {list(inputs.q.shape)}, v {list(inputs.v.shape)}"


def _raise_precision(
    compute: Callable[[int], A], accept: Callable[[A], bool], bits: int, subject: str
) -> A:
    ceiling = max(CEILING_BITS, bits)
    answer, settled = compute(bits), False
    while not accept(answer):
        if settled or bits > ceiling:
            raise UncertifiedError(_refusal(subject, answer, settled=settled))
        bits *= 2
        previous, answer = answer, compute(bits)
        settled = _settled(previous, answer)
    return answer


def _refusal(subject: str, answer: CertifiedOutputs | GradientAnswer, *, settled: bool) -> str:
    if settled:
        reason = "more bits no longer narrow it, it is what two float64 leave out"
    else:
        reason = "the most bits tried"
    return (
        f"{subject}: wanted radii that `accept` takes, got at best {_widest(answer)}"
        f" ({answer.method}; {reason}); accept a wider radius, shorten the sequences, or keep beta"
        " |k|^2 below 2"
    )


def _settled(
    before: CertifiedOutputs | GradientAnswer, after: CertifiedOutputs | GradientAnswer
) -> bool:
    pairs = zip(before.named().values(), after.named().values(), strict=True)
    return all(
        torch.equal(a.radius, b.radius) and bool(b.radius.isfinite().all()) for a, b in pairs
    )


def _widest(answer: CertifiedOutputs | GradientAnswer) -> str:
    parts = ((name, enclosure.radius) for name, enclosure in answer.named().items())
    return " and ".join(
        f"radius {radius.max():.3g} on {name}" for name, radius in parts if radius.numel()
    )
