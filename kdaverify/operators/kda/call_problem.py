"""Problems for rules of calls: packs and batches of 1 to 1,000 tokens, tails, groups."""

from __future__ import annotations

from itertools import chain, product
from typing import Any, Final

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.fitting import domain_of, fitted
from kdaverify.checks.calls.rule import REAL, CallRule
from kdaverify.problems import Problem

_PLAIN: Final[dict[str, Any]] = {
    "B": 1,
    "gate": "mild",
    "key": "random",
    "beta": "uniform",
    "state": "random",
    "value": "normal",
}
_PACKS: Final = {
    "tails": (66, 0, 9, 2),
    "tiny": (5, 0, 2),
    "one": (1,),
    "equal": (4, 4, 4, 4),
    "equal-one": (1,),
    "chunks": (300, 0, 80),
    **dict.fromkeys(REAL, (513, 0, 446, 65, 1)),
}
_HEADS: Final = {
    "tails": {"H": 1, "HV": 2},
    "tiny": {"H": 2, "HV": 4},
    "one": {"H": 2, "HV": 4},
    "equal": {"H": 4, "HV": 4},
    "equal-one": {"H": 4, "HV": 4},
    "chunks": {"H": 1, "HV": 1},
    "real": {"H": 8, "HV": 8},
    "long": {"H": 1, "HV": 2},
}
_SPARE: Final = 3
_BATCHES: Final[dict[str, dict[str, Any]]] = {
    "tails": {"B": 2, "T": 70},
    "tiny": {"B": 2, "T": 6},
    "one": {"B": 2, "T": 1},
    "equal": {"B": 4, "T": 4},
    "equal-one": {"B": 4, "T": 1},
    "chunks": {"B": 1, "T": 300},
    **{size: {"B": 1, "T": 1025} for size in REAL},
}
_REGIMES: Final[dict[str, dict[str, str]]] = {"chunks": {"gate": "memory", "beta": "zero"}}
"""Where no token writes, the last state has no rounding but that of the state itself."""
_REAL_WIDTH: Final = 64
_EQUAL: Final = 4
"""Of everything, in calls whose axes no size distinguishes."""
_EQUAL_SIZES: Final = ("equal", "equal-one")
PLAIN_WIDTH: Final = (8, 4)
_MEMORY_WIDTHS: Final = (PLAIN_WIDTH, (5, 3), (100, 65), (128, 128))
"""(K, V) of rules about memory: powers of two; odd; a tail behind full tiles, one element past a
power of two; those of real models.

A kernel that masks tails by 16 bytes reads nothing it must not at (8, 4), the only widths that were
tried for a long time."""
_IN_TURN: Final = (96, 80, 112, 144, 192, 40, 56, 72, 120, 160, 176, 208, 224, 240)
"""Those of models first: a port whose tiles of 48 channels were right for 48, 100 and 128 was
accepted, and wrong for 96."""
_IN_TURN_BACKWARD: Final = 4
_IN_TURN_TOKENS: Final = 20
# From the most that an interface can take to the least.
_NARROWER: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"state": "absent"},
    {"H": 2, "HV": 2},
    {"H": 2, "HV": 2, "state": "absent"},
)


def call_problem(
    adapter: Adapter, rule: CallRule, dtype: str, *, seed: int, turn: int = 0
) -> Problem:
    """The problem that shows most of those the implementation takes.

    Args:
        turn: which of the widths, of a rule that has several.
    """
    lengths, batch = _PACKS[rule.size], _BATCHES[rule.size]
    pack: dict[str, Any] = {"lengths": lengths, "T": sum(lengths) + (_SPARE if rule.spare else 0)}
    # Without packs the longest sequence of the pack would be all that is left of a real size.
    packed = rule.packed and (adapter.domain.packed or rule.size not in REAL)
    shapes = [pack, batch] if packed else [batch, pack]
    plain = {
        **_PLAIN,
        **_heads(rule, adapter),
        **_widths(rule, adapter, turn),
        # "mild" gates are all alike: a permuted tensor of them is read right without its strides.
        **({"gate": "log-sigmoid"} if rule.memory or rule.size in _EQUAL_SIZES else {}),
        **_REGIMES.get(rule.size, {}),
        "dtype": dtype,
        "seed": seed,
    }
    # A kernel without grouped heads takes the many heads of a real size as they are.
    narrowers = [narrower for narrower in _NARROWER if rule.size != "real" or "H" not in narrower]
    wanted = [
        Problem.model_validate({**plain, **shape, **narrower})
        for shape, narrower in product(shapes, narrowers)
    ]
    domain = domain_of(adapter, backward=rule.backward)
    inside = [domain.fit(problem) for problem in wanted]
    tried = chain(inside, (fitted(adapter, problem, backward=rule.backward) for problem in wanted))
    return next((one for one in tried if adapter.supports(one) is None), inside[0])


def _heads(rule: CallRule, adapter: Adapter) -> dict[str, int]:
    """Without groups where a conversion of their order would copy every view: strides of incoming
    gradients ignored by a kernel of tiled heads were accepted.
    """
    heads = _HEADS[rule.size]
    if (rule.memory or rule.channel == "memory") and adapter.conventions.heads == "tiled":
        return {"H": heads["H"], "HV": heads["H"]}
    return heads


def _widths(rule: CallRule, adapter: Adapter, turn: int) -> dict[str, int]:
    if rule.size in REAL:
        nearest = min(
            adapter.widths,
            key=lambda width: (width < _REAL_WIDTH, abs(width - _REAL_WIDTH)),
            default=_REAL_WIDTH,
        )
        return dict.fromkeys(("K", "V"), nearest)
    if rule.size in _EQUAL_SIZES:
        return dict.fromkeys(("K", "V"), next(iter(adapter.widths), _EQUAL))
    known = [(width, width) for width in adapter.widths] or (
        _MEMORY_WIDTHS if rule.memory else [PLAIN_WIDTH]
    )
    K, V = known[turn % len(known) if rule.memory else 0]
    return {"K": K, "V": V}


def widths_in_turn(adapter: Adapter, dtype: str, *, backward: bool) -> list[Problem]:
    """Short problems of widths that the panel lacks, of keys and of values by turns."""
    plain = {**_PLAIN, "gate": "log-sigmoid", "T": _IN_TURN_TOKENS, "H": 1, "HV": 1, "seed": 0}
    widths = _IN_TURN[:_IN_TURN_BACKWARD] if backward else _IN_TURN
    pairs = ((K, PLAIN_WIDTH[1]) for K in widths), ((PLAIN_WIDTH[0], V) for V in widths)
    alike = ((width, width) for width in widths[: None if adapter.domain.square else 1])
    wide = [
        Problem.model_validate({**plain, "dtype": dtype, "K": K, "V": V})
        for K, V in (*alike, *chain(*pairs))
    ]
    inside = {x: adapter.operator.within(adapter, x) for x in wide}
    taken = [y for x, y in inside.items() if (x.K, x.V) == (y.K, y.V)]
    return [*dict.fromkeys(x for x in taken if adapter.supports(x) is None)]
