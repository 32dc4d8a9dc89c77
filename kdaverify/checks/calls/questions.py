"""Which rules a profile asks of an implementation, and on which problems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.fitting import fitted
from kdaverify.checks.calls.rule import REAL, CallRule
from kdaverify.checks.calls.rules import RULES
from kdaverify.problems import Problem
from kdaverify.problems.profiles import PROFILES

TIMES: Final = {"smoke": 8, "acceptance": 20, "nightly": 1000}
REAL_TIMES: Final = {"cpu": {"acceptance": 10, "nightly": 59}, "accelerator": {"acceptance": 149, "nightly": 1000}}
"""At real sizes a call takes seconds on a CPU. 59 and 149 calls detect a race in 1 of 20 and 1 of 50 with probability 95 %."""
INTERPRETED: Final = 4
"""A call of an interpreted kernel takes a thousand times as long: it is made less often by this."""
SEEDS: Final = {"smoke": 1, "acceptance": 3, "nightly": 10}

_PLAIN: Final[dict[str, Any]] = {
    "B": 1, "gate": "mild", "key": "random", "beta": "uniform", "state": "random", "value": "normal",
}  # fmt: skip
_PACKS: Final = {"tails": (66, 0, 9, 2), "tiny": (5, 0, 2), "one": (1,), **dict.fromkeys(REAL, (513, 0, 446, 65, 1))}
_HEADS: Final = {
    "tails": {"H": 1, "HV": 2},
    "tiny": {"H": 2, "HV": 4},
    "one": {"H": 2, "HV": 4},
    "real": {"H": 8, "HV": 8},
    "long": {"H": 1, "HV": 2},
}
_SPARE: Final = 3
_BATCHES: Final[dict[str, dict[str, Any]]] = {
    "tails": {"B": 2, "T": 70}, "tiny": {"B": 2, "T": 6}, "one": {"B": 2, "T": 1}, **{size: {"B": 1, "T": 1025} for size in REAL},
}  # fmt: skip
_REAL_WIDTH: Final = 64
PLAIN_WIDTH: Final = (8, 4)
_MEMORY_WIDTHS: Final = (PLAIN_WIDTH, (5, 3), (100, 65), (128, 128))
"""(K, V) of rules about memory: powers of two; odd; a tail behind full tiles, one element past a power of two; those of real models.

A kernel that masks tails by 16 bytes reads nothing it must not at (8, 4), the only widths that were tried for a long time."""
# From the most that an interface can take to the least.
_NARROWER: Final[tuple[dict[str, Any], ...]] = ({}, {"state": "absent"}, {"H": 2, "HV": 2}, {"H": 2, "HV": 2, "state": "absent"})


@dataclass(frozen=True)
class CallRuleTest:
    """A rule, the problem it is asked on, and what else it is told."""

    rule: CallRule
    problem: Problem
    detail: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.problem.dtype}-{self.rule.name}-{self.problem.seed}"


def shortened(detail: dict[str, Any]) -> dict[str, Any]:
    """For kernels that run in an interpreter."""
    return {**detail, **({"times": max(2, detail["times"] // INTERPRETED)} if "times" in detail else {})}


def questions(adapter: Adapter, profile: str) -> Iterator[CallRuleTest]:
    """Those of a profile, by rule and format."""
    for number, rule in enumerate(RULES.values()):
        if PROFILES.index(rule.profile) > PROFILES.index(profile):  # pyright: ignore[reportArgumentType]
            continue
        # No case is generated for what the adapter declares not to have, or not to show.
        if (rule.backward and not adapter.differentiable) or rule.channel in adapter.barriers:
            continue
        dtypes = adapter.dtypes
        if profile == "smoke" and rule.costly:
            dtypes = (dtypes[number % len(dtypes)],)
        detail = {"rule": rule.name, **({"times": times(rule, adapter, profile)} if rule.counted else {})}
        for dtype, seed in product(dtypes, range(1 if rule.once else SEEDS[profile])):
            yield CallRuleTest(rule, posed(rule, adapter, dtype, seed, turn=number + dtypes.index(dtype) + seed), detail)


def times(rule: CallRule, adapter: Adapter, profile: str) -> int:
    """How many calls a rule about repetition makes."""
    if rule.size != "real":
        return TIMES[profile]
    return REAL_TIMES["cpu" if adapter.device == "cpu" else "accelerator"][profile]


def posed(rule: CallRule, adapter: Adapter, dtype: str, seed: int, *, turn: int = 0) -> Problem:
    """The problem that shows most of those the implementation takes.

    Args:
        turn: which of the widths, of a rule that has several.
    """
    lengths, batch = _PACKS[rule.size], _BATCHES[rule.size]
    pack: dict[str, Any] = {"lengths": lengths, "T": sum(lengths) + (_SPARE if rule.spare else 0)}
    # Without packs the longest sequence of the pack would be all that is left of a real size.
    packed = rule.packed and (adapter.domain.packed or rule.size not in REAL)
    shapes = [pack, batch] if packed else [batch, pack]
    plain = {**_PLAIN, **_HEADS[rule.size], **_widths(rule, adapter, turn), "dtype": dtype, "seed": seed}
    # A kernel without grouped heads takes the many heads of a real size as they are.
    narrowers = [narrower for narrower in _NARROWER if rule.size != "real" or "H" not in narrower]
    wanted = [Problem.model_validate({**plain, **shape, **narrower}) for shape, narrower in product(shapes, narrowers)]
    asked = [fitted(adapter, problem, backward=rule.backward) for problem in wanted]
    return next((problem for problem in asked if adapter.supports(problem) is None), asked[0])


def _widths(rule: CallRule, adapter: Adapter, turn: int) -> dict[str, int]:
    if rule.size in REAL:
        nearest = min(adapter.widths, key=lambda width: (width < _REAL_WIDTH, abs(width - _REAL_WIDTH)), default=_REAL_WIDTH)
        return dict.fromkeys(("K", "V"), nearest)
    known = [(width, width) for width in adapter.widths] or (_MEMORY_WIDTHS if rule.memory else [PLAIN_WIDTH])
    K, V = known[turn % len(known) if rule.memory else 0]
    return {"K": K, "V": V}
