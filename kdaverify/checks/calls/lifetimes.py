"""Tensors after a call: what it returned stays; what it was given may be overwritten."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import is_interpreted
from kdaverify.adapters.isolation.arena import bytes_of, reach
from kdaverify.adapters.placement import shares_memory
from kdaverify.checks.calls.bits import differing, same_or_right
from kdaverify.checks.calls.case import CallRuleCase, Tensors, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.execute import watched
from kdaverify.checks.gradients import run_backward
from kdaverify.checks.outcome import Outcome, first_wrong_or_last
from kdaverify.checks.status import Status
from oracles.signature import Role, TensorCall


def _kept(
    case: CallRuleCase,
    call: Callable[[CallRuleCase], Tensors],
    later: Callable[[CallRuleCase], Tensors],
) -> list[Outcome]:
    case.reaches("results")
    first = call(case)
    before = {name: tensor.clone() for name, tensor in first.items()}
    second = later(case)
    wrong = {
        name: "lies in the memory of what a later call returned"
        for name in first
        if _overlaps(first[name], second)
    }
    wrong |= dict(_shared(first)) | dict.fromkeys(
        differing(before, first), "changed by a later call with other values"
    )
    return [
        (
            Outcome(name, Status.ALIASED_OUTPUT, f"{name}: {wrong[name]}")
            if name in wrong
            else Outcome(
                name, Status.PASS, f"{name}: in memory of its own, unchanged by a later call"
            )
        )
        for name in first
    ]


def _overlaps(tensor: Tensor, others: Mapping[str, Tensor]) -> bool:
    return any(
        shares_memory(tensor, other) and tensor.data_ptr() == other.data_ptr()
        for other in others.values()
    )


def _shared(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    for (one, a), (two, b) in combinations(tensors.items(), 2):
        if share_a_byte(a, b):
            yield two, f"overlaps {one}"


def share_a_byte(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors do; parts of one buffer that alternate, as of a concatenation, do not."""
    if _extent(a)[0] >= _extent(b)[1] or _extent(b)[0] >= _extent(a)[1]:
        return False
    return bool(torch.isin(_bytes(a), _bytes(b)).any())


def _bytes(tensor: Tensor) -> Tensor:
    """Addresses of every byte of every element."""
    found = torch.tensor([tensor.data_ptr()])
    strides = (stride * tensor.itemsize for stride in tensor.stride())
    for size, stride in (*zip(tensor.shape, strides, strict=True), (tensor.itemsize, 1)):
        found = (found[:, None] + stride * torch.arange(size)).flatten()
    return found


def _extent(tensor: Tensor) -> tuple[int, int]:
    """Addresses of the first byte and past the last."""
    if not tensor.numel():
        return (0, 0)
    return tensor.data_ptr(), tensor.data_ptr() + reach(tensor) * tensor.itemsize


def _outputs(case: CallRuleCase) -> Tensors:
    """What the kernel returned itself: conversions of it, as of LSE to base e, are copies."""
    case.run()
    return _returned(case, case.inputs)


def _later_outputs(case: CallRuleCase) -> Tensors:
    return _returned(case, case.problem.replace(seed=case.problem.seed + 1).inputs())


def _returned(case: CallRuleCase, inputs: TensorCall) -> Tensors:
    found = watched(lambda: case.adapter.returned(inputs.copied()), "call")
    return {name: found[name].detach() for name in case.exposed}


def _later_gradients(case: CallRuleCase) -> Tensors:
    return run_backward(
        case.adapter, case.problem.replace(seed=case.problem.seed + 1).inputs(), case.cotangents
    )


MANY: Final = 65
"""Later calls: one more than the 64 buffers of a ring. One of 32 for each shape was accepted."""


MANY_STEPS: Final = 260
"""Later steps: more than a byte counts. A convolution with a ring of 128 buffers was accepted."""


def _kept_long(case: CallRuleCase) -> list[Outcome]:
    return _kept_over(MANY, case, _outputs, _returned)


def _kept_steps(case: CallRuleCase) -> list[Outcome]:
    case.takes_one_token()
    return _kept_over(MANY_STEPS, case, CallRuleCase.step, CallRuleCase.step)


def _kept_over(
    many: int,
    case: CallRuleCase,
    call: Callable[[CallRuleCase], Tensors],
    again: Callable[[CallRuleCase, TensorCall], Tensors],
) -> list[Outcome]:
    """What many later calls with other values change of a first one."""
    if is_interpreted(case.adapter):
        raise Unreachable(f"an interpreter would take minutes over {many} calls")

    def later(case: CallRuleCase) -> Tensors:
        inputs = case.problem.replace(seed=case.problem.seed + 1).inputs()
        for _ in range(many - 1):
            again(case, inputs)
        return again(case, inputs)

    return _kept(case, call, later)


BATCHES: Final = (8, 16, 32)
"""Sequences of steps that are captured as graphs, with as many heads as a launch is worth."""
HEADS: Final = 16


def _kept_step(case: CallRuleCase) -> list[Outcome]:
    case.takes_one_token()
    return first_wrong_or_last(
        _kept(
            replace(case, problem=case.beside(B=batch, H=HEADS, HV=HEADS)),
            CallRuleCase.step,
            _later_step,
        )
        for batch in BATCHES
    )


def _later_step(case: CallRuleCase) -> Tensors:
    return case.step(case.problem.replace(seed=case.problem.seed + 1).inputs())


_EXPOSES = "one buffer for all calls, outputs that overlap (S26)"


def _edited(case: CallRuleCase, other: Callable[[CallRuleCase], TensorCall]) -> list[Outcome]:
    return edited(case, other(case), nullcontext)


def edited(
    case: CallRuleCase,
    wanted: TensorCall,
    mode: Callable[[], AbstractContextManager[Any]],
    /,
    *,
    earlier: TensorCall | None = None,
) -> list[Outcome]:
    """The outputs of a call whose tensors held other values in the call before.

    Args:
        wanted: the call whose values they get.
        mode: in which all calls are made, such as `torch.no_grad`.
        earlier: the call before; None for that of the case.
    """
    case.reaches("objects")
    # Allocated before any call: a kernel that keeps what it converted by address would have an
    # entry with the wanted values, were this the memory of a copy that was freed.
    first: Any = case.inputs if earlier is None else earlier
    given = first.copied()
    with mode():
        plain = case.run(wanted)
        case.run(first, copied=lambda _: given)
        for name, tensor in given.tensors().items():
            # Through the storage, as another library writes: no version of the tensor counts it.
            bytes_of(tensor).copy_(bytes_of(getattr(wanted, name)))
        # another object of the same tensors: this one keeps what it derived from the former offsets
        found = case.run(wanted, copied=lambda _: replace(given))
    return same_or_right(
        # copies made outside: those of inference mode cannot be judged
        {name: tensor.clone() for name, tensor in plain.items()},
        {name: tensor.clone() for name, tensor in found.items()},
        lambda x: case.judged(x, wanted),
        "where the tensors of an earlier call hold other values",
    )


def _other_offsets(case: CallRuleCase) -> TensorCall:
    other = case.beside(**case.other_offsets()).inputs()
    offsets = other.signature.tensors(other, Role.OFFSETS)
    # a dataclass each
    return replace(case.problem.inputs(), **offsets).copied()


def other_values(case: CallRuleCase) -> TensorCall:
    return case.problem.replace(seed=case.problem.seed + 1).inputs().copied()


RULES = (
    CallRule("kept",
             "a later call changes nothing that an earlier one returned; outputs share no memory",
             _EXPOSES, partial(_kept, call=_outputs, later=_later_outputs), channel="results"),
    CallRule("kept-backward", "the same of all gradients", _EXPOSES,
             partial(_kept, call=CallRuleCase.back, later=_later_gradients), spare=False,
             channel="results", backward=True),
    CallRule("edited-offsets",
             "offsets edited in place, without a new version of the tensor, are new offsets",
             "chunk indices kept for a tensor of offsets that has changed since",
             partial(_edited, other=_other_offsets), size="tails", sequences=True, offsets=True,
             channel="objects", costly=True),
    CallRule("edited-values", "all tensors overwritten in place are a new call",
             "results, or converted inputs, kept for tensors that have changed since",
             partial(_edited, other=other_values), channel="objects", costly=True),
)  # fmt: skip
OF_MANY: Final = (
    CallRule("kept-long", f"{MANY} later calls change nothing that an earlier one returned",
             "outputs in a ring of buffers", _kept_long, channel="results", once=True, costly=True),
)  # fmt: skip
OF_STEPS: Final = (
    CallRule("kept-step", "a later step of as many sequences, 8, 16 and 32 of 16 heads, changes"
             " nothing that an earlier one returned", "outputs in the buffers of a captured step",
             _kept_step, size="one", packed=False, sequences=True, decode=True, delta=True,
             channel="results", once=True, costly=True),
)  # fmt: skip
OF_MANY_STEPS: Final = (
    CallRule("kept-long-step", f"{MANY_STEPS} later steps change nothing that one returned",
             "outputs in a ring of buffers", _kept_steps, size="one", packed=False, sequences=True,
             decode=True, channel="results", once=True, costly=True),
)  # fmt: skip
