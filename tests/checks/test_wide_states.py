"""States past fp16's range beside inputs of fp16: the panel has them where the contract holds them,
they show what clamps a state, and conforming kernels pass.
"""

from __future__ import annotations

from typing import Final

import pytest

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.registry import find
from kdaverify.checks.calls import questions
from kdaverify.checks.forward import forward
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.faults.planted.catalogue import PLANTED
from kdaverify.faults.planted.magnitudes import OF_STEPS, STATES
from kdaverify.problems import Problem

NAME: Final = "fp16-state-beyond-fp16"
FAULTS: Final = [name for name, fault in PLANTED.items() if fault.trigger in STATES]


def panel(adapter: Adapter) -> dict[str, Problem]:
    return dict(adapter.operator.panel(adapter, "smoke"))


@pytest.mark.parametrize("name", FAULTS)
def test_it_is_rejected_there_and_passes_where_states_are_large(name: str) -> None:
    wrong, right = PLANTED[name].adapter(), PLANTED[name].right()
    problems = panel(wrong)
    assert any(outcome.status.rejects for outcome in forward(wrong, problems[NAME]))
    assert {outcome.status for outcome in forward(right, problems[NAME])} == {Status.PASS}
    assert not any(one.status.rejects for one in forward(wrong, problems["fp16-pure-decay"]))


@pytest.mark.parametrize("name", [x for x, y in PLANTED.items() if y.trigger in OF_STEPS])
def test_the_rule_of_steps_has_such_states_too(name: str) -> None:
    wrong, right = PLANTED[name].adapter(), PLANTED[name].right()
    (one,) = (one for one in questions(wrong, "smoke") if one.rule.name == "step")
    assert any(found.status.rejects for found in check("calls", wrong, one.problem, one.detail))
    passed = check("calls", right, one.problem, one.detail)
    assert {found.status for found in passed} == {Status.PASS}
    assert {found.status for found in forward(wrong, panel(wrong)[NAME])} == {Status.PASS}


def test_the_problem_is_of_kernels_whose_contract_holds_it() -> None:
    assert NAME in panel(find("eager-recurrent"))
    assert NAME not in panel(find("eager"))


def test_states_are_past_fp16_and_outputs_are_not() -> None:
    problem = panel(find("eager-recurrent"))[NAME]
    call = problem.inputs()
    assert call.initial_state is not None and call.initial_state.abs().max() > 65504
    found = find("eager-recurrent").forward(call)
    assert found.final_state.abs().max() > 65504 and found.o.isfinite().all()
