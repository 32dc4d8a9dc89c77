"""Heads of a call: any number of them may share one, and they may come in any order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from torch import Tensor

from kdaverify.adapters.isolation.arena import same
from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome, first_wrong_of
from oracles.head_order import heads_reversed
from oracles.signature import Role

GROUPS: Final = ((2, 5), (2, 7), (3, 5), (5, 3), (3, 7), (7, 2), (2, 8), (4, 6), (1, 16))
"""Key heads, and value heads of each. Quotients of 5, 6 and 7 are no floating-point numbers: a port
that took the key head of a value head from `linspace`, and cut it to an integer, was accepted. It
errs from two key heads and seven value heads of each on."""
FEWER: Final = ((2, 7), (4, 6))
"""Those of a kernel that is compiled for each: nine took 80 s of a GPU's acceptance."""
TOKENS: Final = 3
"""Of a call: which head is read shows at any token, and calls have up to 24 heads."""
HEADS: Final = frozenset({"H", "HV", "h_kv"})
CHANNELS: Final = "D"
"""Of a convolution, whose weight has them too; those of a layer's rows are no heads."""


def _grouped(case: CallRuleCase) -> list[Outcome]:
    _, _, repeated = named = _named(case)
    return [
        outcome
        for one, wide, shared in _groups(case, named)
        for outcome in _as_repeated(one, wide, repeated, shared)
    ]


def _grouped_back(case: CallRuleCase) -> list[Outcome]:
    """Against exact gradients, which cost little of so few tokens: kernels add those of a group in
    any order.
    """
    few, many, _ = named = _named(case)
    return first_wrong_of(
        (
            f"{few}={getattr(one.problem, few)} {many}={getattr(one.problem, many)}",
            one.judged_back(one.back()),
        )
        for one, _, _ in _groups(case, named)
    )


def _groups(
    case: CallRuleCase, named: tuple[str, str, tuple[str, str]]
) -> Iterator[tuple[CallRuleCase, Any, int]]:
    """Cases with groups that the kernel takes, the problem without any, and heads of a group."""
    few_heads, many_heads, _ = named
    reasons, taken = dict[str, None](), 0
    for few, shared in FEWER if case.adapter.compiled else GROUPS:
        heads = {few_heads: few, many_heads: few * shared}
        try:
            one = replace(case, problem=case.beside(**_short(case.problem), **heads))
        except Unreachable as reason:
            reasons[str(reason)] = None
            continue
        if {name: getattr(one.problem, name) for name in heads} == heads:
            taken += 1
            yield one, one.problem.replace(**{few_heads: few * shared}), shared
    if not taken:
        raise Unreachable("; ".join(reasons) or "it takes no such groups of heads")


def _named(case: CallRuleCase) -> tuple[str, str, tuple[str, str]]:
    """The numbers of heads, of those that others share first, and the inputs of those."""
    names = case.inputs.signature.names()
    if hasattr(case.problem, "HV"):
        return "H", "HV", ("q", "k")
    if hasattr(case.problem, "h_kv") and {"k", "v"} <= {*names}:
        return "h_kv", "H", ("k", "v")
    raise Unreachable("it has no groups of heads")


def _short(problem: Any) -> dict[str, Any]:
    if not hasattr(problem, "HV"):
        return {}
    return {"lengths": (TOKENS,), "T": TOKENS} if problem.packed else {"B": 1, "T": TOKENS}


def _as_repeated(
    case: CallRuleCase, wide: Any, repeated: tuple[str, str], shared: int
) -> list[Outcome]:
    """Of a call with groups what one returns in which no two heads share any."""
    x, found = case.inputs, case.run()
    if case.adapter.supports(wide):
        return case.judged(found)
    # a dataclass each
    other: Any = replace(x, **{n: getattr(x, n).repeat_interleave(shared, 2) for n in repeated})
    said = f"as with {' and '.join(repeated)} repeated for each of {shared} heads"
    return same_or_right(case.run(other), found, case.judged, said)


def _reversed(case: CallRuleCase) -> list[Outcome]:
    """Sums over heads are those of the call before: tables by them have its numbers."""
    given = case.inputs.tensors()
    other = {name: _with_heads_reversed(case, name, x) for name, x in given.items()}
    if all(same(x, other[name]) for name, x in given.items()):
        raise Unreachable("it has neither heads nor channels, or one")
    plain = {name: y.clone() for name, y in case.run().items()}
    # a dataclass each
    there: Any = replace(case.inputs, **other)
    with heads_reversed():
        found = case.run(there)
    back = {name: _with_heads_reversed(case, name, y) for name, y in found.items()}
    return same_or_right(plain, back, case.judged, "with all heads in reverse")


def _with_heads_reversed(case: CallRuleCase, name: str, tensor: Tensor) -> Tensor:
    signature = case.inputs.signature
    weighted = any(CHANNELS in signature[x].axes for x in signature.names(Role.PARAMETER))
    letters = {*HEADS, CHANNELS} if weighted else HEADS
    found = [at for at, letter in enumerate(signature[name].axes) if letter in letters]
    return tensor.flip(found) if found else tensor


RULES: Final = (
    CallRule("grouped-heads",
             "a call whose heads share others in groups returns what one returns in which those are"
             f" repeated, with {len(GROUPS)} numbers of heads and groups",
             "the key head of a value head by a quotient of floating-point numbers", _grouped,
             packed=False, sequences=True, spare=False, costly=True, once=True),
    CallRule("reversed-heads",
             "after a call, one with all heads in reverse, or all channels of a convolution,"
             " returns the outputs in reverse",
             "amplitudes of gates, or whatever is derived from an input, kept by its sums",
             _reversed, packed=False, sequences=True, inside=True, spare=False, costly=True,
             once=True),
)  # fmt: skip
OF_GRADIENTS: Final = (
    CallRule("grouped-heads-backward",
             "gradients of a call whose heads share others in groups are exact, with"
             f" {len(GROUPS)} numbers of heads and groups",
             "sums over the heads of a group that go by halves, an odd count of which is dropped",
             _grouped_back, packed=False, sequences=True, spare=False, backward=True, costly=True,
             once=True),
)  # fmt: skip
