"""Whether a fault shows: its outputs beside those of kernels that all conform."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from kdaverify.adapters.eager import EAGER
from kdaverify.budgets.emulate import RESIDUAL, running_cumsum, scaled_output, scaled_wy
from kdaverify.faults.adapter import Faulty
from kdaverify.faults.kernel import Patch, PatchedPipeline
from kdaverify.operators.pointwise.call import ActivationArguments, torch_activations
from kdaverify.operators.pointwise.problem import ActivationProblem
from kdaverify.problems import Problem, cotangents
from oracles.chunk import STAGES
from oracles.chunk_backward import BACKWARD
from oracles.inputs import Inputs
from oracles.tensors import GRADIENTS
from tests.faults.triggers import Trigger

Tensors = dict[str, Tensor]
# Further from the right kernel than twice what any conforming one is.
MARGIN = 2.0
# Stretches of tokens looked at by themselves: an error that grows is not to hide behind its
# beginning.
PARTS = 8
FAILED = "call"
SCALED = replace(STAGES, cumsum=running_cumsum, wy=scaled_wy, output=scaled_output)


def rms(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt()) if x.numel() else 0.0


def conforming(problem: Problem, how: str) -> list[Tensors]:
    """What conforming kernels give, the embedded one first."""
    return _conforming(problem.to_json(), "gradients" in how, "of o" in how)


@lru_cache(maxsize=64)
# a cache's key
def _conforming(problem: str, backward: bool, of_o: bool) -> list[Tensors]:
    tested = Problem.from_json(problem)
    x, contract = tested.inputs(), EAGER.contract(tested.dtype)
    if backward:
        given = cotangents(tested, "o" if of_o else "both")
        stages = Patch(backward=lambda _: BACKWARD)
        patches = (Patch(), stages, replace(stages, chunk_size=32))
        return [
            _gradients(PatchedPipeline(contract, patch).gradients(x, given).named(), x)
            for patch in patches
        ]
    patches = (
        Patch(),
        Patch(stages=lambda _: RESIDUAL),
        Patch(stages=lambda _: SCALED),
        Patch(chunk_size=32),
    )
    return [
        dict(zip(("o", "final_state"), PatchedPipeline(contract, patch)(x), strict=True))
        for patch in patches
    ]


def _gradients(found: Mapping[str, Tensor], x: Inputs) -> Tensors:
    return {
        name: gradient
        for name, gradient in found.items()
        if getattr(x, GRADIENTS[name]) is not None
    }


def differs(found: Mapping[str, Tensor], runs: list[Tensors], names: tuple[str, ...]) -> bool:
    """Whether one of the named outputs is further from the first
    of `runs` than the others allow.
    """
    return any(
        _far(found[name].detach(), runs[0][name].detach(), [run[name].detach() for run in runs[1:]])
        for name in names
        if name in found
    )


def _far(found: Tensor, right: Tensor, others: list[Tensor]) -> bool:
    if not bool(torch.isfinite(found).all()):
        return True
    parts = PARTS if found.ndim > 1 and found.shape[1] >= PARTS else 1
    off, *allowed = (
        [rms(part) for part in (x - right).chunk(parts, dim=min(1, x.ndim - 1))]
        for x in (found, *others)
    )
    return any(a > MARGIN * max(b) for a, *b in zip(off, *allowed, strict=True))


def shows(adapter: Faulty, trigger: Trigger) -> bool:
    """Whether a call of the trigger changes an output that the fault names,
    or fails where it says so.
    """
    if trigger.how == "activation":
        return _activation_differs(adapter, trigger)
    problem = trigger.problem(adapter.dtypes)
    compute = _computing(adapter, trigger, problem)
    return any(
        _shows_once(compute, adapter, conforming(problem, trigger.how))
        for _ in range(trigger.calls)
    )


def _shows_once(compute: Callable[[], Tensors], adapter: Faulty, runs: list[Tensors]) -> bool:
    try:
        return differs(compute(), runs, adapter.fault.outputs)
    except (RuntimeError, AttributeError, IndexError):
        if FAILED in adapter.fault.outputs:
            return True
        raise


def _computing(adapter: Faulty, trigger: Trigger, problem: Problem) -> Callable[[], Tensors]:
    x = problem.inputs()

    def outputs() -> Tensors:
        tested = next(iter(adapter.variants().values())) if trigger.how == "variant" else adapter
        output = (tested.step if trigger.how == "step" else tested.forward)(x.copied())
        return {name: getattr(output, name) for name in tested.exposes(problem)}

    def gradients() -> Tensors:
        given = cotangents(problem, "o" if trigger.how == "gradients of o" else "both")
        return _gradients(adapter.gradients(x.copied(), given).named(), x)

    return gradients if "gradients" in trigger.how else outputs


def _activation_differs(adapter: Faulty, trigger: Trigger) -> bool:
    problem = ActivationProblem.model_validate(trigger.fields)
    question = problem.question()
    arguments = ActivationArguments(question.tensors, question.setting, question.cotangent)
    right, wrong = torch_activations()[problem.op], adapter.activations(problem.dtype)[problem.op]
    result = adapter.fault.outputs[0] if len(adapter.fault.outputs) == 1 else "beta"
    if result.startswith("d"):
        assert right.backward is not None and wrong.backward is not None
        found, wanted = wrong.backward(arguments)[result], right.backward(arguments)[result]
    else:
        found, wanted = wrong.forward(arguments), right.forward(arguments)
    # Conforming ways differ in the last bits alone.
    off = (found - wanted).abs() > 64 * torch.finfo(wanted.dtype).eps * wanted.abs()
    return bool((off | ~torch.isfinite(found)).any())
