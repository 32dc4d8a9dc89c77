"""Exposed stages, forward and backward, on exact inputs and their own, by own tolerances."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter, AdapterError
from kdaverify.adapters.isolation.arena import same
from kdaverify.adapters.isolation.fault import fault_of
from kdaverify.adapters.stages import StageArguments, StageCall, formats_of, stored
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.ensemble import ContractOverflow
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.stage_forms import form_of
from kdaverify.budgets.stages import StageQuestion, stage_standard
from kdaverify.checks.closures import CLOSURES, closures
from kdaverify.checks.compare import compare
from kdaverify.checks.execute import CallError
from kdaverify.checks.location import FEEDS, Feed, Softened, Step
from kdaverify.checks.outcome import Outcome, skipped
from kdaverify.checks.status import Status
from kdaverify.problems import Problem, cotangents
from kdaverify.problems.regimes.gate import HUGE
from oracles.inputs import Inputs
from oracles.stages import Named, defined
from oracles.tensors import FLOATING

METHOD: Final = "float64 stages"
_RESETS: Final = "a hard reset has no finite cumulative gate to hand over"
_SOFTENED: Final = Softened(_RESETS, f"tested with gates of {HUGE:g} for hard resets")


def stages(adapter: Adapter, problem: Problem, *, feed: Feed = "exact") -> list[Outcome]:
    """Runs every exposed stage of the forward by itself and judges what it gives.

    Args:
        feed: "exact", or "own": a stage is given what the stages before it gave, as far as they are
            exposed, and the tensors that all of them gave are held against the equations between
            them.
    """
    return list(_judged(adapter, problem, feed, backward=False)) or skipped("no stage is exposed")


def backward_stages(adapter: Adapter, problem: Problem, *, feed: Feed = "exact") -> list[Outcome]:
    """The same of the backward's stages, for a loss on o and S_T; forward tensors are exact.

    Args:
        feed: "exact", or "own": a stage is given what exposed stages before it gave.
    """
    return list(_judged(adapter, problem, feed, backward=True)) or skipped(
        "no stage of the backward is exposed"
    )


def staged(adapter: Adapter, *, backward: bool = False) -> tuple[str, ...]:
    """The formats in which it exposes stages, forward or backward, that can be judged."""
    return tuple(
        dtype
        for dtype in adapter.dtypes
        if _exposed(adapter, dtype, backward=backward)
        and _contract(adapter, dtype, backward=backward).operands.name != "fp64"
    )


def walk(adapter: Adapter, problem: Problem, *, backward: bool = False) -> Iterator[Step]:
    """Every exposed stage on exact inputs, then on its own, in order; nothing where none is.

    Where some stage cannot be handed hard resets, all are tested with gates of HUGE instead, and on
    exact inputs alone.
    """
    calls = _exposed(adapter, problem.dtype, backward=backward)
    softened = not all(call.resets for call in calls.values()) and bool(
        problem.inputs().g.isneginf().any()
    )
    for feed in FEEDS[:1] if softened else FEEDS:
        for outcome in _judged(adapter, problem, feed, backward=backward, softened=softened):
            name = stage_name(adapter, problem.dtype, outcome.output)
            yield Step(feed, name, outcome, _SOFTENED if softened else None)


def walk_back(adapter: Adapter, problem: Problem) -> Iterator[Step]:
    """The same for the stages of the backward."""
    return walk(adapter, problem, backward=True)


def stage_name(adapter: Adapter, dtype: str, output: str) -> str:
    """The stage that an output of `stages` is reported under; "" for none."""
    stage, _, judged = output.removeprefix("call").partition(".")
    call = adapter.stages(dtype).get(stage)
    # An equation begins with the tensor that it defines.
    if judged and call is not None and len(call.covers) > 1:
        return f"{stage} ({judged.partition(' ')[0]})"
    return stage


def _contract(adapter: Adapter, dtype: str, *, backward: bool) -> Contract:
    """What its stages are judged by: those of a backward by what is declared of that."""
    return adapter.backward_contract(dtype) if backward else adapter.contract(dtype)


def _exposed(adapter: Adapter, dtype: str, *, backward: bool) -> dict[str, StageCall]:
    return {name: call for name, call in adapter.stages(dtype).items() if call.backward == backward}


@dataclass(frozen=True)
class _StageRun:
    """One problem as an implementation's stages see it."""

    arguments: StageArguments
    contract: Contract
    dtype: str

    def outcomes(
        self, name: str, call: StageCall, given: Named
    ) -> tuple[dict[str, Tensor], list[Outcome]]:
        """What the stage gave, and what to say of it."""
        x = self.arguments.beside(given)
        if not call.resets and bool(x.inputs.g.isneginf().any()):
            return {}, [Outcome(name, Status.SKIP, f"stage {name}: {_RESETS}")]
        seen = {tensor: call.received(tensor, value).double() for tensor, value in given.items()}
        question = StageQuestion(
            x.inputs,
            seen,
            call.covers,
            tuple(sorted(call.gives, key=form_of(self.contract).order.index)),
            self.contract,
            FORMATS[self.dtype],
        )
        try:
            held = stage_standard(question, x.formats)
            written = _called(
                name, call, x, {tensor: truth.high.shape for tensor, truth in held.truth.items()}
            )
        except ContractOverflow as reason:
            return {}, [Outcome(name, Status.SKIP, str(reason))]
        except CallError as fault:
            return {}, [Outcome(fault.output, fault.status, fault.message)]
        found: list[Outcome] = []
        for tensor in question.gives:
            comparison = compare(
                tensor,
                defined(tensor, written[tensor].double(), x.inputs, x.chunk_size),
                held,
                x.inputs,
            )
            found.append(
                Outcome(
                    f"{name}.{tensor}",
                    comparison.status,
                    f"stage {name}: {comparison}",
                    comparison,
                    METHOD,
                )
            )
        return written, found


def _judged(
    adapter: Adapter, problem: Problem, feed: Feed, *, backward: bool, softened: bool = False
) -> Iterator[Outcome]:
    calls = _exposed(adapter, problem.dtype, backward=backward)
    if not calls:
        return
    contract, io = _contract(adapter, problem.dtype, backward=backward), FORMATS[problem.dtype]
    if contract.operands.name == "fp64":
        yield from skipped("float64 is the stages' own oracle: kernels are judged up to fp32")
        return
    if contract.form != "chunk":
        yield from skipped("its contract has no chunks, and so no stages of one")
        return
    inputs = adapter.received(problem.inputs())
    inputs = replace(inputs, g=inputs.g.clamp(min=HUGE)) if softened else inputs
    if not any(inputs.lengths):
        yield from skipped("no token, no stage")
        return
    formats = formats_of(contract, io)
    exact = _exact(problem, inputs, contract, backward=backward)
    taken = {
        name: stored(name, tensor, formats)
        for name, tensor in exact.items()
        if name not in FLOATING
    }
    bench = _StageRun(
        StageArguments(inputs, {}, contract.chunk_size, formats), contract, problem.dtype
    )
    own: dict[str, Tensor] = {}
    for name, call in calls.items():
        written, found = bench.outcomes(
            name, call, {tensor: taken[tensor] for tensor in call.takes_of_earlier}
        )
        yield from found
        if feed == "own":
            if not written or any(outcome.status is Status.NONFINITE for outcome in found):
                return  # nothing after it can be separated from it
            own |= {
                tensor: value
                for tensor, value in written.items()
                if tensor not in own and value.dtype != torch.float64
            }
            taken |= own
    yield from _closed(calls, own, bench)


def _exact(
    problem: Problem, inputs: Inputs, contract: Contract, *, backward: bool
) -> dict[str, Tensor]:
    """Every tensor that a stage may be given, in float64."""
    form, size = form_of(contract), contract.chunk_size
    exact = form.run(inputs, {}, chunk_size=size)
    if backward:
        do, d_final_state = cotangents(problem, "both").of(inputs)
        exact |= {"do": do, "d_final_state": d_final_state}
        exact |= form.run(inputs, exact, (*form.backward,), chunk_size=size)
    return exact


def _closed(
    calls: Mapping[str, StageCall], own: dict[str, Tensor], bench: _StageRun
) -> Iterator[Outcome]:
    """Whether the kernel's tensors fulfil their equations; reported under the writing stage."""
    x = bench.arguments
    for equation, ratio in closures(own, x.inputs, bench.contract, x.formats).items():
        stage = next(
            name for name, call in calls.items() if CLOSURES[equation].result in call.gives
        )
        message = f"stage {stage}: {equation} is off by {ratio:.3g} times its rounding error bound"
        yield Outcome(
            f"{stage}.{equation}", Status.PASS if ratio <= 1 else Status.FAIL, message, excess=ratio
        )


def _called(
    name: str, call: StageCall, x: StageArguments, shapes: Mapping[str, torch.Size]
) -> dict[str, Tensor]:
    """What the stage returns, on copies of its own.

    Raises:
        CallError: it raised, edited what it was given, or gave no tensor of the wanted shape.
        AdapterError: the call never came to the kernel.
    """
    given = StageArguments(
        x.inputs.copied(),
        {n: tensor.clone() for n, tensor in x.tensors.items()},
        x.chunk_size,
        x.formats,
    )
    try:
        returned = call.call(given)
    except AdapterError:
        raise
    except Exception as error:
        fault = fault_of(error)
        raise CallError(Status(fault.kind), name, f"stage {name}: {fault.message}") from error
    for tensor in call.gives:
        _check(f"{name}.{tensor}", returned.get(tensor), shapes[tensor])
    for taken in call.takes:
        _check_kept(name, taken, given, x.inputs, x.tensors)
    return {tensor: returned[tensor] for tensor in call.gives}


def _check(output: str, value: object, shape: torch.Size) -> None:
    if value is None:
        raise CallError(
            Status.MISSING,
            output,
            f"{output}: wanted a tensor of shape {list(shape)}, got None; leave it out of `gives`",
        )
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise CallError(
            Status.TYPE,
            output,
            f"{output}: wanted a floating-point torch tensor, got {type(value).__name__}",
        )
    if value.shape != shape:
        raise CallError(
            Status.SHAPE, output, f"{output}: wanted shape {list(shape)}, got {list(value.shape)}"
        )


def _check_kept(
    stage: str, name: str, given: StageArguments, inputs: Inputs, tensors: Named
) -> None:
    before, after = tensors[name] if name in tensors else getattr(inputs, name), given[name]
    # Bit by bit: what a stage leaves undefined may hold NaN.
    if before is not None and after is not None and not same(before, after):
        message = f"stage {stage}: changed its input {name} in place"
        raise CallError(Status.MUTATED_INPUT, stage, message)
