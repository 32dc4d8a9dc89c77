"""Every wrong convention, planted alone, is named: by the conventions probe, or by the self-test
before anything is scored.
"""

from __future__ import annotations

from typing import Any

import pytest

from kdaverify.checks.conventions import conventions
from kdaverify.checks.execute import CallError, execute
from kdaverify.checks.status import Status
from tests.adapters.ascend.conftest import Plant
from tests.adapters.ascend.test_ascendc import LATER, REVISIONS
from tests.adapters.standins import MakeProblem

PROBED: list[tuple[str, dict[str, Any], str]] = [
    (
        "BSND",
        {"start": "other", "final": "other"},
        "declared state='kv', but behaves as state='vk'",
    ),
    ("NTD", {"start": "other", "final": "other"}, "declared state='kv', but behaves as state='vk'"),
    ("BSND", {"beta": "logit"}, "declared beta='value', but behaves as beta='logit'"),
    ("BNSD", {"layout": "BSND"}, "declared layout='bhtd', but behaves as layout='bthd'"),
    ("BSND", {"layout": "BNSD"}, "declared layout='bthd', but behaves as layout='bhtd'"),
]
PROBED_LATER: list[tuple[str, dict[str, Any], str]] = [
    ("BSND", {"gate": "log2"}, "declared gate='log', but behaves as gate='log2'"),
    ("NTD", {"gate": "decay"}, "declared gate='log', but behaves as gate='decay'"),
]
REPORTED: list[tuple[str, dict[str, Any], str]] = [
    ("BSND", {"start": "other"}, "the initial state read in the other order"),
    ("BNSD", {"final": "other"}, "the final state written in the other order"),
    ("BSND", {"scale": "twice"}, "the scale applied twice"),
    ("NTD", {"scale": "ignored"}, "the scale ignored"),
    ("BSND", {"scale": "fixed"}, "a scale of K^-1/2 whatever scale is passed"),
    ("BSND", {"beta": "doubled"}, "beta doubled"),
    ("BNSD", {"normalizes": True}, "q and k normalised inside"),
    ("BSND", {"key_heads": "interleaved"}, "value head j reading key head j mod H"),
    (
        "BSND",
        {"gate": "summed natural"},
        "gates read as natural log, summed from the start of the chunk",
    ),
]
REPORTED_LATER: list[tuple[str, dict[str, Any], str]] = [
    (
        "BSND",
        {"gate": "summed log2"},
        (
            "gates read as log2, summed from the start of the chunk (handed over in natural log,"
            " one token's)"
        ),
    ),
    ("BNSD", {"o_as_inputs": True}, "o head-major, as the inputs (declared: sequence-major)"),
    ("NTD", {"o_as_inputs": True}, "o head-major, as the inputs (declared: sequence-major)"),
]
REPORTED_EARLY: list[tuple[str, dict[str, Any], str]] = [
    (
        "BSND",
        {"gate": "natural"},
        "gates read as natural log, one token's (handed over in log2, summed",
    ),
    ("BNSD", {"gate": "log2"}, "gates read as log2, one token's"),
    ("BNSD", {"o_as_inputs": False}, "o sequence-major (declared: as the inputs)"),
    ("NTD", {"o_as_inputs": False}, "o sequence-major (declared: as the inputs)"),
]


@pytest.mark.parametrize(
    ("revision", "layout", "changes", "said"),
    [(name, *case) for name in REVISIONS for case in PROBED]
    + [(name, *case) for name in LATER for case in PROBED_LATER],
)
def test_a_wrong_declaration_is_a_convention_error(
    plant: Plant, revision: str, layout: str, changes: dict[str, Any], said: str
) -> None:
    outcome = conventions(plant(revision, options={"layout": layout}, **changes))
    assert (outcome.status, said in outcome.message) == (Status.CONVENTION, True), outcome.message


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("revision", "layout", "changes", "said"),
    [(name, *case) for name in REVISIONS for case in REPORTED]
    + [(name, *case) for name in LATER for case in REPORTED_LATER]
    + [("early", *case) for case in REPORTED_EARLY],
)
def test_what_no_declaration_expresses_is_named_by_the_self_test(
    make_problem: MakeProblem,
    plant: Plant,
    *,
    revision: str,
    layout: str,
    changes: dict[str, Any],
    said: str,
) -> None:
    adapter = plant(revision, options={"layout": layout}, **changes)
    width = REVISIONS[revision]
    problem = make_problem(H=1, HV=1, K=width, V=width, dtype="bf16")
    with pytest.raises(CallError) as caught:
        execute(adapter, problem.inputs(), ("o", "final_state"))
    assert caught.value.status is Status.WRONG_KERNEL
    assert (
        "the two-token self-test contradicts what is declared, but fits a kernel with"
        in caught.value.message
    )
    assert said in caught.value.message
    assert said in conventions(adapter).message


def test_a_kernel_wrong_in_two_ways_is_left_to_the_suites(
    make_problem: MakeProblem, plant: Plant
) -> None:
    adapter = plant("mid", scale="twice", beta="doubled")
    assert conventions(adapter).status is Status.SKIP
    adapter.forward(make_problem(K=16, V=16, dtype="bf16").inputs())
    assert "two-token self-test fits no known reading" in adapter.proof()
