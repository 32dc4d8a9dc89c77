"""A kernel in a worker process looks to the harness as it looks in its own:
inputs, outputs, edits, views, errors.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from kdaverify.adapters import Adapter, AdapterError, Output
from kdaverify.adapters.isolation import Isolated, encoded, isolated
from kdaverify.checks.conventions import conventions
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.problems import Problem
from tests.adapters.isolation.planted import PLANTED
from tests.checks.test_execute import BAD

ODD = ("strided", "half a view", "bits of a view", "a list")


def judged(adapter: Adapter, problem: Problem) -> list[Outcome]:
    return check("forward", adapter, problem, {})


@pytest.mark.parametrize("name", [*BAD, *ODD])
def test_every_verdict_is_that_of_the_harness_s_own_process(
    planted: Isolated, problem: Problem, name: str
) -> None:
    # As text: some figures are NaN.
    assert str(judged(planted.variants()[name], problem)) == str(
        judged(PLANTED.variants()[name], problem)
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "bf16"},
        {"dtype": "fp16", "state": "absent"},
        {"T": 8, "lengths": (0, 0, 8)},
        {"T": 8, "lengths": (3, 0, 4)},
        {"B": 3, "scale": 0.5},
    ],
)
def test_formats_packs_and_strides_travel_unchanged(
    planted: Isolated, problem: Problem, changes: dict[str, Any]
) -> None:
    tested = problem.replace(**changes)
    found = judged(planted.variants()["strided"], tested)
    assert found == judged(PLANTED.variants()["strided"], tested)
    assert {outcome.status for outcome in found} == {Status.PASS}


def test_inputs_lie_as_a_clone_of_them_would(planted: Isolated, problem: Problem) -> None:
    inputs = problem.inputs()
    dense, gaps = (
        inputs.q.transpose(1, 2).contiguous().transpose(1, 2),
        torch.stack((inputs.v, inputs.v), -1)[..., 0],
    )
    given = type(inputs)(dense, inputs.k, gaps, inputs.g, inputs.beta, None, inputs.initial_state)
    apart, own = (
        adapter.variants()["seen"].forward(call)
        for adapter, call in ((planted, given), (PLANTED, given.copied()))
    )
    assert torch.equal(apart.o, own.o)


def test_a_view_of_an_input_is_that_view_of_the_caller_s(
    planted: Isolated, problem: Problem
) -> None:
    for name in ("half a view", "bits of a view"):
        inputs = problem.inputs()
        o = planted.variants()[name].forward(inputs).o
        wanted = inputs.v[:, :, 1:] if name == "half a view" else inputs.v.view(torch.int32)
        assert (o.data_ptr(), o.dtype, o.shape, o.stride()) == (
            wanted.data_ptr(),
            wanted.dtype,
            wanted.shape,
            wanted.stride(),
        )


def test_outputs_outlive_the_next_call(planted: Isolated, problem: Problem) -> None:
    echo, first, second = (
        planted.variants()["echo"],
        problem.inputs(),
        problem.replace(seed=2).inputs(),
    )
    kept = echo.forward(first)
    echo.forward(second)
    assert torch.equal(kept.o, first.v)
    assert not torch.equal(first.v, second.v)


def test_arenas_grow_and_shrink_with_the_calls(planted: Isolated, problem: Problem) -> None:
    echo = planted.variants()["echo"]
    for T in (3, 90000, 0, 180000):
        inputs = problem.replace(T=T, state="absent", lengths=(T,)).inputs()
        assert torch.equal(echo.forward(inputs).o, inputs.v)


def test_an_answer_that_is_no_output_is_the_same_type(planted: Isolated, problem: Problem) -> None:
    output = planted.variants()["a list"].forward(problem.inputs())
    assert isinstance(output, Output)
    assert [type(value).__qualname__ for value in (output.o, output.final_state)] == [
        "list",
        "dict",
    ]
    assert type(planted.variants()["no output"].forward(problem.inputs())).__qualname__ == "tuple"


def test_what_the_adapter_refuses_is_no_fault_of_the_kernel(
    planted: Isolated, problem: Problem
) -> None:
    for adapter in (planted, PLANTED):
        with pytest.raises(AdapterError, match="no compiler for 4 channels"):
            judged(adapter.variants()["refuses"], problem)


def test_whatever_an_adapter_declares_is_declared(planted: Isolated) -> None:
    for name in Adapter.__annotations__.keys() - {"isolated"}:
        assert getattr(planted, name) is getattr(PLANTED, name)
    methods = {
        name
        for name, value in vars(Adapter).items()
        if callable(value) and not name.startswith("_")
    }
    # A function is called with keywords of its own in its own process, by `inside`, and so are
    # parameters of its gate differentiated. What a kernel returned there is a copy here, whatever
    # converted it.
    assert methods - {"called_with", "parameter_gradients", "returned"} <= vars(Isolated).keys()


def test_proof_environment_and_cases_are_the_twin_s(planted: Isolated, problem: Problem) -> None:
    for case in ("one", "two"):
        planted.begin(case)
        planted.forward(problem.inputs())
        assert re.fullmatch(
            rf"first.<locals>.call \(planted.py:\d+\) after {case}", planted.proof()
        )
    assert planted.environment() == PLANTED.environment()


def test_other_conventions_are_those_of_the_twin(planted: Isolated) -> None:
    found, own = (
        conventions(adapter.variants()["another convention"]) for adapter in (planted, PLANTED)
    )
    assert found == own
    assert found.status is Status.CONVENTION


def test_a_variant_with_surroundings_of_its_own_has_a_process_of_its_own(
    planted: Isolated, problem: Problem
) -> None:
    inputs, other = problem.inputs(), planted.variants()["elsewhere"]
    assert torch.equal(other.forward(inputs).o, inputs.v * 2)
    assert isinstance(other, Isolated)
    assert other.process() != planted.process()


def test_threads_are_the_harness_s(planted: Isolated, problem: Problem) -> None:
    torch.set_num_threads(2)
    try:
        assert int(planted.variants()["seen"].forward(problem.inputs()).final_state) == 2
    finally:
        torch.set_num_threads(1)
    assert int(planted.variants()["seen"].forward(problem.inputs()).final_state) == 1


def test_a_proxy_that_hid_edits_would_be_caught(
    planted: Isolated, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated, "_show_edits", _nothing)
    own, apart = (
        judged(adapter.variants()["edits its input"], problem) for adapter in (PLANTED, planted)
    )
    assert [outcome.status for outcome in own] == [Status.MUTATED_INPUT]
    assert {outcome.status for outcome in apart} == {Status.PASS}


def test_a_proxy_that_hid_views_would_be_caught(
    planted: Isolated, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated, "unpack", _copied)
    own, apart = (
        judged(adapter.variants()["returns a view of its input"], problem)
        for adapter in (PLANTED, planted)
    )
    assert [outcome.status for outcome in own] == [Status.ALIASED_OUTPUT]
    assert Status.ALIASED_OUTPUT not in {outcome.status for outcome in apart}


def _nothing(*_: Any) -> None:
    pass


def _copied(*words: Any) -> Output:
    output = encoded.unpack(*words)
    return Output(output.o.clone(), output.final_state.clone())
