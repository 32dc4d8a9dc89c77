"""Which rules a profile tests on an implementation, on which problems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from kdaverify.adapters.base import Adapter, is_slow
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.calls.rules import RULES
from kdaverify.problems.profiles import rank
from oracles.signature import Role

# A race that changes 31 % of the calls is detected with probability 95 % where 8 are compared, one
# of 14 % where 20 are, one of 0.3 % where 1,000 are (`repeated.detectable_share`).
TIMES: Final = {"smoke": 8, "acceptance": 20, "nightly": 1000}
REAL_TIMES: Final = {
    "cpu": {"acceptance": 10, "nightly": 59},
    "accelerator": {"acceptance": 149, "nightly": 1000},
}
"""At real sizes a call takes seconds on a CPU. 59 and 149 calls detect a race in 1 of 20 and 1 of
50 with probability 95 %."""
INTERPRETED: Final = 4
"""A call of an interpreted kernel takes a thousand times as long: it is made less often by this."""
SHORT: Final = ("bf16", "fp16")
WRITES: Final = "beta"
"""The input that only the delta rule has."""
SEEDS: Final = {"smoke": 1, "acceptance": 3, "nightly": 10}
"""Problems of a rule, by format. Chosen for the time that a profile may take: most rules compare a
kernel with itself, where the numbers matter little."""


@dataclass(frozen=True)
class CallRuleTest:
    """A rule, the problem it is tested on, further arguments, and what that problem changes."""

    rule: CallRule
    problem: Any
    detail: dict[str, Any]
    form: str = ""

    @property
    def name(self) -> str:
        form = f"-{self.form}" if self.form else ""
        return f"{self.problem.dtype}-{self.rule.name}-{self.problem.seed}{form}"


def shortened(detail: dict[str, Any]) -> dict[str, Any]:
    """For kernels that run in an interpreter."""
    return {
        **detail,
        **({"times": max(2, detail["times"] // INTERPRETED)} if "times" in detail else {}),
    }


def questions(adapter: Adapter, profile: str) -> Iterator[CallRuleTest]:
    """Those of a profile, by rule and format; none for an implementation without options."""
    if not adapter.dtypes:
        return
    for number, rule in enumerate(RULES.values()):
        if not _has(adapter, rule, profile):
            continue
        if rule.combined:
            yield from _of_combined_sizes(adapter, rule, profile)
            continue
        dtypes = adapter.dtypes
        if rule.costly and (profile == "smoke" or (adapter.compiled and profile != "nightly")):
            dtypes = [dtype for dtype in dtypes if dtype in SHORT or not rule.rounded] or dtypes
            dtypes = (dtypes[number % len(dtypes)],)
        detail = {
            "rule": rule.name,
            **({"times": times(rule, adapter, profile)} if rule.counted else {}),
        }
        for dtype, seed in product(dtypes, range(1 if rule.once else SEEDS[profile])):
            problem = adapter.operator.call_problem(
                adapter, rule, dtype, seed=seed, turn=number + dtypes.index(dtype) + seed
            )
            if problem is None or (rule.scaled and adapter.operator.other_scale(problem) is None):
                continue
            yield CallRuleTest(rule, problem, detail)
            others = {
                **adapter.operator.in_other_forms(rule, problem),
                **adapter.operator.in_other_widths(adapter, rule, problem),
            }
            for form, other in others.items():
                if adapter.supports(other) is None:
                    yield CallRuleTest(rule, other, detail, form)


def _of_combined_sizes(adapter: Adapter, rule: CallRule, profile: str) -> Iterator[CallRuleTest]:
    found = adapter.operator.combined_sizes(adapter, profile, backward=rule.backward)
    for problem in found[:: INTERPRETED if is_slow(adapter) else 1]:
        yield CallRuleTest(rule, problem, {"rule": rule.name})


def _has(adapter: Adapter, rule: CallRule, profile: str) -> bool:
    """Whether a rule is tested: not what the adapter declares not to have or show."""
    if rank(rule.profile) > rank(profile):
        return False
    signature = adapter.operator.signature
    of_sequences, of_states = (bool(signature.names(role)) for role in (Role.OFFSETS, Role.STATE))
    return (
        (adapter.differentiable or not rule.backward)
        and rule.channel not in adapter.barriers
        and (of_sequences or not rule.sequences)
        and (adapter.operator.has_keys or not rule.keys)
        and (adapter.operator.has_sources or not rule.sources)
        and (adapter.operator.holds_nan or not rule.apart)
        and (adapter.operator.has_copies or not rule.copies)
        and (adapter.operator.has_far_keys or not rule.far)
        and (adapter.operator.combines_sizes or not rule.combined)
        and (bool(adapter.operator.long_sums) or not rule.summed)
        and (adapter.operator.has_sizes_in_turn or not rule.in_turn)
        and (adapter.sums_gates or not rule.parameters)
        and (bool(adapter.operator.fed_back) or not rule.fed_back)
        and (adapter.operator.equal_sizes or rule.size != "equal")
        and (adapter.conventions.norm is not None or not rule.normalised)
        and (of_states or not (rule.decode or rule.states))
        and (WRITES in signature.names(Role.TOKEN) or not rule.delta)
    )


def times(rule: CallRule, adapter: Adapter, profile: str) -> int:
    """How many calls a rule about repetition makes."""
    if rule.size != "real":
        return TIMES[profile]
    return REAL_TIMES["cpu" if adapter.device == "cpu" else "accelerator"][profile]
