"""Drift: error against length, in one run, resumed, or token by token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.drift import conforming_curves, curves
from kdaverify.budgets.ensemble import ContractOverflow
from kdaverify.budgets.formats import FORMATS
from kdaverify.checks.compare import Comparison
from kdaverify.checks.execute import CallError, execute
from kdaverify.checks.growth import SLOPE, Growth
from kdaverify.checks.outcome import Outcome, skipped
from kdaverify.checks.status import Status
from kdaverify.problems import Problem
from kdaverify.problems.drift_probes import FEWEST, LEAST, PARTS, SHORTEST, STEPS, Way
from oracles.certified import UncertifiedError
from oracles.inputs import Inputs
from oracles.long_run import METHOD, Truth, long_run
from oracles.tensors import OUTPUTS
from oracles.waypoints import Reached, walk

# The truth may be wrong by this fraction of the least conforming error: a ratio to it is then good
# to 1 %.
TRUTH_SHARE = 2.0**-7


@dataclass(frozen=True)
class Route:
    """Where a long run is cut, and where it is looked at.

    Args:
        at: lengths, rising; the last is the whole run.
        cuts: tokens at which it is resumed.
        origin: tokens before the first that counts: decoding begins at the prefill's end.
    """

    at: tuple[int, ...]
    cuts: tuple[int, ...] = ()
    origin: int = 0

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(tokens - self.origin for tokens in self.at)


def route(T: int, way: Way, *, factor: int = 4) -> Route:
    """The route of `T` tokens.

    Args:
        factor: between one length and the next.
    Raises:
        ValueError: too few tokens.
    """
    if T < LEAST or T % PARTS:
        raise ValueError(f"drift: wanted a multiple of {PARTS} tokens, at least {LEAST}, got {T}")
    if way == "decoded":
        steps = min(STEPS, T // 4)
        prefill = T - steps
        return Route(
            tuple(prefill + n for n in _lengths(steps, -(-steps // PARTS), factor)),
            tuple(range(prefill, T)),
            prefill,
        )
    if way == "uncut":
        return Route(_lengths(T, SHORTEST, factor))
    part = T // PARTS
    return Route(_lengths(T, part, factor), tuple(range(part, T, part)))


def _lengths(longest: int, shortest: int, factor: int) -> tuple[int, ...]:
    lengths = [longest]
    while lengths[-1] >= factor * shortest:
        lengths.append(lengths[-1] // factor // shortest * shortest)
    return tuple(reversed(lengths))


@dataclass(frozen=True)
class Measurement:
    """What a kernel came to on one problem.

    Args:
        way: how the tokens were fed.
        growths: of every output.
    """

    way: Way
    growths: tuple[Growth, ...]


class Unmeasurable(Exception):
    """The kernel cannot be run this way; the message says why."""


def drift(adapter: Adapter, problem: Problem, *, way: Way = "uncut") -> list[Outcome]:
    """Judges level, slope and bias of the error of every output.

    Math: acceptance is that of `checks.growth`, every sequence of the batch a sample.

    Args:
        problem: at least 4 dense sequences.
        way: "uncut"; "resumed", in 64 parts; "decoded", the last quarter (256 at most) singly.
    """
    if problem.packed or problem.B < FEWEST:
        raise ValueError(
            f"drift: wanted at least {FEWEST} dense sequences, got {problem.describe()}"
        )
    try:
        found = measure(adapter, problem, way)
    except (Unmeasurable, ContractOverflow) as reason:
        return skipped(str(reason))
    except UncertifiedError as reason:
        return [Outcome("call", Status.ORACLE_UNCERTIFIED, str(reason))]
    except CallError as fault:
        return [Outcome(fault.output, fault.status, fault.message)]
    return [outcome(growth) for growth in found.growths]


def measure(
    adapter: Adapter,
    problem: Problem,
    way: Way,
    *,
    factor: int = 4,
    passed: Callable[[str], None] = lambda _: None,
) -> Measurement:
    """The growth of `adapter`'s exposed outputs on `problem`, beside conforming kernels.

    Args:
        factor: between one length and the next.
        passed: called with what was run, after each run.
    Raises:
        Unmeasurable: the kernel cannot be run this way.
        ContractOverflow: no conforming kernel stays finite.
        UncertifiedError: no truth sharp enough.
        CallError: a call went wrong.
    """
    if problem.dtype == "fp64":
        raise Unmeasurable("drift is measured against float64, too coarse for fp64 kernels")
    outputs, through = adapter.exposes(problem), route(problem.T, way, factor=factor)
    _check(adapter, problem, way, through)
    inputs = problem.inputs()
    reached = list[Reached]()
    for there in _run(adapter, inputs, through, outputs):
        reached.append(there)
        passed(f"{there.tokens} tokens")
    if not adapter.answers:
        raise Unmeasurable("exported, not judged")
    received = _where_it_ran(adapter, adapter.received(inputs))
    truth = long_run(received, through.at)
    passed("truth")
    contract, io = adapter.contract(problem.dtype), FORMATS[problem.dtype]
    conforming = conforming_curves(
        received, contract, io, truth, cuts=through.cuts, outputs=outputs
    )
    passed("conforming kernels")
    own, stored = curves(adapter.name, reached, truth, outputs), contract.output_formats(io)
    growths = tuple(
        Growth(name, through.lengths, own[name], tuple(x[name] for x in conforming), stored[name])
        for name in outputs
    )
    _check_truth(truth, growths, problem)
    return Measurement(way, growths)


def _where_it_ran(adapter: Adapter, inputs: Inputs) -> Inputs:
    """Beside a kernel on an accelerator there is room on it, and sequences cost nothing there."""
    on_accelerator = adapter.device == "cuda" and torch.cuda.is_available()
    return inputs.on("cuda") if on_accelerator else inputs


def _check(adapter: Adapter, problem: Problem, way: Way, through: Route) -> None:
    if through.cuts and not {*OUTPUTS} <= {*adapter.exposes(problem)}:
        raise Unmeasurable("it does not expose the final state, so a run cannot be resumed")
    if through.cuts:
        parts = {b - a for a, b in zip((0, *through.cuts), (*through.cuts, problem.T), strict=True)}
    else:
        parts = {problem.T}
    for T in sorted(parts):
        reason = adapter.supports(problem.replace(T=T, state="random") if through.cuts else problem)
        if reason:
            raise Unmeasurable(f"{way}: {reason}")


def _check_truth(truth: Truth, growths: Sequence[Growth], problem: Problem) -> None:
    """An error of the state reaches o through q: at most K times as large beside it."""
    found = float(truth.radius.max()) * problem.K
    least = min(float(growth.band[0].min()) for growth in growths)
    if not found <= TRUTH_SHARE * least:
        raise UncertifiedError(
            f"the float64 run may be off by {found:.2g}, conforming kernels by {least:.2g}: too"
            " close; shorten the run"
        )


def _run(
    adapter: Adapter, inputs: Inputs, through: Route, outputs: tuple[str, ...]
) -> Iterator[Reached]:
    def call(part: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
        single = through.origin and part.T == 1
        found = execute(adapter, part, outputs, entry=adapter.step if single else None).outputs
        state = found.get("final_state", part.state)
        for name, value in found.items():
            _finite(name, value)
        return found["o"], state

    if through.cuts:
        yield from walk(call, inputs, through.at, through.cuts)
        return
    for T in through.at:
        yield from walk(call, inputs, (T,))


def _finite(name: str, value: torch.Tensor) -> None:
    lost = int((~torch.isfinite(value)).sum())
    if lost:
        raise CallError(
            Status.NONFINITE,
            name,
            f"{name}: {lost} of {value.numel()} elements are not finite, where the exact ones are",
        )


def outcome(growth: Growth) -> Outcome:
    """The verdict on one output."""
    ratios = growth.ratios
    worst = max(ratios, key=lambda name: ratios[name])
    T, error, (_, allowed) = growth.lengths[-1], float(growth.error[-1]), growth.band
    found = {"level": error, "slope": growth.slope_limit, "bias": growth.bias_limit}[worst]
    limit = {"level": 2 * float(allowed[-1]), "slope": SLOPE, "bias": growth.bias_allowed}[worst]
    status = Status.PASS if ratios[worst] <= 1 else Status.FAIL
    used = ", ".join(
        f"{used:.3g} at {length}"
        for length, used in zip(growth.lengths, growth.used.tolist(), strict=True)
    )
    said = (
        f"{growth.output}: relative error {error:.3g} after {T} tokens, tolerance"
        f" {2 * float(allowed[-1]):.3g}; relative to conforming kernels it grows as"
        f" T^{growth.slope:.2f} (at least {growth.slope_limit:.2f}, at most {SLOPE});"
        f" {growth.bias:.2f} of it is systematic (at most {growth.bias_allowed:.2f})\n  multiples"
        f" of the tolerance: {used}"
    )
    figures = Comparison(
        growth.output,
        status,
        worst,
        found,
        limit,
        ratios[worst],
        ratios,
        "A" if status is Status.PASS else "F",
        None,
        0.0,
        0.0,
    )
    return Outcome(growth.output, status, said, figures, METHOD)
