"""FlashMLA's seesaw conforms to its contract; what published walk-throughs make of it does not."""

from __future__ import annotations

import pytest

from kdaverify.adapters import emulated_attention, find
from kdaverify.adapters.operator_kernel import FunctionAdapter
from kdaverify.budgets.formats import FORMATS
from kdaverify.checks.compare import compare
from kdaverify.checks.status import Status
from kdaverify.operators.attention.decode import MLA_DECODE

CONFORMING = ("SEESAW", "SEESAW_SPLITS")
WALK_THROUGHS = ("TURNED_ROUND", "ONE_FACTOR", "NORMALISED", "UNGUARDED", "CLAMPED")


def rejected(adapter: FunctionAdapter, *, most: int) -> list[str]:
    """The problems of the panel on which an output is over its tolerance, until there are so
    many.
    """
    found = list[str]()
    for name, problem in MLA_DECODE.named_problems("bf16", "smoke").items():
        call = problem.inputs()
        reference = MLA_DECODE.reference(call, adapter.contract("bf16"), FORMATS["bf16"])
        outputs = adapter.forward(call)
        wrong = [
            output
            for output in reference.budgets
            if compare(output, outputs[output], reference, call).status is not Status.PASS
        ]
        found += [name] if wrong else []
        if len(found) >= most:
            break
    return found


@pytest.mark.rotates
@pytest.mark.parametrize("name", CONFORMING)
def test_the_seesaw_is_within_the_tolerances_of_its_contract(name: str) -> None:
    assert not rejected(getattr(emulated_attention, name), most=1)


@pytest.mark.parametrize("name", WALK_THROUGHS)
def test_a_walk_through_is_over_them(name: str) -> None:
    assert rejected(getattr(emulated_attention, name), most=1)


def test_they_are_implementations_by_name() -> None:
    assert find("emulated:flashmla_seesaw") is emulated_attention.SEESAW
    assert find("emulated:flashmla_clamped") is emulated_attention.CLAMPED
