"""Rules of the decode entry point: a wrong decode kernel beside a right prefill keeps the rule of
equal calls, and conforming ones keep all.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from torch import Tensor

from kdaverify.adapters import kernel
from kdaverify.adapters.base import Adapter
from kdaverify.adapters.eager import EAGER
from kdaverify.adapters.registry import find
from kdaverify.checks.calls import RULES, questions
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.faults.adapter import DELTA, GDN
from kdaverify.faults.conforming_kernels import CONV
from kdaverify.faults.planted.broken_calls import decoding, port, right
from kdaverify.faults.planted.catalogue import PLANTED
from kdaverify.faults.planted.rulebreakers import BROKEN
from kdaverify.faults.planted.steps import padded
from oracles.inputs import Inputs
from tests.checks.ruled import statuses

DECODE: Final = [rule.name for rule in RULES.values() if rule.decode]
BY_RULES: Final = {
    "STEP1": {"step"},
    "STEP2": {"step"},
    "STEP3": {"step-after-more", "after-many-step"},
    "STEP4": {"fed-back-state"},
    "STEP6": {"fed-back-state"},
}


def tested(adapter: Adapter, *rules: str) -> list[Outcome]:
    return [
        outcome
        for one in questions(adapter, "smoke")
        if one.rule.name in rules
        for outcome in check("calls", adapter, one.problem, one.detail)
    ]


@pytest.mark.parametrize("rule", DECODE)
def test_a_wrong_decode_kernel_gives_the_same_bits_in_equal_calls(rule: str) -> None:
    assert {outcome.status for outcome in tested(BROKEN[rule](), "repeated-step")} == {Status.PASS}


@pytest.mark.rotates
@pytest.mark.parametrize(
    "adapter",
    [EAGER, GDN, DELTA, decoding(lambda x, _: right(x)), find(CONV[0])],
    ids=lambda adapter: adapter.name,
)
def test_conforming_kernels_keep_every_rule(adapter: Adapter) -> None:
    found = tested(adapter, *DECODE)
    assert {str(outcome.message) for outcome in found if outcome.status is Status.SKIP} <= {
        "its operator has no scale"
    }
    assert {outcome.status for outcome in found} - {Status.SKIP} == {Status.PASS}


def test_a_step_of_more_value_heads_a_key_head_than_a_program_keeps_is_rejected() -> None:
    wrong = tested(PLANTED["COPY10"].adapter(), "step")
    assert any(outcome.status.rejects for outcome in wrong)


@pytest.mark.parametrize("fault", BY_RULES)
def test_it_is_found_by_the_rules_about_it_alone(fault: str) -> None:
    found = statuses(PLANTED[fault].adapter(), [*DECODE, "repeated-step"])
    rejecting = {rule for rule, said in found.items() if any(one.rejects for one in said)}
    assert rejecting == BY_RULES[fault]


def test_a_padded_batch_whose_other_rows_have_a_slot_of_their_own_passes() -> None:
    """In the states of another convention."""
    step = padded(clear=True)

    def turned(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        initial_state: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        state = None if initial_state is None else initial_state.mT
        o, final = step(Inputs(q, k, v, g, beta, scale, state), kept)
        return o, final.mT.contiguous()

    kept = dict[Any, Any]()
    adapter: Any = kernel(
        turned, name="turned", contract="chunk64-fp32", state="vk", dtypes=("fp32",), step=turned
    )
    assert statuses(adapter, DECODE) == {rule: {Status.PASS} for rule in DECODE}


def test_a_kernel_of_whole_chunks_is_not_called_to_decode() -> None:
    found = tested(port(lambda x, _: right(x), length_multiple=64), *DECODE)
    assert {outcome.status for outcome in found} == {Status.SKIP}
