"""Resume: a run cut anywhere and continued from its saved state equals the uncut run."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.checks.execute import CallError, execute
from kdaverify.checks.forward import forward
from kdaverify.checks.gradients import gradients
from kdaverify.checks.outcome import Outcome, outcomes, skipped
from kdaverify.checks.status import Status
from kdaverify.problems import Domain, Problem
from kdaverify.problems.combinations import Direction
from oracles.inputs import Inputs
from oracles.tensors import OUTPUTS

Entry = Literal["chunk", "step"]
Way = Literal["chunk-chunk", "chunk-step", "step-chunk"]
WAYS: tuple[Way, ...] = ("chunk-chunk", "chunk-step", "step-chunk")
# Single-token calls per case: enough to see a wrong hand-over, few enough for an interpreted
# kernel.
STEPS = 3
# Where real kernels lose a partial chunk: around sub-blocks, chunks, and one token from either end.
CUTS = (1, 2, 15, 16, 17, 31, 33, 48, 63, 64, 65, 100, 127, 128, 129)


def cuts_within(problem: Problem, domain: Domain) -> list[int]:
    """The cuts that leave two parts of lengths that a kernel takes."""
    return [cut for cut in CUTS if cut < problem.T and cut % domain.length_multiple == 0]


def resume(
    adapter: Adapter, problem: Problem, *, cut: int, way: Way = "chunk-chunk"
) -> list[Outcome]:
    """Math: law 2. Runs [0, cut) and [cut, T) by `way`, joins the outputs and judges them as one
    run.

    Args:
        problem: a dense problem with T > cut.
        cut: first token of the second part.
        way: chunk-chunk; chunk-step (the tokens after the cut one at a time, at most 3, then the
            rest in one call); step-chunk (at most 3 single tokens, ending at the cut, after one
            call for the tokens before them).
    """
    if problem.packed or not 0 < cut < problem.T:
        raise ValueError(
            f"resume: wanted a dense problem longer than the cut, got {problem.describe()} cut at"
            f" {cut}"
        )
    reason, parts = unresumable(adapter, problem, cut, way), _parts(problem.T, cut, way)
    if reason:
        return skipped(reason)
    cuts, inputs = tuple(first for first, _, _ in parts[1:]), problem.inputs()
    return outcomes(adapter, inputs, lambda: resumed(adapter, inputs, cut, way), cuts=cuts)


def unresumable(
    adapter: Adapter, problem: Problem, cut: int, way: Way = "chunk-chunk"
) -> str | None:
    """Why `adapter` cannot run this problem in parts; None if it can."""
    if not {*OUTPUTS} <= {*adapter.exposes(problem)}:
        return "it does not expose the final state, so a run cannot be resumed"
    tested = [
        problem.replace(T=end - first, state="random")
        for first, end, _ in _parts(problem.T, cut, way)
    ]
    return next(filter(None, map(adapter.supports, tested)), None)


def _parts(T: int, cut: int, way: Way) -> list[tuple[int, int, Entry]]:
    if way == "chunk-chunk":
        return [(0, cut, "chunk"), (cut, T, "chunk")]
    single_from = max(0, cut - STEPS) if way == "step-chunk" else cut
    single_to = cut if way == "step-chunk" else min(T, cut + STEPS)
    singles: list[tuple[int, int, Entry]] = [
        (t, t + 1, "step") for t in range(single_from, single_to)
    ]
    ends: list[tuple[int, int, Entry]] = [
        (0, single_from, "chunk"),
        *singles,
        (single_to, T, "chunk"),
    ]
    return [part for part in ends if part[0] < part[1]]


def resumed(
    adapter: Adapter, inputs: Inputs, cut: int, way: Way = "chunk-chunk"
) -> dict[str, Tensor]:
    """o and S_T of a run in parts.

    Raises:
        CallError: a part is no output to compare, or its state is not finite.
    """
    state, pieces = inputs.initial_state, list[Tensor]()
    for first, end, entry in _parts(inputs.T, cut, way):
        call = inputs.span(first, end, state)
        run = execute(adapter, call, OUTPUTS, entry=adapter.step if entry == "step" else None)
        pieces.append(run.outputs["o"])
        state = _finite(run.outputs["final_state"], end)
    assert state is not None  # there is at least one part
    return {"o": torch.cat(pieces, dim=1), "final_state": state}


def _finite(state: Tensor, end: int) -> Tensor:
    lost = int((~torch.isfinite(state)).sum())
    if lost:
        said = (
            f"final_state: {lost} of {state.numel()} elements of the state saved after token {end}"
            " are not finite, so nothing can resume"
        )
        raise CallError(Status.NONFINITE, "final_state", said)
    return state


def combined(adapter: Adapter, problem: Problem, *, direction: Direction) -> list[Outcome]:
    """Judges what a row of the covering array names.

    Args:
        direction: forward; resume: cut at the middle one of the places where kernels lose a partial
            chunk; gradients of a loss on o, or on o and S_T.
    """
    name, detail = row_call(adapter, problem, direction)
    own = {"forward": forward, "resume": resume, "gradients": gradients}
    return own[name](adapter, problem, **detail)


def row_call(
    adapter: Adapter, problem: Problem, direction: Direction
) -> tuple[str, dict[str, Any]]:
    """The property that a row of the covering array names, and its detail."""
    if direction == "forward":
        return direction, {}
    if direction == "resume":
        cuts = cuts_within(problem, adapter.domain)
        return direction, {"cut": cuts[len(cuts) // 2]}
    return "gradients", {"of": direction.removeprefix("gradients of ")}
