"""What a call returned stays what it was, and is nobody else's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import combinations

import torch
from torch import Tensor

from kdaverify.adapters.placement import shares_memory
from kdaverify.checks.calls.bits import differing
from kdaverify.checks.calls.case import CallRuleCase, Tensors
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.gradients import run_backward
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.status import Status


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
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.itemsize


def _other_values(case: CallRuleCase) -> Tensors:
    return case.run(case.problem.replace(seed=case.problem.seed + 1).inputs())


def _other_gradients(case: CallRuleCase) -> Tensors:
    return run_backward(
        case.adapter, case.problem.replace(seed=case.problem.seed + 1).inputs(), case.cotangents
    )


_EXPOSES = "one buffer for all calls, outputs that overlap (S26)"
RULES = (
    CallRule(
        "kept",
        "a later call changes nothing that an earlier one returned; outputs share no memory",
        _EXPOSES,
        partial(_kept, call=CallRuleCase.run, later=_other_values),
        channel="results",
    ),
    CallRule(
        "kept-backward",
        "the same of all gradients",
        _EXPOSES,
        partial(_kept, call=CallRuleCase.back, later=_other_gradients),
        spare=False,
        channel="results",
        backward=True,
    ),
)
