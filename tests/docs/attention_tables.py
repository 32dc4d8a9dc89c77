"""Tables of the reference about problems of attention, as the code has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, get_args

from kdaverify.operator import operator_named
from kdaverify.operators.attention.lists import PATTERNS
from kdaverify.operators.attention.merge_problem import Parts
from kdaverify.operators.attention.problem import SCALES
from kdaverify.operators.attention.regimes import REGIMES, VALUES
from kdaverify.operators.attention.sinks import Sinks
from kdaverify.operators.cotangents import HEADS, LATER, Loss

Rows = Iterable[Iterable[object]]
OPERATORS: Final = ("attention", "mla_decode", "sparse_attention", "merge_state")
AXES: Final = (
    "B", "T", "s_q", "s_k", "H", "h_kv", "H / h_kv", "d_k", "d_v", "page", "pages", "topk",
)  # fmt: skip
_SINKS: Final = {
    "level": "about the weight of all keys together",
    "normal": "normal numbers",
    "low": "30 below that level",
    "faint": "10 below it",
    "high": "8 above it",
    "far": "80 above it",
    "absent": "-inf in every second head",
    "mixed": "level, -inf, high, low, far, and 1,000 on either side, head by head",
}
_PARTS: Final = {
    "normal": "LSE of both parts normal, standard deviation 3",
    "equal": "the same LSE",
    "far": "80 apart",
    "apart": "100 to 10,000 apart",
    "high": "both near 1,000",
    "low": "both near -1,000",
    "lowest": "both near -64,000",
    "one-empty": "no keys in one part of two rows in three",
    "empty": "likewise, and in neither part of the third",
    "first-once": "no keys in the first part of one row",
    "second-once": "the same of the second part",
    "near": "9e-8 to 9e-4 apart",
    "large-values": "normal; o near the end of the range of fp16, in others 2^100",
    "zero-rows": "normal; rows of o are exactly 0 or -0 in one part or both",
    "outweighed": "10 to 24 apart, of one sign in a head; the smaller part's o is 2^9 times larger",
    "zeros": "exactly 0 or -0 in one part or both, beside -inf in two rows of five",
}

_LOSSES: Final = {
    "uneven": "do and dlse fall from the first to the last head, and from the first token to the"
    f" others, by 2^{HEADS['bf16']} and 2^{LATER['bf16']}, in fp16 2^{HEADS['fp16']} and"
    f" 2^{LATER['fp16']}; do of every fourth token is 0",
}


def regimes() -> Rows:
    """What problems hold: axis, value, meaning."""
    named = ((_SINKS, Sinks), (_PARTS, Parts), (_LOSSES, Loss))
    if any({*meanings} != {*get_args(values)} for meanings, values in named):
        raise ValueError("sinks, parts, losses: a value without a meaning")
    about: Mapping[str, Mapping[str, str]] = {
        "logits": {name: regime.about for name, regime in REGIMES.items()},
        "value": {name: of for name, (of, _) in VALUES.items()},
        "scale": {name: f"{times:.3g} d_k^-1/2" for name, times in SCALES.items()},
        "sink": _SINKS,
        "lists": {name: of for name, (of, _) in PATTERNS.items()},
        "parts": _PARTS,
        "loss": _LOSSES,
    }
    for axis, values in about.items():
        yield from ((f"`{axis}`", f"`{name}`", of) for name, of in values.items())


def sizes() -> Rows:
    """Of every axis, the largest in the panel of smoke and of acceptance, by operator."""
    found = {op: [_largest(op, profile) for profile in ("smoke", "acceptance")] for op in OPERATORS}
    for axis in AXES:
        yield axis, *(_both(*(largest.get(axis) for largest in found[op])) for op in OPERATORS)


def _both(smoke: int | None, acceptance: int | None) -> str:
    if smoke is None:
        return ""
    return f"{smoke:,}" if smoke == acceptance else f"{smoke:,}; {acceptance:,}"


def _largest(op: str, profile: str) -> dict[str, int]:
    operator: Any = operator_named(op)
    problems = operator.named_problems("bf16", profile).values()
    measured = [dict(_sizes(problem)) for problem in problems]
    names = dict.fromkeys(name for one in measured for name in one)
    return {name: max(one.get(name, 0) for one in measured) for name in names}


def _sizes(problem: Any) -> Iterator[tuple[str, int]]:
    yield from ((axis, getattr(problem, axis)) for axis in AXES if hasattr(problem, axis))
    if not hasattr(problem, "h_kv"):
        return
    yield "H / h_kv", problem.H // problem.h_kv
    if problem.op == "attention":
        yield "B", len(problem.pairs)
    if problem.op == "mla_decode":
        yield from (("s_k", max(problem.k_lengths)), ("pages", len(problem.inputs().cache)))


TABLES: Final[Mapping[str, tuple[tuple[str, ...], Callable[[], Rows]]]] = {
    "attention-regimes": (("field", "value", "is"), regimes),
    "attention-sizes": (("axis", *(f"`{op}`" for op in OPERATORS)), sizes),
}
"""Headings and rows, by the mark of a table."""
