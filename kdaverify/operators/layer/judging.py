"""Tests a law: every case against the plain call, and its negative control first."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.checks.calls.bits import same_bits
from kdaverify.checks.execute import CallError
from kdaverify.checks.outcome import Outcome, skipped
from kdaverify.checks.status import Status
from kdaverify.operators.layer.laws import LayerCase, LayerLaw
from kdaverify.operators.layer.problem import LayerProblem
from kdaverify.operators.layer.schedule import REFUSED
from kdaverify.operators.layer.tolerance import LayerReference, cotangents, reference, rms_of, run

Check = Callable[[Adapter, LayerProblem], list[Outcome]]
Run = Callable[..., Tensor]


def checked(law: LayerLaw) -> Check:
    """The check of a law."""

    def check(adapter: Adapter, problem: LayerProblem) -> list[Outcome]:
        try:
            return _repeated(adapter, problem) if law.name == "repeat" else _cases(adapter, problem)
        except CallError as fault:
            refused = REFUSED in fault.message
            return (
                skipped(fault.message)
                if refused
                else [Outcome(fault.output, fault.status, fault.message)]
            )

    def _cases(adapter: Adapter, problem: LayerProblem) -> list[Outcome]:
        lengths = tuple(_lengths(law, problem)) if law.of_gradients else None
        held = reference(adapter, problem, lengths)  # pyright: ignore[reportArgumentType]
        if not bool(torch.isfinite(held.truth).all()):
            return [Outcome("out", Status.NONFINITE, f"{law.name}: the plain call is not finite")]
        outcome = skipped(f"{law.name}: the problem is too short")
        for case in law.cases(problem):
            outcome = [_judged(adapter, problem, law, case, held)]
            if outcome[0].status is not Status.PASS:
                break
        return outcome

    return check


def _repeated(adapter: Adapter, problem: LayerProblem) -> list[Outcome]:
    if not adapter.deterministic:
        return skipped("repeat: it declares deterministic=False")
    call = problem.inputs()
    first, second = (run(adapter, call) for _ in range(2))
    return same_bits({"out": first}, {"out": second}, call, "in a second call")


def _lengths(law: LayerLaw, problem: LayerProblem) -> list[int]:
    """How many tokens of each sequence a law's call has."""
    return next(law.cases(problem)).layout.used.sum(1).tolist()


def _judged(
    adapter: Adapter,
    problem: LayerProblem,
    law: LayerLaw,
    case: LayerCase,
    held: LayerReference,
) -> Outcome:
    output, layout = ("dhidden" if law.of_gradients else "out"), case.layout
    loss = (
        layout.there(cotangents(problem, tuple(_lengths(law, problem))))
        if law.of_gradients
        else None
    )
    rows = run(adapter, case.call, loss)
    ratios = held.ratios(layout.back(rows)).where(layout.used, 0.0)
    said = f"{output}: {law.name}, {case.said}"
    padding = layout.padding(rows)
    if law.of_gradients and bool((padding != 0).any()):
        return Outcome(
            output,
            Status.FAIL,
            f"{said}: padding has gradients up to {float(padding.abs().max()):.3g}, exactly 0 is"
            " wanted",
        )
    if bool((ratios > 1).any()):
        return _failed(output, said, ratios, layout.back(rows), held)
    if case.control is not None and not _differs(adapter, case, loss, held):
        return Outcome(
            output,
            Status.SKIP,
            f"{said}: inconclusive: the negative control is within the tolerance too",
        )
    return Outcome(
        output, Status.PASS, f"{said}: error within the tolerance", excess=float(ratios.max())
    )


def _differs(adapter: Adapter, case: LayerCase, loss: Tensor | None, held: LayerReference) -> bool:
    """Whether the call without what the law is about is wrong, or declined."""
    assert case.control is not None
    try:
        rows = run(adapter, case.control, loss)
    except CallError:
        return True
    ratios = held.ratios(case.layout.back(rows)).where(case.layout.used, 0.0)
    return bool((ratios > 1).any())


def _failed(output: str, said: str, ratios: Tensor, found: Tensor, held: LayerReference) -> Outcome:
    wrong = ratios > 1
    b, t = (int(i) for i in torch.unravel_index(ratios.argmax(), ratios.shape))
    first = wrong[b].nonzero()[0].item()
    error = float(rms_of(found - held.truth)[b, t])
    lost = not bool(torch.isfinite(found).all())
    message = (
        f"{said}: error {error:.3g} (rms over the width), tolerance {float(held.allowed[b, t]):.3g}"
        f" ({float(ratios[b, t]):.3g}x tolerance) at sequence {b}, token {t} of {ratios.shape[1]};"
        f" {int(wrong.sum())} of {wrong.numel()} tokens are wrong, the first of this sequence is"
        f" token {first}\n  rms of the plain call there {float(rms_of(held.truth)[b, t]):.3g}"
    )
    status = Status.NONFINITE if lost else Status.FAIL
    return Outcome(output, status, message, excess=float(ratios.max()))
