"""The stage functions of FLA and of its Ascend kernels,
interpreted in worker processes, conform.
"""

from __future__ import annotations

from typing import Any

import pytest

from kdaverify.adapters.fla.adapter import LACKING
from kdaverify.adapters.fla.functions import BACKWARD_FUNCTIONS, FUNCTIONS
from kdaverify.checks.borderline import is_near
from kdaverify.checks.location import FEEDS
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.stages import backward_stages, stages
from kdaverify.checks.status import Status
from tests.adapters.fla.conftest import CHUNKS, House
from tests.adapters.standins import MakeProblem
from tests.checks.staged import first_wrong

PACK: dict[str, Any] = {"B": 1, "H": 1, "HV": 2, "lengths": (5, 0, 64), "T": 70}
SOME = {"gate": "slow", "key": "coherent-0.9"}


def is_conforming(outcome: Outcome) -> bool:
    """Within tolerance, or a borderline failure, which a session re-tests: the sums of the
    interpreter and of the ensemble are those of this processor.
    """
    found = outcome.comparison
    return outcome.status is Status.PASS or (
        found is not None and is_near(found.status, found.statistic, found.ratio)
    )


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "bf16") for name in CHUNKS), ("triton_npu", "fp32")]
)
def test_every_stage_function_is_conforming_on_exact_inputs_and_on_its_own(
    house: House, make_problem: MakeProblem, name: str, dtype: str
) -> None:
    for feed in FEEDS:
        found = stages(house(name), make_problem(dtype=dtype, **PACK, **SOME), feed=feed)
        assert all(is_conforming(outcome) for outcome in found)
        assert list(dict.fromkeys(outcome.output.partition(".")[0] for outcome in found)) == list(
            FUNCTIONS
        )


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "bf16") for name in CHUNKS), ("triton_npu", "fp32")]
)
def test_every_stage_function_of_the_backward_is_conforming_too(
    house: House, make_problem: MakeProblem, name: str, dtype: str
) -> None:
    for feed in FEEDS:
        found = backward_stages(house(name), make_problem(dtype=dtype, **PACK, **SOME), feed=feed)
        assert all(is_conforming(outcome) for outcome in found)
        lacking = LACKING["npu" if name == "triton_npu" else "cuda"]
        exposed = [function for function in BACKWARD_FUNCTIONS if function not in lacking]
        assert list(dict.fromkeys(outcome.output.partition(".")[0] for outcome in found)) == exposed


def test_anchored_diagonal_blocks_are_conforming_too(
    house: House, make_problem: MakeProblem
) -> None:
    safe = house("triton_npu").configured({"safe_gate": "yes"})
    assert first_wrong(safe, make_problem(dtype="bf16", **PACK), backward=True) is None


def test_hard_resets_are_not_tested_of_functions_that_take_cumulative_gates(
    house: House, make_problem: MakeProblem
) -> None:
    for tested in (stages, backward_stages):
        assert {
            outcome.status
            for outcome in tested(house("fla"), make_problem(dtype="bf16", gate="hard-reset"))
        } == {Status.SKIP}
