"""What one run of one problem came to, output by output."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.device_memory import patiently
from kdaverify.adapters.isolation.fault import fault_of
from kdaverify.budgets.ensemble import ContractOverflow
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.standard import Reference
from kdaverify.checks.compare import Comparison, compare
from kdaverify.checks.execute import CallError, dtype_name, execute
from kdaverify.checks.published.evidence import Again, Evidence
from kdaverify.checks.status import REFUSED, Status
from kdaverify.operator import Baseline, call_operator
from oracles.certified import UncertifiedError
from oracles.signature import Role, TensorCall

MOST_WRONG: Final = 4
"""Sizes: each takes a second of a kernel that is wrong in all."""
# An output that a conforming kernel may overflow in: the others of the same call are judged.
OVERFLOWS = "it overflows in an emulated kernel of the contract; not judged, unlike the others"


@dataclass(frozen=True)
class Outcome:
    """One output's result.

    Args:
        output: "o", "final_state", or "call" for what concerns the whole call.
        status: what is concluded.
        message: the comparison in words, or what the call did wrong, or why it was skipped.
        comparison: the figures, where there was something to compare.
        oracle: how the exact value was obtained, "" where none was needed.
        excess: what was found / its tolerance, where nothing was compared.
        digits_fewer: digits a pass has fewer than a recurrence; None for an unremarkable number.
        evidence: what others' standards need to see of it, where it is an output of a call.
    """

    output: str
    status: Status
    message: str
    comparison: Comparison | None = None
    oracle: str = ""
    excess: float | None = None
    digits_fewer: float | None = None
    evidence: Evidence | None = field(default=None, repr=False, compare=False)

    @property
    def ratio(self) -> float | None:
        """What was found / its tolerance; None where there is no figure."""
        return self.comparison.ratio if self.comparison else self.excess


def rejected(found: Iterable[Outcome]) -> bool:
    """Whether one of them rejects."""
    return any(outcome.status.rejects for outcome in found)


def placed(found: list[Outcome], place: str) -> list[Outcome]:
    """The same; where one rejects, with a place behind each message."""
    if not rejected(found):
        return found
    return [replace(outcome, message=f"{outcome.message}{place}") for outcome in found]


def first_wrong_or_all(calls: Iterable[list[Outcome]]) -> list[Outcome]:
    """The outcomes of the first call that is wrong, or else of all."""
    right = list[Outcome]()
    for found in calls:
        if rejected(found):
            return found
        right += found
    return right


def first_wrong_or_last(calls: Iterable[list[Outcome]]) -> list[Outcome]:
    """The outcomes of the first call that is wrong, or else of the last."""
    found = list[Outcome]()
    for found in calls:
        if rejected(found):
            break
    return found


def first_wrong_of(sizes: Iterable[tuple[str, list[Outcome]]]) -> list[Outcome]:
    """The outcomes of the first size that is wrong, with which others are; else of the last.

    Which sizes are wrong says more of a bug than how wrong one is: calls are made until MOST_WRONG
    are.

    Args:
        sizes: what each is called, and the outcomes of its call.
    """
    wrong, right = dict[str, list[Outcome]](), dict[str, list[Outcome]]()
    for name, found in sizes:
        (wrong if rejected(found) else right)[name] = found
        if len(wrong) == MOST_WRONG:
            break
    if not wrong:
        return [*right.values()][-1] if right else []
    said = f"wrong with {', '.join(wrong)}; right with {', '.join(right) or 'none before'}"
    return placed(next(iter(wrong.values())), f"\n  {said}")


def is_packed(call: TensorCall) -> bool:
    """Whether a call takes several sequences in one."""
    return bool(call.signature.tensors(call, Role.OFFSETS))


def skipped(reason: str) -> list[Outcome]:
    return [Outcome("call", Status.SKIP, reason)]


def of_failed_call(adapter: Adapter, inputs: TensorCall, fault: CallError) -> list[Outcome]:
    """What an uncomparable call came to: skipped where a kernel may decline it by exception."""
    declined = adapter.operator.may_decline(adapter, inputs)
    if declined and fault.status is Status.ERROR:
        said = fault.message.partition("\n")[0]
        return skipped(f"{REFUSED}{declined} ({said})")
    return [Outcome(fault.output, fault.status, fault.message)]


_DECLINED: Final = re.compile(r"the kernel raised NotImplementedError:(?P<reason>[^\n]*)")
_PLACE: Final = re.compile(r" \([^()]*:\d+ in .*\)$")
_LACKING: Final = re.compile(r"\baten::|\bderivative\b")
"""What torch says of an operation that it lacks: nobody decided to leave that out."""


def declined(found: list[Outcome]) -> list[Outcome]:
    """The outcomes of a call, skipped where the kernel raised NotImplementedError: its caller gets
    an exception and no wrong number, and the decision lists the reason as not tested.
    """
    return [_unless_declined(one) for one in found]


def _unless_declined(found: Outcome) -> Outcome:
    said = _DECLINED.search(found.message) if found.status is Status.ERROR else None
    if said is None or _LACKING.search(said["reason"]):
        return found
    return refusal(said["reason"])


def refusal(reason: str) -> Outcome:
    """A call that the kernel declined.

    Args:
        reason: its exception in one line, with or without the place.
    """
    words = _PLACE.sub("", reason).strip() or "NotImplementedError, without a reason"
    return Outcome("call", Status.SKIP, f"{REFUSED}{words}")


def outcomes(
    adapter: Adapter,
    inputs: TensorCall,
    produce: Callable[[], dict[str, Tensor]],
    *,
    cuts: tuple[int, ...] = (),
) -> list[Outcome]:
    """Judges what `produce` returns as outputs of `inputs`.

    Args:
        adapter: the implementation; its contract sets tolerances, `received` the exact call.
        inputs: the call that the outputs answer, in one run, in parts, or one by one.
        produce: runs the kernel; returns the exposed outputs by name; may raise CallError.
        cuts: where `produce` cut the run, so that the conforming kernels are cut there too.
    """
    try:
        produced = produce()
    except CallError as fault:
        # What stands in for outputs where calls are only written down breaks laws that look at it:
        # every export of a smoke ended so.
        if adapter.answers:
            return of_failed_call(adapter, inputs, fault)
        return skipped("written down, not judged")
    if not adapter.answers:
        return skipped("exported, not judged")
    dtype = dtype_name(inputs)
    received, contract, io = adapter.received(inputs), adapter.contract(dtype), FORMATS[dtype]

    def hold(x: TensorCall) -> Reference:
        return adapter.operator.reference(x, contract, io, cuts=cuts)

    def again(other: Adapter) -> dict[str, Tensor]:
        return execute(other, inputs, tuple(produced)).outputs

    baseline = adapter.operator.baseline(received, contract, io)
    return judged(
        produced, received, lambda: held_at_fastest(received, contract, hold), again, baseline
    )


def judged(
    produced: dict[str, Tensor],
    received: TensorCall,
    hold: Callable[[], Reference],
    again: Again | None = None,
    baseline: Baseline | None = None,
) -> list[Outcome]:
    """Compares every output, or gradient, with what `hold` makes for it, if conclusive.

    Args:
        produced: tensors by name.
        received: the call that the kernel effectively got.
        hold: makes truth and tolerances; may raise ContractOverflow or UncertifiedError.
        again: calls another implementation likewise, where tensors are the outputs of a call:
            others' standards then judge them too.
        baseline: of the same call, to say which passes have far fewer digits.
    """
    try:
        held = hold()
    except ContractOverflow as reason:
        return skipped(str(reason))
    except UncertifiedError as reason:
        return [Outcome("call", Status.ORACLE_UNCERTIFIED, str(reason))]
    compared = _compared(produced, received, held)
    overflowing = [
        Outcome(name, Status.SKIP, f"{name}: {OVERFLOWS}")
        for name in produced
        if name not in held.budgets
    ]
    if not compared:
        return skipped("; ".join(outcome.message for outcome in overflowing))

    def evidence(output: str) -> Evidence | None:
        return None if again is None else _evidence(output, produced, received, held, again)

    def fewer(c: Comparison) -> float | None:
        return None if baseline is None else baseline.digits_fewer(c, held.exact(c.output))

    found = [
        Outcome(
            c.output,
            c.status,
            str(c),
            c,
            held.truth.method,
            digits_fewer=fewer(c),
            evidence=evidence(c.output),
        )
        for c in compared
    ]
    return [*found, *overflowing]


def _compared(
    produced: dict[str, Tensor], received: TensorCall, held: Reference
) -> list[Comparison]:
    known = {name: tensor for name, tensor in produced.items() if name in held.budgets}
    return [
        compare(name, tensor.to(held.device), held, received.on(held.device))
        for name, tensor in known.items()
    ]


def _evidence(
    output: str, produced: dict[str, Tensor], received: TensorCall, held: Reference, again: Again
) -> Evidence:
    """What others' standards need of an output."""
    return Evidence(
        output,
        dtype_name(received),
        is_packed(received),
        produced[output],
        held.exact(output).high,
        held.budgets[output].plain,
        again,
    )


def held_at_fastest(call: TensorCall, contract: Any, hold: Callable[[Any], Reference]) -> Reference:
    """What `hold` makes of the call, where that is fastest and memory is left."""
    *faster, last = _benches(call, contract)
    for bench in faster:
        try:
            return patiently(partial(hold, call.on(bench)), _is_shortage)
        # cuBLAS and the allocator have an exception each
        except Exception as error:
            if not _is_shortage(error):
                raise
        torch.accelerator.empty_cache()
    return hold(call.on(last))


def _is_shortage(error: Exception) -> bool:
    return fault_of(error).kind == "OOM"


def _benches(call: TensorCall, contract: Any) -> tuple[torch.device, ...]:
    """Where a case can be judged: large ones on an accelerator, if any; balls on the CPU."""
    on_accelerator = torch.cuda.is_available() and call_operator(call.op).is_large(call, contract)
    return (torch.device("cuda"), torch.device("cpu")) if on_accelerator else (torch.device("cpu"),)
