"""Changing one thing at a time of a failing case finds the axis of a fault, and of a fault that
strikes at random the axis along which equal calls differ.
"""

from __future__ import annotations

from typing import Final

import pytest

from benchmarks.ported_faults import port
from kdaverify.adapters.registry import find
from kdaverify.diagnosis.contrast import experiments
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.faults.planted.broken_calls import Outputs, right
from kdaverify.faults.planted.broken_calls import port as planted
from kdaverify.operator import CallOperator, operator_named
from kdaverify.problems import Problem
from oracles.inputs import Inputs

PLAIN: Final = Problem.model_validate({
    "B": 1, "T": 66, "H": 1, "HV": 2, "K": 4, "V": 8, "dtype": "bf16", "seed": 0,
    "gate": "mild", "key": "random", "beta": "uniform", "state": "random", "value": "normal",
})  # fmt: skip
PACK: Final = {"lengths": (17, 5), "T": 31}
LONG: Final = 600.0
"""Seconds: all levels are run, however slow the machine is."""
FOUND: Final = (
    ("H7", {}, "only where T % 64 != 0 (fails at T = 66, 65, 1, 32, ..., passes at T = 64, 128)"),
    ("V9", PACK, "only where a pack with tokens past the last offset"),
    ("DESIGN-g", PACK, "only where a pack with a sequence that starts at no multiple of 64 tokens"),
    ("O1", {"V": 4}, "only where K == V (fails at K = 4, V = 4, passes at "),
    ("S11", {"state": "absent"}, "only where state = absent"),
    ("H23", {}, "only where HV > 1"),
)
"""A fault, a case of it, and what has to be found."""


@pytest.mark.rotates
@pytest.mark.parametrize(("fault", "fields", "said"), FOUND, ids=[fault for fault, *_ in FOUND])
def test_the_axis_of_a_fault_is_found(fault: str, fields: dict[str, object], said: str) -> None:
    case = PropertyCase("forward", PLAIN.replace(**fields))
    (found,) = experiments([case], port(fault), seconds=LONG)
    assert said in str(found) and not found.varies


OTHERS: Final = (
    ("CONV-C9", "fp32-shorter-than-history", "only where a sequence is shorter than W - 1 (fails"),
    ("CONV-C23", "fp32-starts", "only where a pack of several sequences (fail at a pack of 17"),
    ("NORM-N1", "fp32-sigmoid", "only where activation = sigmoid (fails at"),
    ("attention-M1", "fp32-tile-less-one", "only where causal = True (fail at"),
    ("attention-M10", "fp32-two-tokens", "only where several requests (fail at"),
    ("attention-C8", "fp32-one-empty", "only where a part without keys (fail at"),
)
"""The same of other operators, whose axes are read off the fields of their problems."""


@pytest.mark.rotates
@pytest.mark.parametrize(("fault", "named", "said"), OTHERS, ids=[fault for fault, *_ in OTHERS])
def test_so_it_is_of_any_operator(fault: str, named: str, said: str) -> None:
    broken = find(f"fault:{fault}")
    operator = operator_named(broken.op)
    assert isinstance(operator, CallOperator)
    case = PropertyCase("panel", dict(operator.panel(broken, "smoke"))[named])
    (found,) = experiments([case], broken, seconds=LONG)
    assert said in str(found)


def test_of_a_race_it_is_found_where_equal_calls_differ() -> None:
    case = PropertyCase("forward", PLAIN.replace(gate="spread"))
    (found,) = experiments([case], port("H24"), seconds=LONG)
    assert (
        found.varies
        and str(found).startswith("results differ between runs of the same inputs (")
        and "agree at gate = zero" in str(found)
    )
    rules = [one.rule for one in found.contrasts]
    assert not any(word in rule for rule in rules for word in ("gate", "key", "beta"))


def _positive(x: Inputs) -> bool:
    return float(x.v.double().sum()) > 0


def test_what_passes_with_one_seed_alone_is_no_rule() -> None:
    """Wrong with several heads, and with one where its values have another sum."""
    case = next(
        problem
        for problem in (PLAIN.replace(HV=3, seed=seed) for seed in range(20))
        if _positive(problem.replace(HV=1).inputs())
        and not _positive(problem.replace(HV=1, seed=problem.seed + 1).inputs())
    )

    def o_doubled(x: Inputs, *, at_times: bool) -> Outputs:
        o, final = right(x)
        wrong = x.HV > 1 or (at_times and not _positive(x))
        return 2 * o if wrong else o, final

    said = {
        at_times: str(*experiments([PropertyCase("forward", case)], broken, seconds=LONG))
        for at_times in (False, True)
        for broken in [planted(lambda x, _, at=at_times: o_doubled(x, at_times=at))]
    }
    assert "only where HV > 1" in said[False] and "HV > 1" not in said[True]


def test_a_case_that_passes_gets_no_sentence() -> None:
    assert experiments([PropertyCase("forward", PLAIN)], port(), seconds=LONG) == []


def test_a_second_fault_is_looked_for_where_the_first_does_not_explain_a_failure() -> None:
    cases = [PropertyCase("forward", PLAIN), PropertyCase("forward", PLAIN.replace(T=64, V=4))]
    found = [str(one) for one in experiments(cases, port("H7", "O1"), seconds=LONG)]
    assert len(found) == 2 and "T % 64 != 0" in found[0] and "K == V" in found[1]


def test_a_decode_entry_point_is_looked_at_beside_a_forward_whose_rule_holds_there() -> None:
    forward = PropertyCase("forward", PLAIN)
    decode = PropertyCase("resume", PLAIN.replace(T=65), {"cut": 60, "way": "chunk-step"})
    found = experiments([forward, decode], port("DESIGN-c", "H16"), seconds=LONG)
    assert [one.call for one in found] == ["forward", "resume"]
    assert "final_state" in found[1].outputs and "K != V" in str(found[1])
