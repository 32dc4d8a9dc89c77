"""What surrounds a call changes nothing: memory, batch, pack, keywords, stream, tuner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from kdaverify.adapters.base import is_interpreted
from kdaverify.adapters.poison import poisoned_allocations
from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.calls.case import CallRuleCase, Tensors, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.execute import CallError, execute
from kdaverify.checks.outcome import Outcome, first_wrong_or_last
from kdaverify.checks.status import Status
from oracles.signature import Role, TensorCall

PLACES = 65535
"""Of a launch grid's second and third axis, in CUDA."""
UNKNOWN = "inital_state"
DEFAULTS = (torch.bfloat16, torch.float64)
CYCLES = 20_000_000
"""What the inputs wait for: some ten milliseconds."""


def _unwritten(case: CallRuleCase, *, backward: bool = False) -> list[Outcome]:
    case.reaches("buffers")
    call, judge = case.direction(backward=backward)
    plain = call()
    with poisoned_allocations():
        found = call()
    return same_or_right(
        plain, found, judge, "where whatever torch allocates and nobody writes is NaN"
    )


def _alone(case: CallRuleCase) -> list[Outcome]:
    if case.problem.packed:
        raise Unreachable("it takes no batches")
    case.beside(B=1)
    parts = [case.run(_entry(case.inputs, b)) for b in range(case.problem.B)]
    alone = {name: torch.cat([part[name] for part in parts]) for name in case.exposed}
    return same_or_right(alone, case.run(), case.judged, "for every batch entry alone")


def _reversed(case: CallRuleCase) -> list[Outcome]:
    if case.problem.packed:
        raise Unreachable("it takes no batches")
    turned: Tensors = case.run(_entry(case.inputs, slice(None), flipped=True))
    return same_or_right(
        case.run(),
        {name: tensor.flip(0) for name, tensor in turned.items()},
        case.judged,
        "in reversed order",
    )


def _entry(x: TensorCall, which: int | slice, *, flipped: bool = False) -> TensorCall:
    rows = slice(which, which + 1) if isinstance(which, int) else which
    return x.mapped(
        lambda tensor: tensor[rows].flip(0) if flipped else tensor[rows].contiguous(),
        Role.TOKEN,
        Role.STATE,
    )


def _crowded(case: CallRuleCase) -> list[Outcome]:
    if case.problem.lengths is None:
        raise Unreachable("it takes no packs")
    if is_interpreted(case.adapter):
        raise Unreachable(f"an interpreter would take minutes over {PLACES} programs")
    x = case.inputs
    # A program a sequence and head, or a sequence alone.
    extra = PLACES // getattr(x, "HV", 1) + 1
    case.beside(lengths=(*case.problem.lengths, *[0] * extra))
    found = execute(case.adapter, _with_empties(x, extra), case.exposed).outputs
    seen = {
        name: tensor[: x.N] if x.signature.is_state(name) else tensor
        for name, tensor in found.items()
    }
    return same_or_right(
        case.run(), seen, case.judged, f"in a pack with {extra} empty sequences more"
    )


def _with_empties(x: TensorCall, extra: int) -> TensorCall:
    def longer(tensor: Tensor) -> Tensor:
        return torch.cat((tensor, tensor[-1:].expand(extra, *tensor.shape[1:])))

    return x.mapped(longer, Role.OFFSETS, Role.STATE)


def _under_default_dtype(case: CallRuleCase, *, backward: bool = False) -> list[Outcome]:
    """As where a model in 16 bits is built, or a reference in float64 runs, around the call."""
    call, judge = case.direction(backward=backward)
    plain = {name: tensor.clone() for name, tensor in call().items()}
    found = {dtype: _with_default(dtype, call) for dtype in DEFAULTS}
    taken = {dtype: own for dtype, own in found.items() if own is not None}
    if not taken:
        raise Unreachable("it raises under any other default type")
    return first_wrong_or_last(
        same_or_right(plain, own, judge, f"where torch's default type is {dtype}")
        for dtype, own in taken.items()
    )


def _with_default(dtype: torch.dtype, call: Callable[[], Tensors]) -> Tensors | None:
    """The results of a call; None where it raises, which nobody takes for a result."""
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        return call()
    except CallError:
        return None
    finally:
        torch.set_default_dtype(before)


def _refused(case: CallRuleCase) -> list[Outcome]:
    try:
        case.adapter.called_with(case.inputs.copied(), {UNKNOWN: None})
    except NotImplementedError as reason:
        raise Unreachable(str(reason)) from None
    except Exception as error:  # noqa: BLE001 # however it refuses
        return [
            Outcome("call", Status.PASS, f"call: {UNKNOWN}=None is refused: {type(error).__name__}")
        ]
    return [
        Outcome(
            "call",
            Status.FAIL,
            f"call: takes {UNKNOWN}=None without a word; name the keywords, or raise TypeError for"
            " others",
        )
    ]


def _on_a_stream(case: CallRuleCase) -> list[Outcome]:
    if case.adapter.device != "cuda":
        raise Unreachable("streams are those of CUDA")
    there = case.inputs.on("cuda")
    plain = case.run(there)
    stream = torch.cuda.Stream()

    def late(x: TensorCall) -> TensorCall:
        # the function that keeps a stream busy has no public name
        sleep = torch.cuda._sleep  # pyright: ignore[reportPrivateUsage] # noqa: SLF001
        sleep(CYCLES)
        return x.copied()

    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        found = case.run(there, copied=late)
    torch.cuda.synchronize()
    return same_or_right(
        {n: x.cpu() for n, x in plain.items()},
        {n: x.cpu() for n, x in found.items()},
        case.judged,
        "on a stream of its own",
    )


def _each(case: CallRuleCase) -> list[Outcome]:
    configurations = case.adapter.configurations()
    if not configurations:
        raise Unreachable("it lets no configuration of a tuner be chosen")
    plain = case.run()
    each = {name: replace(case, adapter=adapter) for name, adapter in configurations.items()}
    return first_wrong_or_last(
        same_or_right(plain, one.run(), one.judged, f"under {name}") for name, one in each.items()
    )


_UNWRITTEN = (
    "elements of outputs and work space that are read, or returned, without having been written"
    " (A3, V4, B12)"
)
_OF_ENTRIES = "offsets of batch entries, work space shared among them"
RULES = (
    CallRule("unwritten", "NaN in all freshly allocated memory changes nothing", _UNWRITTEN,
             _unwritten, size="tails", memory=True, channel="buffers"),
    CallRule("unwritten-backward", "the same of all gradients", _UNWRITTEN,
             partial(_unwritten, backward=True), size="tails", spare=False, memory=True,
             channel="buffers", backward=True),
    CallRule("batch-alone", "the entries of a batch, one by one", _OF_ENTRIES, _alone, packed=False,
             sequences=True, costly=True),
    CallRule("batch-reversed", "the entries of a batch in another order", _OF_ENTRIES, _reversed,
             packed=False, sequences=True, costly=True),
    CallRule("crowd", f"more than {PLACES} sequences times heads in a pack, nearly all empty",
             "limits of launch grids (L4)", _crowded, sequences=True, costly=True, once=True),
    CallRule("unknown-keyword", f"a keyword that no kernel has ({UNKNOWN}) raises",
             "keywords swallowed: offsets, states and flags lost (V10, V11)", _refused,
             inside=True),
    CallRule("other-stream", "inputs that are made late, on a stream that is not the default one",
             "launches on the default stream", _on_a_stream, costly=True, inside=True),
    CallRule("tuned", "every configuration of the tuner, forced one by one",
             "configurations that race, or run out of a resource (L6, WU8, B19, B22)", _each,
             size="tails", costly=True, profile="acceptance"),
)  # fmt: skip
_TYPED = "buffers and constants in torch's default type"
OF_TYPES = (
    CallRule("default-dtype", "a call returns the same whatever torch's default type is", _TYPED,
             _under_default_dtype, spare=False, inside=True, once=True),
    CallRule("default-dtype-backward", "the same of all gradients", _TYPED,
             partial(_under_default_dtype, backward=True), spare=False, inside=True, once=True,
             backward=True),
)  # fmt: skip
