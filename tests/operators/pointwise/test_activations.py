"""The operations beside the kernel: every planted fault is caught
in the result that has it, every conforming way passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, seed, settings
from torch import Tensor

from kdaverify.adapters.eager import EAGER
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.operators.pointwise.call import (
    ActivationArguments,
    ActivationCall,
    torch_activations,
)
from kdaverify.operators.pointwise.cases import NAMES, activation_panel, activation_problems
from kdaverify.operators.pointwise.check import activated, activations
from kdaverify.operators.pointwise.problem import ActivationProblem, Op
from kdaverify.problems import ProblemError, settings_for
from oracles.pointwise.operations import OPERATIONS
from tests.operators.pointwise.activated import ACCELERATOR, KEEPER, Activated, changed
from tests.operators.pointwise.activation_faults import FAULTS

DTYPES = ("fp32", "bf16", "fp16")
PAIRS: list[Any] = [(op, dtype) for op in OPERATIONS for dtype in DTYPES]
CONFORMING = (EAGER, ACCELERATOR, KEEPER)
DRAWN = 25


def problem(op: Op = "gate_softplus", **changes: Any) -> ActivationProblem:
    return activation_panel("usual", op, "fp32").replace(**changes)


def panel_of(adapter: Any, op: Any) -> list[Outcome]:
    return [
        found
        for dtype in DTYPES
        for name in NAMES
        for found in activations(adapter, activation_panel(name, op, dtype))
    ]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught_by_the_panel_in_the_result_that_has_it(fault: str) -> None:
    adapter, op, output = FAULTS[fault]
    rejected = [found for found in panel_of(adapter, op) if found.status.rejects]
    assert {found.output for found in rejected} == {output}
    assert all(found.message.startswith(op) for found in rejected)


@pytest.mark.parametrize("conforming", CONFORMING, ids=lambda adapter: adapter.name)
@pytest.mark.parametrize("op", OPERATIONS)
def test_conforming_ways_pass_the_panel(conforming: Any, op: Any) -> None:
    assert {found.status for found in panel_of(conforming, op)} == {Status.PASS}


@pytest.mark.parametrize(("op", "dtype"), PAIRS)
def test_conforming_ways_pass_what_is_drawn(op: Op, dtype: str) -> None:
    alarms: list[str] = []

    @seed(7)
    @settings(settings_for("smoke"), max_examples=DRAWN)
    @given(tested=activation_problems(op, dtype))
    def judge(tested: ActivationProblem) -> None:
        for conforming in CONFORMING:
            alarms.extend(
                f"{conforming.name} {tested.to_json()}: {o.message}"
                for o in activations(conforming, tested)
                if o.status.rejects
            )

    judge()
    assert not alarms


def only(adapter: Any, tested: ActivationProblem) -> list[tuple[str, Status]]:
    return [
        (found.output, found.status)
        for found in activations(adapter, tested)
        if found.status is not Status.PASS
    ]


def test_every_result_and_gradient_is_judged() -> None:
    found = {
        op: [outcome.output for outcome in activations(EAGER, problem(cast("Op", op)))]
        for op in OPERATIONS
    }
    gate = ["g", "dz", "dA_log", "ddt_bias"]
    assert found == {
        "gate_softplus": gate,
        "gate_bounded": gate,
        "beta_sigmoid": ["beta", "dlogits"],
        "l2norm": ["y", "dx"],
    }
    assert [outcome.output for outcome in activations(EAGER, problem(bias="absent"))] == gate[:3]


def test_eager_exposes_all_in_every_format_but_the_oracle_s_own() -> None:
    assert set(activated(EAGER)) == set(PAIRS)
    assert "fp64" in EAGER.dtypes


def broken(**changes: Any) -> Activated:
    return Activated(
        "broken", gate_softplus=replace(torch_activations()["gate_softplus"], **changes)
    )


def test_a_kernel_without_backward_says_so_and_its_forward_is_judged() -> None:
    found = activations(broken(backward=None), problem())
    assert [(outcome.output, outcome.status) for outcome in found] == [
        ("g", Status.PASS),
        ("gradients", Status.SKIP),
    ]
    assert found[1].message == "forward only: gate_softplus has no backward"


def test_what_is_not_exposed_or_not_taken_is_skipped() -> None:
    assert (
        activations(broken(parameters=("fp32",)), problem(parameters="bf16"))[0].message
        == "gate_softplus takes parameters in fp32, not in bf16"
    )
    without = Activated("without")
    without.activations = lambda dtype: {}  # pyright: ignore[reportAttributeAccessIssue]
    assert only(without, problem()) == [("call", Status.SKIP)] and activated(without) == ()


def giving(change: Callable[[Tensor], Any]) -> Any:
    return lambda x: change(x.tensors["z"])  # pyright: ignore[reportUnknownLambdaType]


def raising(x: ActivationArguments) -> Any:
    raise RuntimeError("no such tile")


def editing(x: ActivationArguments) -> Any:
    g = torch_activations()["gate_softplus"].forward(x)
    x.tensors["z"].zero_()
    return g


@pytest.mark.parametrize(
    ("forward", "output", "status"),
    [
        (raising, "call", Status.ERROR),
        (editing, "call", Status.MUTATED_INPUT),
        (giving(lambda _: None), "g", Status.MISSING),
        (giving(lambda _: [0.0]), "g", Status.TYPE),
        (giving(lambda z: z[:, 1:]), "g", Status.SHAPE),
        (giving(lambda z: z.bfloat16()), "g", Status.DTYPE),
        (giving(lambda z: z * float("nan")), "g", Status.NONFINITE),
    ],
)
def test_whatever_an_operation_does_wrong_becomes_a_status(
    forward: Any, output: str, status: Status
) -> None:
    assert only(broken(forward=forward), problem()) == [(output, status)]


def test_gradients_without_names_are_refused() -> None:
    assert only(broken(backward=giving(lambda z: (z, z))), problem()) == [
        ("gradients", Status.TYPE)
    ]


def test_what_is_beyond_fp32_is_no_pass_and_what_is_beside_it_is_judged() -> None:
    tested = problem(rates="extreme", HV=3, seed=4, bias="absent")
    assert (
        float(tested.question().tensors["A_log"].max())
        > 89
        > float(tested.question().tensors["A_log"].min())
    )
    found = activations(EAGER, tested)
    assert {outcome.status for outcome in found} == {Status.PASS}
    assert all("elements not judged: a factor or a product" in outcome.message for outcome in found)

    def poisons(x: ActivationArguments) -> Tensor:
        g = torch_activations()["gate_softplus"].forward(x)
        return g + 0 * g.sum(2, keepdim=True)

    assert only(broken(forward=poisons), tested) == [("g", Status.NONFINITE)]
    drawn = (problem(rates="extreme", HV=1, seed=number) for number in range(99))
    alone = next(tested for tested in drawn if float(tested.question().tensors["A_log"]) > 89)
    assert {outcome.status for outcome in activations(EAGER, alone)} == {Status.SKIP}


def test_a_gradient_of_no_loss_is_exactly_zero() -> None:
    def leaks(x: ActivationArguments, right: dict[str, Tensor]) -> dict[str, Tensor]:
        return right | {"dz": right["dz"] + 1e-30}

    found = [
        outcome
        for outcome in activations(changed("gate_softplus", leaks), problem(cotangent="zero"))
        if outcome.status.rejects
    ]
    assert [outcome.output for outcome in found] == ["dz"]
    assert "elements differ from an exact 0" in found[0].message


def test_what_no_number_of_the_format_holds_may_be_infinite_of_the_right_sign_alone() -> None:
    tested = problem(dtype="fp16", cotangent="large", values="uniform")
    assert not only(EAGER, tested)

    def turned(x: ActivationArguments, right: dict[str, Tensor]) -> dict[str, Tensor]:
        return right | {"dz": torch.where(right["dz"].isinf(), -right["dz"], right["dz"])}

    assert only(changed("gate_softplus", turned), tested) == [("dz", Status.NONFINITE)]


def test_a_sum_that_cancels_past_the_format_may_be_infinite_of_either_sign() -> None:
    """Rows of 1e-5 under an eps of 1e-12, normalised into fp16's subnormals:
    what their projection leaves out overflows.
    """
    problem = (
        '{"B":2,"HV":2,"K":20,"T":130,"cotangent":"large","dtype":"fp16","op":"l2norm",'
        '"seed":16963,"setting":1e-12,"values":"tiny"}'
    )
    assert not only(ACCELERATOR, ActivationProblem.from_json(problem))


def test_both_measures_of_a_gate_are_reported() -> None:
    found, *_ = activations(ACCELERATOR, problem(values="edges", T=64))
    assert found.status is Status.PASS
    assert "g is off by 1 of itself at most, the decay exp(g) by" in found.message
    assert "times the tolerance of a kernel that keeps what is small beside 1" in found.message


def test_a_wrong_element_is_reported_with_what_made_it() -> None:
    (wrong,) = (
        found
        for found in activations(FAULTS["slope overflows"][0], problem(values="mixed"))
        if found.status.rejects
    )
    assert wrong.comparison is not None and wrong.comparison.worst is not None
    assert (
        wrong.comparison.worst.where.startswith("batch entry 0, token ")
        and "A_log" in wrong.comparison.worst.made_by
    )
    (wrong,) = (
        found
        for found in activations(FAULTS["terms in bf16"][0], problem())
        if found.status.rejects
    )
    assert "worst at head" in wrong.message and "z in [" in wrong.message


def test_a_property_is_tested_of_its_own_problems_alone() -> None:
    with pytest.raises(
        ProblemError, match="property forward is not tested on gate_softplus, which has activations"
    ):
        check("forward", EAGER, problem(), {})
    assert all(found.status is Status.PASS for found in check("activations", EAGER, problem(), {}))


def kernel(q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any: ...


def test_a_declaration_that_means_nothing_is_refused() -> None:
    import kdaverify as kv

    call = ActivationCall(torch_activations()["l2norm"].forward)
    for wrong, reported in (
        ({"norm": call}, "wanted some of gate_softplus, gate_bounded"),
        ({"l2norm": len}, "wanted kdaverify.ActivationCall"),
    ):
        with pytest.raises(ValueError, match=reported):
            kv.kernel(activations=wrong)(kernel)  # pyright: ignore[reportArgumentType]
    declared = kv.kernel(activations={"l2norm": call}, dtypes=("bf16",))(kernel)
    assert activated(declared) == (("l2norm", "bf16"),)
    assert only(declared, problem("l2norm", dtype="bf16")) == [("gradients", Status.SKIP)]


def test_a_tensor_by_another_name_is_an_error_that_names_those_of_the_call() -> None:
    own = ActivationArguments({"logits": torch.zeros(1, 2, 1)}, setting=1.0)
    assert own["dt_bias"] is None
    with pytest.raises(KeyError, match="no tensor is called 'b' here, only logits"):
        own["b"]
