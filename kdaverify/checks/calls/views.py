"""A view holds the values of its elements; nothing else of its memory counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import Any, TypeVar

from kdaverify.adapters.conventions import AS_THEY_ARE, views_as_they_lie
from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.calls.case import CallRuleCase, Tensors, Unreachable
from kdaverify.checks.calls.layouts import (
    COLUMNS,
    EXCHANGED,
    FUSED,
    JOINED,
    LAYOUTS,
    STEPPED,
    WIDE,
    GuardedMemory,
    MemoryLayout,
    heads_in_groups,
    in_groups,
)
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.execute import CallError, refuses_views
from kdaverify.checks.outcome import Outcome, first_wrong_or_all, placed
from kdaverify.checks.status import REFUSED
from oracles.signature import Role, TensorCall

X = TypeVar("X")
LayoutCheck = Callable[[CallRuleCase, MemoryLayout], list[Outcome]]


def _unless_refused(call: Callable[[], X]) -> X:
    """What a call on views returns.

    Raises:
        Unreachable: the kernel says that it takes no tensor that lies so in memory, as
            TORCH_CHECK(x.is_contiguous()) does: its caller gets an error and no wrong number.
    """
    try:
        with views_as_they_lie():
            return call()
    except CallError as error:
        if refuses_views(error):
            said = error.message.partition("\n")[0]
            raise Unreachable(f"{REFUSED}tensors that are views ({said})") from error
        raise


def _viewed(case: CallRuleCase, layout: MemoryLayout) -> list[Outcome]:
    return same_or_right(
        case.run(), _run_viewed(case, layout, case.run), case.judged, f"from views: {layout.about}"
    )


def _first_entry(case: CallRuleCase) -> list[Outcome]:
    """Both begin at one address and have one shape: strides alone distinguish them."""
    found = list[Outcome]()
    for names, here in case.alike():
        for one, other in permutations(sorted(names & {*here.inputs.tensors()}), 2):
            own, like = getattr(here.inputs, one), getattr(here.inputs, other)
            if own.shape == like.shape and own.dtype == like.dtype and len(like) > 1:
                found += _of_first_entry(here, one, other)
    if not found:
        raise Unreachable("no two inputs of it can be one tensor of several entries")
    return found


def _of_first_entry(case: CallRuleCase, one: str, other: str) -> list[Outcome]:
    def viewed(inputs: TensorCall) -> Any:
        own: Any = inputs.copied()
        like = getattr(own, other)
        return replace(own, **{one: like[:1].expand_as(like)})

    dense = viewed(case.inputs).copied()
    found = _unless_refused(lambda: case.run(dense, copied=viewed))
    judge = partial(case.judged, inputs=dense)
    said = f"where {one} is the first entry of {other}, expanded"
    return same_or_right(case.run(dense), found, judge, said)


def _wide(case: CallRuleCase) -> list[Outcome]:
    if case.adapter.device != "cpu":
        raise Unreachable("memory of this extent is not handed to another device")
    try:
        return _viewed(case, WIDE)
    except OSError as error:
        raise Unreachable(
            f"this process may not reserve the addresses between its rows: {error}"
        ) from None


def _columns(case: CallRuleCase) -> list[Outcome]:
    """Alone: kernels that say that they take no such offsets are tested on all other views."""
    of_one_axis = {name for name, x in case.inputs.tensors().items() if x.ndim == 1}
    if not of_one_axis - _copied(case):
        raise Unreachable("none of its inputs has one axis")
    return _viewed(case, COLUMNS)


def _projected(case: CallRuleCase) -> list[Outcome]:
    if not heads_in_groups(case.inputs.tensors()):
        raise Unreachable("no two of its inputs have as many rows and heads, and one format")
    return _first_wrong(case, _viewed, FUSED)


def _joined(case: CallRuleCase) -> list[Outcome]:
    _shares_rows(case)
    return _viewed(case, JOINED)


def _joined_back(case: CallRuleCase) -> list[Outcome]:
    _shares_rows(case)
    return _inputs_viewed_back(case, JOINED)


def _shares_rows(case: CallRuleCase) -> None:
    if not in_groups(case.inputs.tensors()):
        raise Unreachable("no two of its inputs have as many rows and one format")


def _expanded(case: CallRuleCase) -> list[Outcome]:
    """Every entry of a batch the first one, in memory once and as often as there are entries."""
    if case.adapter.conventions.layout == "thd":
        raise Unreachable("entries of its batch lie in one row")
    return _of_one_entry(case, Role.TOKEN, case.run)


def _one_state(case: CallRuleCase) -> list[Outcome]:
    return _of_one_entry(case, Role.STATE, case.run)


def _one_state_step(case: CallRuleCase) -> list[Outcome]:
    case.takes_one_token()
    return _of_one_entry(case, Role.STATE, case.step)


def _of_one_entry(case: CallRuleCase, role: Role, run: Callable[..., Tensors]) -> list[Outcome]:
    case.reaches("memory")
    there, copied = case.inputs.on(case.place), _copied(case)
    once = {
        name: x[:1].expand_as(x)
        for name, x in there.tensors().items()
        if there.signature[name].role is role and len(x) > 1 and name not in copied
    }
    if not once:
        raise Unreachable("no input has more than one entry, or every one is converted")
    dense = replace(there, **{name: x.contiguous() for name, x in once.items()})

    def laid(_: TensorCall) -> TensorCall:
        # a dataclass each
        return replace(dense.copied(), **once)  # pyright: ignore[reportArgumentType]

    return same_or_right(
        run(dense),
        _unless_refused(lambda: run(dense, copied=laid)),
        lambda found: case.judged(found, dense),
        "from views of stride 0",
    )


def _copied(case: CallRuleCase) -> set[str]:
    """The inputs that the kernel gets a dense copy of, in this call."""
    own, copied = case.adapter.conventions, {*case.adapter.copied()}
    return copied - ({*own.recomputed()} - {*own.densely(case.inputs)})


def _run_viewed(case: CallRuleCase, layout: MemoryLayout, run: Callable[..., Tensors]) -> Tensors:
    case.reaches("memory")
    copied, conventions = _copied(case), case.adapter.conventions
    if not {*case.inputs.tensors()} - {*copied, *case.inputs.signature.names(Role.OFFSETS)}:
        raise Unreachable("every input is converted before the kernel sees it")
    there = case.inputs.on(case.place)
    # A fused projection has the axes of the caller, whatever those of the kernel are.
    orders = {
        name: (
            AS_THEY_ARE
            if layout.joined and not there.signature.is_state(name)
            else conventions.lying(name)
        )
        for name in there.tensors()
        if name not in copied
    }
    room = GuardedMemory(
        layout, {name: order.to(there.tensors()[name]) for name, order in orders.items()}
    )

    def laid(_: TensorCall) -> TensorCall:
        viewed = {name: orders[name].back(tensor) for name, tensor in room.tensors.items()}
        # a dataclass each
        return replace(there.copied(), **viewed)  # pyright: ignore[reportArgumentType]

    found = _unless_refused(lambda: run(inputs=there, copied=laid))
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
    found = _unless_refused(lambda: case.back(case.loss_of(room.tensors), there))
    room.check()
    back = {name: tensor.to(case.inputs.device) for name, tensor in found.items()}
    return same_or_right(
        case.back(),
        back,
        case.judged_back,
        f"from incoming gradients that are views: {layout.about}",
    )


def _exchanged(case: CallRuleCase, check: LayoutCheck) -> list[Outcome]:
    return _first_wrong(case, check, EXCHANGED)


def _viewed_step(case: CallRuleCase, layout: MemoryLayout) -> list[Outcome]:
    case.takes_one_token()
    found = _run_viewed(case, layout, case.step)
    return same_or_right(case.step(), found, case.judged, f"from views: {layout.about}")


def _first_wrong(
    case: CallRuleCase, check: LayoutCheck, layouts: tuple[MemoryLayout, ...]
) -> list[Outcome]:
    """The outcomes of the first layout that is wrong, or else of all."""
    return first_wrong_or_all(
        placed(check(case, layout), f", {layout.about}") for layout in layouts
    )


_STRIDES = "strides ignored, alignment demanded, memory around a tensor read or written"
_of_backward = partial(
    CallRule, spare=False, memory=True, channel="memory", backward=True, costly=True
)
# fmt: off
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
    CallRule("view-joined", f"all inputs of as many rows {JOINED.about}", f"{_STRIDES} (G14)",
             _joined, packed=False, aligned=True, memory=True, channel="memory", costly=True),
    _of_backward("view-joined-backward",
                 f"the gradients of a call with all inputs of as many rows {JOINED.about}",
                 "gradients written with the strides of the inputs' buffer (G14)", _joined_back,
                 packed=False, aligned=True),
    CallRule("view-expanded", "every entry of a batch the first one, by a stride of 0",
             "tails of tensors with a stride of 0 read elsewhere (M8), a first entry written",
             _expanded, packed=False, memory=True, channel="memory", costly=True),
    CallRule("view-wide", f"all inputs with {WIDE.about}", "offsets computed in int32", _wide,
             spare=False, channel="memory", costly=True),
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
_BY_SIZE = (
    "the order of axes inferred from sizes and strides (a transposed state where K = V), or taken"
    " for granted (LSE of a merge)"
)
_of_equal_sizes = partial(CallRule, size="equal", packed=False, channel="memory", costly=True)
OF_EQUAL_SIZES = (
    _of_equal_sizes("view-exchanged",
                    "where all sizes are equal, inputs with two axes exchanged in memory",
                    _BY_SIZE, partial(_exchanged, check=_viewed)),
    _of_equal_sizes("view-exchanged-backward", "the gradients of such calls", _BY_SIZE,
                    partial(_exchanged, check=_inputs_viewed_back), backward=True),
    _of_equal_sizes("cotangent-exchanged",
                    "where all sizes are equal, the gradients of outputs with two axes exchanged"
                    " in memory", f"{_BY_SIZE}, of an incoming gradient",
                    partial(_exchanged, check=_viewed_back), backward=True),
)
"""Tested after all others, whose widths and formats are by their number."""
IN_TABLES = (
    CallRule("view-column", f"inputs {COLUMNS.about}",
             "offsets, lengths, weights read from memory as if they were dense", _columns,
             spare=False, channel="memory", costly=True),
    _of_equal_sizes("view-projection",
                    "where all sizes are equal, inputs of as many heads as views of one projection,"
                    " [B, T, 3, H, d] or [B, T, H, 3, d]",
                    "a fused projection recognised by its rows alone, and read in one order",
                    _projected),
)
_of_states = partial(
    CallRule, packed=False, sequences=True, states=True, channel="memory", costly=True
)
OF_STATES = (
    _of_states("view-expanded-state",
               "every sequence continues from one state, by a stride of 0: a shared prefix",
               "the layout of the given state taken for the state that is returned", _one_state),
    _of_states("view-expanded-step", "the same at the decode entry point",
               "the same in a decode kernel", _one_state_step, size="one", decode=True),
)
# Prompts and steps are read by kernels of their own: a step that took a transposed state with K = V
# for a dense one was accepted.
_of_a_step = partial(
    CallRule, packed=False, sequences=True, decode=True, channel="memory", costly=True
)
OF_STEPS = (
    _of_a_step("view-step",
               "one token at the decode entry point: all inputs misaligned, sliced, swapped, or"
               " views of one buffer", f"{_STRIDES}, by a decode kernel alone",
               partial(_first_wrong, check=_viewed_step, layouts=STEPPED), size="one",
               memory=True),
)
EQUAL_STEPS = (
    _of_a_step("view-exchanged-step",
               "the same where all other sizes are equal: two axes exchanged in memory",
               f"{_BY_SIZE}, by a decode kernel alone",
               partial(_exchanged, check=_viewed_step), size="equal-one"),
)
# fmt: on
OF_FIRST_ENTRIES = (
    CallRule(
        "view-first-entry",
        "an input that is the first entry of another, expanded, is read as such",
        "two inputs taken for one by their address and shape, whatever the strides",
        _first_entry,
        packed=False,
        sources=True,
        spare=False,
        inside=True,
        costly=True,
        once=True,
    ),
)  # fmt: skip
