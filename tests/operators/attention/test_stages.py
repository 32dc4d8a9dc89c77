"""Faults of attention lie in stages that the operators name; the diagnosis names that stage first,
also of a bug that nobody knows, and none of a right kernel.
"""

from __future__ import annotations

from typing import Final

import pytest
from torch import Tensor

from benchmarks.attention_cases import accepted, failing_case, is_of_attention, stage_of
from kdaverify.checks.properties import check
from kdaverify.diagnosis.diagnose import diagnose
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.diagnosis.session import findings
from kdaverify.faults.attention.adapter import adapted
from kdaverify.faults.attention.kernel import AttentionKernel, patched
from kdaverify.faults.attention.scores import scaled
from kdaverify.faults.catalogue import FAULTS
from kdaverify.operators.attention.problem import AttentionProblem
from kdaverify.operators.attention.tolerances_operator import STAGES
from kdaverify.operators.attention.traced import traced
from kdaverify.verdicts.judge import Judge, Rejected
from kdaverify.verdicts.verdict import Verdict
from oracles.attention.pipeline import AttentionPipeline

OF_ATTENTION: Final = [fault for fault in FAULTS.values() if is_of_attention(fault)]
SAMPLE: Final = {
    "gather": "attention-W4",
    "dequant": "fp8-1",
    "scores": "attention-S2",
    "partial": "attention-K1",
    "combine": "attention-C8",
    "sink": "SINK-base",
    "lse": "attention-C12",
    "delta": "attention-B3",
    "dq": "attention-B2",
    "dkv": "attention-B4",
}
"""A fault a stage; K1 and B3 are no bug that is known in the arithmetic that they are planted
in."""
SMALL: Final = AttentionProblem(B=2, s_q=5, s_k=20, H=4, h_kv=2, d_k=24, d_v=16, causal=True)


def test_every_fault_has_a_stage_and_every_stage_a_fault() -> None:
    assert len(OF_ATTENTION) == 271
    assert {fault.stage for fault in OF_ATTENTION} == {*STAGES} == {*SAMPLE}


@pytest.mark.rotates
@pytest.mark.parametrize("stage", SAMPLE)
def test_the_stage_of_a_fault_is_named(stage: str) -> None:
    """By the diagnosis, and by the outputs alone."""
    found = failing_case(FAULTS[SAMPLE[stage]], ("fp32",))
    assert found is not None
    adapter, case = found
    named = diagnose(adapter, case, seconds=60.0).stage
    assert named is not None and named.stage == stage
    outcomes = check(case.property, adapter, case.problem, case.detail)
    wrong = frozenset(outcome.output for outcome in outcomes if outcome.status.rejects)
    alone = traced(case, adapter, wrong)
    assert alone is not None and alone.stage == stage


def test_no_stage_of_a_right_kernel_is_named() -> None:
    cases = [*accepted(64)]
    said = [stage_of(*case)["said"] for case in cases[:: len(cases) // 8]]
    assert said == [[]] * len(said)


def test_gradients_of_a_wrong_forward_have_its_stage() -> None:
    kernel = AttentionKernel(scaled(1.5))
    adapter = adapted(kernel.attention, "attention", "scale off")
    found = traced(PropertyCase("gradients", SMALL, {"of": "both"}), adapter, frozenset({"dq"}))
    assert found is not None and found.stage == "scores"


def _too_large_a_sum(run: AttentionPipeline, P: Tensor, stored: Tensor) -> Tensor:
    del run, stored
    return 1.25 * P.sum(-1)


def test_a_session_says_which_stage_and_why() -> None:
    kernel = AttentionKernel(patched(row_sum=_too_large_a_sum))
    adapter, rows = adapted(kernel.attention, "attention", "sums off"), list[Verdict]()
    with pytest.raises(Rejected):
        Judge(adapter, rows.append, "forward", published=False)(SMALL)
    (found,) = findings(rows, adapter, seconds=60.0).values()
    said = rows[0].model_copy(update=found).whereabouts()
    assert said.startswith(
        "first wrong stage: partial, by outputs alone: the scores are right, and their sum is not"
    )
