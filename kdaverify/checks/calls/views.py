"""A view holds the values of its elements, wherever they lie,
and nothing else of its memory counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.calls.case import CallRuleCase, Tensors, Unreachable
from kdaverify.checks.calls.layouts import LAYOUTS, WIDE, GuardedMemory, MemoryLayout
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome
from oracles.signature import Role, TensorCall


def _viewed(case: CallRuleCase, layout: MemoryLayout) -> list[Outcome]:
    return same_or_right(
        case.run(), _run_viewed(case, layout, case.run), case.judged, f"from views: {layout.about}"
    )


def _wide(case: CallRuleCase) -> list[Outcome]:
    if case.adapter.device != "cpu":
        raise Unreachable("memory of this extent is not handed to another device")
    try:
        return _viewed(case, WIDE)
    except OSError as error:
        raise Unreachable(
            f"this process may not reserve the addresses between its rows: {error}"
        ) from None


def _run_viewed(case: CallRuleCase, layout: MemoryLayout, run: Callable[..., Tensors]) -> Tensors:
    case.reaches("memory")
    converted = case.adapter.conventions.converted()
    if not {*case.inputs.tensors()} - {*converted, *case.inputs.signature.names(Role.OFFSETS)}:
        raise Unreachable("every input is converted before the kernel sees it")
    there = case.inputs.on(case.place)
    room = GuardedMemory(
        layout, {name: tensor for name, tensor in there.tensors().items() if name not in converted}
    )

    def laid(_: TensorCall) -> TensorCall:
        # a dataclass each
        return replace(there.copied(), **room.tensors)  # pyright: ignore[reportArgumentType]

    found = run(inputs=there, copied=laid)
    room.check()
    return {name: tensor.to(case.inputs.device) for name, tensor in found.items()}


def _inputs_viewed_back(case: CallRuleCase, layout: MemoryLayout) -> list[Outcome]:
    given = case.loss_of(case.loss_on(case.place))
    found = _run_viewed(case, layout, partial(case.back, given))
    return same_or_right(
        case.back(), found, case.judged_back, f"from inputs that are views: {layout.about}"
    )


def _viewed_back(case: CallRuleCase, layout: MemoryLayout) -> list[Outcome]:
    case.reaches("memory")
    there = case.inputs.on(case.place)
    room = GuardedMemory(layout, case.loss_on(case.place))
    found = case.back(case.loss_of(room.tensors), there)
    room.check()
    back = {name: tensor.to(case.inputs.device) for name, tensor in found.items()}
    return same_or_right(
        case.back(),
        back,
        case.judged_back,
        f"from incoming gradients that are views: {layout.about}",
    )


_STRIDES = "strides ignored, alignment demanded, memory around a tensor read or written"
_of_backward = partial(
    CallRule, spare=False, memory=True, channel="memory", backward=True, costly=True
)
RULES = (
    *(
        CallRule(
            f"view-{name}",
            f"all inputs {layout.about}",
            f"{_STRIDES} (S15, S29, S30, X5, A11, SO4)",
            partial(_viewed, layout=layout),
            memory=True,
            channel="memory",
            costly=True,
        )
        for name, layout in LAYOUTS.items()
    ),
    CallRule(
        "view-wide",
        f"all inputs with {WIDE.about}",
        "offsets computed in int32",
        _wide,
        spare=False,
        channel="memory",
        costly=True,
    ),
    *(
        _of_backward(
            f"cotangent-{name}",
            f"the gradients of the outputs {LAYOUTS[name].about}",
            f"{_STRIDES} (P7)",
            partial(_viewed_back, layout=LAYOUTS[name]),
        )
        for name in ("misaligned", "sliced", "swapped")
    ),
    *(
        _of_backward(
            f"view-{name}-backward",
            f"the gradients of a call with all inputs {LAYOUTS[name].about}",
            f"{_STRIDES}, by the backward alone (S15, P7)",
            partial(_inputs_viewed_back, layout=LAYOUTS[name]),
        )
        for name in ("guarded", "sliced", "swapped")
    ),
)
