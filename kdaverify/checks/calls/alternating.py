"""A call does not depend on the calls before it, however they differed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome, rejected
from kdaverify.checks.status import Status

HASHED: Final = 31
"""The factor of the usual polynomial hash: plans of attention were kept by that of lengths."""
SAME_SUM: Final = (1, -2, 1)
"""Added to three lengths in a row: of two ends one is a token further on, one a token before."""
SAME_HASH: Final = (1, -HASHED - 1, HASHED)
"""31^2 - 32 * 31 + 31 = 0, and 31 - 31 = 0 of the ends."""


def _alternating(
    case: CallRuleCase, change: Callable[[CallRuleCase], CallRuleCase], *, decode: bool = False
) -> list[Outcome]:
    other = change(case)
    call, call_other = (each.step if decode else each.run for each in (case, other))
    before = {name: tensor.clone() for name, tensor in call().items()}
    between = other.judged(call_other())
    again = call()
    if not rejected(between):
        # what a kernel kept may be of a call before both
        between += [one for one in case.judged(before) if one.status.rejects]
    if rejected(between):
        return between
    said = f"after a call that differs: {other.problem.describe()}"
    skips = [outcome for outcome in between if outcome.status is Status.SKIP]
    return [*skips, *case.repeats(before, again, said)]


def _scale(case: CallRuleCase) -> CallRuleCase:
    other = case.adapter.operator.other_scale(case.problem)
    if other is None:
        raise Unreachable("its operator has no scale")
    return replace(case, problem=case.beside(**other))


def _state(case: CallRuleCase) -> CallRuleCase:
    return replace(
        case, problem=case.beside(state="random" if case.problem.state == "absent" else "absent")
    )


def _batch(case: CallRuleCase) -> CallRuleCase:
    return replace(case, problem=case.beside(B=case.problem.B + 1))


def _packings(case: CallRuleCase) -> list[Outcome]:
    """The outcomes of the first pack that is wrong behind the ones before, or else of all."""
    before = {name: tensor.clone() for name, tensor in case.run().items()}
    found, said = list[Outcome](), ""
    for other in _packs(case):
        here = other.judged(other.run())
        if any(outcome.status.rejects for outcome in here):
            return here
        found += [outcome for outcome in here if outcome.status is Status.SKIP]
        said = f"after calls that differ, at last: {other.problem.describe()}"
    again = case.run()
    # what a kernel kept may be of a call before all
    wrong = [outcome for outcome in case.judged(before) if outcome.status.rejects]
    return wrong or [*found, *case.repeats(before, again, said)]


def _packs(case: CallRuleCase) -> Iterator[CallRuleCase]:
    """Packs of the same size: between the same ends, permuted lengths, then offsets of one sum, or
    of one polynomial hash, with those.
    """
    permuted = case.other_offsets()
    own = {name: getattr(case.problem, name) for name in permuted}
    inner = {name: of_same_ends(lengths) for name, lengths in own.items()}
    if inner != own:
        yield replace(case, problem=case.beside(**inner))
    yield replace(case, problem=case.beside(**permuted))
    for alike in (of_one_sum, of_one_hash):
        twin = {name: alike(lengths) for name, lengths in permuted.items()}
        if twin == permuted:
            continue
        try:
            yield replace(case, problem=case.beside(**twin))
        except Unreachable:
            continue


def _shape(case: CallRuleCase) -> CallRuleCase:
    return replace(case, problem=case.beside(T=case.problem.T + 1))


def _dtype(case: CallRuleCase) -> CallRuleCase:
    others = [dtype for dtype in case.adapter.dtypes if dtype != case.problem.dtype]
    if not others:
        raise Unreachable(f"it takes {case.problem.dtype} alone")
    return replace(case, problem=case.beside(dtype=others[0]))


def _option(case: CallRuleCase) -> CallRuleCase:
    for variant in case.adapter.variants().values():
        if variant.supports(case.problem) is None:
            return replace(case, adapter=variant)
    raise Unreachable("it has no option that such a problem could be tested under")


def _rule(
    name: str,
    differ: str,
    exposes: str,
    change: Callable[[CallRuleCase], CallRuleCase],
    *,
    sequences: bool = True,
    scaled: bool = False,
    decode: bool = False,
) -> CallRule:
    of = " of the decode entry point" if decode else ""
    return CallRule(
        f"alternating-{name}{'-step' if decode else ''}",
        f"calls{of} that differ in {differ}, in turns",
        exposes,
        partial(_alternating, change=change, decode=decode),
        size="one" if decode else "tiny",
        packed=not decode,
        sequences=sequences,
        scaled=scaled,
        decode=decode,
        costly=True,
    )


def of_same_ends(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """The first length and the last, those between in reverse: a plan kept by number, sum, longest,
    first and last was accepted.
    """
    return (*lengths[:1], *lengths[-2:0:-1], *lengths[1:][-1:])


def of_one_sum(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Other lengths whose offsets have the same sum; these where there are none."""
    return _moved(lengths, SAME_SUM)


def of_one_hash(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Other lengths of the same polynomial hash, as are their offsets; these where there are
    none.
    """
    return _moved(lengths, SAME_HASH)


def _moved(lengths: tuple[int, ...], change: tuple[int, ...]) -> tuple[int, ...]:
    size = len(change)
    for sign in (1, -1):
        for n in range(len(lengths) - size + 1):
            part = [x + sign * dx for x, dx in zip(lengths[n:], change, strict=False)]
            if min(part) >= 0:
                return (*lengths[:n], *part, *lengths[n + size :])
    return lengths


RULES = (
    _rule("scale", "the scale", "an executor or a compiled kernel kept by shape alone (B35)",
          _scale, sequences=False, scaled=True),
    _rule("state", "whether there is an initial state",
          "a state left over from the call before (S3)", _state),
    CallRule("alternating-packing",
             "packs that differ in their offsets, in turns: lengths permuted, also between the same"
             " ends, offsets of one sum or polynomial hash",
             "chunk indices, or boundaries of a captured call, kept by shape or by sums of offsets"
             " (W1)",
             _packings, size="tails", sequences=True, offsets=True, costly=True),
    _rule("shape", "the number of tokens", "work space or grids of the call before", _shape),
    _rule("dtype", "the format", "work space or executors of another format", _dtype,
          sequences=False),
    _rule("option", "an option", "an executor kept without its options (B35)", _option,
          sequences=False),
    _rule("scale", "the scale", "the scale of the call that was captured", _scale,
          decode=True),
    _rule("state", "whether there is an initial state",
          "a pool of states kept by shape, which a call without a state continues from", _state,
          decode=True),
    _rule("batch", "the number of sequences", "slots and grids of the call before", _batch,
          decode=True),
)  # fmt: skip
