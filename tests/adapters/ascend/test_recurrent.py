"""Decode steps: recurrent_kda on a private pool where it takes the call, chunk_kda_fwd where it
does not, and which one is said.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kdaverify.adapters import WrongKernelError
from kdaverify.adapters.ascend.recurrent_op import StatePoolError
from kdaverify.adapters.eager import EAGER_RECURRENT
from kdaverify.checks.resume import resume
from kdaverify.checks.status import Status
from tests.adapters.ascend.conftest import Plant, right
from tests.adapters.standins import MakeProblem

STEP: dict[str, Any] = {"B": 3, "T": 1, "H": 1, "HV": 2, "K": 128, "V": 128, "dtype": "bf16"}


@pytest.mark.parametrize("revision", ["mid", "v26_9_1", "main"])
@pytest.mark.parametrize("changes", [{}, {"V": 256}, {"state": "absent"}, {"T": 8}])
def test_a_step_runs_on_a_pool_of_its_own(
    make_problem: MakeProblem, revision: str, changes: dict[str, Any]
) -> None:
    x = make_problem(**{**STEP, **changes}).inputs()
    plain = EAGER_RECURRENT.forward(x)
    for layout, state in (("BSND", "kv"), ("NTD", "vk")):
        adapter, given = right(revision, layout=layout, state=state), x.copied()
        output = adapter.step(given)
        assert torch.equal(output.o, plain.o) and torch.equal(output.final_state, plain.final_state)
        assert torch.equal(given.state, x.state)
        assert (
            "recurrent_kda" in adapter.proof()
            and f"states {state}, two-token self-test fits" in adapter.proof()
        )


@pytest.mark.parametrize(
    ("revision", "changes", "said"),
    [
        (
            "mid",
            {"dtype": "fp16"},
            "(for a step: recurrent_kda takes bf16 only, got torch.float16)",
        ),
        (
            "mid",
            {"K": 64, "V": 64},
            "(for a step: recurrent_kda takes K = 128 and V = 128 or 256, got K = 64, V = 64)",
        ),
        (
            "mid",
            {"T": 9},
            "(for a step: recurrent_kda is called for dense steps of at most 8 tokens",
        ),
        ("early", {}, "(for a step: no recurrent_kda there)"),
    ],
)
def test_what_it_does_not_take_steps_through_the_chunk_operator(
    make_problem: MakeProblem, revision: str, changes: dict[str, Any], said: str
) -> None:
    adapter = right(revision)
    adapter.step(make_problem(**{**STEP, **changes}).inputs())
    assert "chunk_kda_fwd" in adapter.proof() and said in adapter.proof()


def test_a_write_into_another_slot_is_an_error(make_problem: MakeProblem, plant: Plant) -> None:
    with pytest.raises(
        StatePoolError,
        match=r"only the slots of the call written, but slots \[2\] of 3 changed too",
    ):
        plant("mid", pool="next").step(make_problem(**STEP).inputs())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"start": "other", "final": "other"}, "both states in the other order"),
        ({"final": "other"}, "the final state written in the other order"),
        ({"gate": "log2"}, "gates read as log2, one token's"),
        ({"beta": "logit"}, "beta read as a logit"),
        ({"scale": "twice"}, "the scale applied twice"),
        ({"key_heads": "interleaved"}, "value head j reading key head j mod H"),
    ],
)
def test_a_wrong_convention_of_the_step_is_named(
    make_problem: MakeProblem, plant: Plant, changes: dict[str, Any], said: str
) -> None:
    for state in ("kv", "vk"):
        with pytest.raises(WrongKernelError, match=said):
            plant("main", options={"state": state}, **changes).step(make_problem(**STEP).inputs())


def test_a_run_resumes_through_the_step(make_problem: MakeProblem) -> None:
    problem = make_problem(B=1, T=20, H=1, HV=1, K=128, V=128, dtype="bf16")
    for way in ("chunk-step", "step-chunk"):
        found = resume(right("main", state="vk"), problem, cut=7, way=way)
        assert [outcome.status for outcome in found] == [Status.PASS, Status.PASS]
