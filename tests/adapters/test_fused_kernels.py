"""Kernels that activate their gates, or normalise q and k, themselves are judged through what they
get: right ones pass, and each that is wrong in one place is rejected.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.convention_matrix import Run, judged
from kdaverify.adapters import Adapter, AdapterError, ConventionError, Conventions, kernel
from kdaverify.adapters.declaration import declared
from kdaverify.adapters.exchange.declared import kda_adapter
from kdaverify.adapters.fitting import fitted
from kdaverify.checks.conventions import conventions
from kdaverify.checks.forward import forward
from kdaverify.checks.gradients import gradients
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.resume import resume
from kdaverify.checks.status import Status
from kdaverify.faults.conforming import conforming
from kdaverify.operators.kda.not_applicable import outside
from kdaverify.problems import Problem
from oracles.gate_activation import FORMS, A_log_of, Form, GateActivation, dt_bias_of
from tests.adapters.fused_kernels import KERNELS, RIGHT, WRONG
from tests.adapters.standins import MakeProblem

PARTS = 24
"""Of a session of smoke, of which a commit runs one for each kernel whose turn it is."""
LONG: dict[str, Any] = {"B": 1, "T": 70, "H": 2, "HV": 4, "K": 8, "V": 8}


def fused(
    q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: Any, A_log: Any, dt_bias: Any
) -> Any:
    del k, g, beta, scale, A_log, dt_bias
    return q, v


def untouched(x: Tensor, A_log: Tensor, dt_bias: Tensor, gate: str) -> Tensor:
    del A_log, dt_bias, gate
    return x


def outcomes(adapter: Adapter, make_problem: MakeProblem) -> list[Outcome]:
    """Of a plain forward on ordinary and deep gates, of gradients and of decoding."""
    dtype = adapter.dtypes[0]
    tested = [make_problem(dtype=dtype, gate=gate, **LONG) for gate in ("log-sigmoid", "bound-100")]
    ordinary, deep = (fitted(adapter, problem) for problem in tested)
    short, brief = ordinary.replace(T=9), deep.replace(T=9)
    return [
        *forward(adapter, ordinary),
        *forward(adapter, deep),
        *gradients(adapter, short, of="both"),
        *gradients(adapter, brief, of="both"),
        *resume(adapter, short, cut=4, way="chunk-step"),
    ]


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_passes(name: str, make_problem: MakeProblem) -> None:
    adapter = getattr(KERNELS, name)
    assert conventions(adapter).status is Status.PASS
    found = outcomes(adapter, make_problem)
    assert {outcome.status for outcome in found} == {Status.PASS}, found


@pytest.mark.parametrize("name", WRONG)
def test_a_kernel_that_is_wrong_in_one_place_is_rejected(
    name: str, make_problem: MakeProblem
) -> None:
    assert any(o.status.rejects for o in outcomes(getattr(KERNELS, name), make_problem))


def test_a_slope_that_is_wrong_at_0_alone_is_rejected(make_problem: MakeProblem) -> None:
    problem = make_problem(dtype="bf16", B=4, T=64, H=1, HV=2, K=32, V=8)
    right, wrong = (
        gradients(getattr(KERNELS, name), problem, of="both") for name in ("narrow", "slope_at_0")
    )
    assert {outcome.status for outcome in right} == {Status.PASS}
    assert [o.output for o in wrong if o.status.rejects] == ["dg"]


@pytest.mark.parametrize("seed", range(49161, 49165))
def test_gates_of_chunks_whose_terms_cancel_pass(make_problem: MakeProblem, seed: int) -> None:
    """A loss of the final state alone under gates of -20: terms of 2^20 leave a dg of 1e-3."""
    problem = make_problem(
        dtype="fp32", B=1, T=5, H=3, HV=9, K=8, V=1, beta="one", gate="bound-20",
        key="coherent-0.99", state="random", gates="head", seed=seed,
    )  # fmt: skip
    found = gradients(KERNELS.head_chunk, problem, of="final_state", exponent=20)
    assert {outcome.status for outcome in found} == {Status.PASS}, found


@pytest.mark.whole_run
@pytest.mark.rotates(PARTS)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(
    "name", ["token_bf16", "bounded_chunk", "head_chunk", "whole", "rows_stored"]
)
def test_a_right_kernel_passes_smoke(name: str, part: int) -> None:
    found = judged(Run(f"tests.adapters.fused_kernels:KERNELS.{name}", "smoke", PARTS, part))
    assert found.rejected == [] and found.statuses["PASS"] > 5


@pytest.mark.parametrize("form", FORMS)
def test_every_problem_has_finite_x(form: Form, make_problem: MakeProblem) -> None:
    activation, adapter = GateActivation(form), conforming(gate=form)
    for gate in ("zero", "hard-reset", "deep-resets", "bound-5", "mixed"):
        problem = fitted(adapter, make_problem(gate=gate))
        assert adapter.supports(problem) is None
        g = problem.inputs().g
        x = adapter.conventions.hand("g", g, problem.inputs())
        assert x.dtype == g.dtype and x.isfinite().all()
        torch.testing.assert_close(activation.back(x.double()), g.double(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("gate", ["zero", "hard-reset"])
def test_gates_that_an_activation_does_not_reach_are_refused_in_a_sentence(
    gate: str, make_problem: MakeProblem
) -> None:
    adapter = conforming(gate="softplus")
    assert "gates g in [-1e+06, -9.31323e-10] alone" in str(
        adapter.supports(make_problem(gate=gate))
    )
    assert [what for what in adapter.domain.leaves_out() if "gates" in what] == [
        "gates below -1e+06",
        "gates above -9.31323e-10",
    ]


def test_a_declared_range_is_kept_within_what_is_reached() -> None:
    assert kernel(gate="softplus", gate_range=(-5.0, 0.0))(fused).domain.gate_range == (
        -5.0,
        -(2.0**-30),
    )
    with pytest.raises(AdapterError, match="gate='bounded' reaches"):
        kernel(gate="bounded", gate_range=(-20.0, -10.0))(fused)


def test_parameters_are_those_of_the_kernels_own_heads(make_problem: MakeProblem) -> None:
    inputs = make_problem(H=2, HV=6).inputs()
    plain, tiled, head = (
        Conventions(
            gate="softplus", gate_parameters="A_log+dt_bias", heads=heads, gates=gates
        ).arguments(make_problem(H=2, HV=6, gates=gates).inputs())
        for heads, gates in (("interleaved", "channel"), ("tiled", "channel"), ("tiled", "head"))
    )
    assert torch.equal(plain["A_log"], A_log_of(6))
    assert torch.equal(plain["dt_bias"], dt_bias_of(6, inputs.K))
    # Of two key heads with three value heads each, tiled head 1 is head 3.
    assert torch.equal(tiled["A_log"], A_log_of(6)[[0, 3, 1, 4, 2, 5]])
    assert torch.equal(tiled["dt_bias"], dt_bias_of(6, inputs.K)[[0, 3, 1, 4, 2, 5]])
    assert torch.equal(head["dt_bias"], dt_bias_of(6, 1)[[0, 3, 1, 4, 2, 5], 0])


def test_what_the_signature_does_not_name_is_0(make_problem: MakeProblem) -> None:
    def bare(q: Tensor, k: Any, v: Any, g: Any, beta: Any, *, scale: Any, A_log: Any) -> Any:
        del k, g, beta, scale
        return A_log, v

    adapter = kernel(gate="softplus")(bare)
    assert adapter.conventions.gate_parameters == "A_log"
    assert adapter.conventions.gate_form == "softplus(-5.0,A_log)"
    inputs = make_problem().inputs()
    x = adapter.conventions.hand("g", inputs.g, inputs)
    g = -A_log_of(3).exp()[:, None] * torch.nn.functional.softplus(x)
    torch.testing.assert_close(g, inputs.g, rtol=1e-5, atol=0)


def test_the_bound_is_passed_where_it_is_named(make_problem: MakeProblem) -> None:
    seen = list[Any]()

    def bounded(q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: Any, lower_bound: Any) -> Any:
        del k, g, beta, scale
        seen.append(lower_bound)
        return q, v

    kernel(gate="bounded", lower_bound=-2.5)(bounded).forward(make_problem().inputs())
    assert seen == [-2.5]


def test_a_kernel_declared_in_words_gets_its_parameters(make_problem: MakeProblem) -> None:
    words = {"name": "elsewhere", "gate": "softplus", "gate_parameters": "A_log+dt_bias"}
    seen = list[dict[str, Any]]()

    def call(arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
        seen.append(arguments)
        return arguments["v"], arguments["initial_state"]

    adapter = kda_adapter(declared({**words, "gate_format": "inputs", "dtypes": "bf16"}), call)
    adapter.forward(make_problem(dtype="bf16").inputs())
    assert torch.equal(seen[0]["A_log"], A_log_of(3)) and seen[0]["dt_bias"].shape == (3, 8)
    assert seen[0]["g"].dtype == torch.bfloat16 and "lower_bound" not in seen[0]


def test_contradictions_are_refused() -> None:
    with pytest.raises(AdapterError, match="declare gate='softplus' or gate='bounded'"):
        kernel(gate="log")(fused)
    with pytest.raises(ConventionError, match="activates a gate, but gates='none'"):
        Conventions(gate="softplus", gates="none")
    with pytest.raises(ConventionError, match="wanted a negative number, got 1"):
        Conventions(gate="bounded", lower_bound=1.0)
    with pytest.raises(ConventionError, match="which qk='l2norm' normalises again"):
        Conventions(qk="l2norm", scale="folded")
    with pytest.raises(ConventionError, match="norm_eps: is of qk='l2norm' alone"):
        Conventions(norm_eps=1e-5)
    with pytest.raises(AdapterError, match="is judged in fp32, bf16 and fp16; leave out fp64"):
        conforming(qk="l2norm", dtype="fp64")
    with pytest.raises(ConventionError, match="is of gate='bounded' alone"):
        Conventions(gate="softplus", lower_bound=-3.0)

    def step(q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: Any, A_log: Any) -> Any:
        del k, g, beta, scale, A_log
        return q, v

    with pytest.raises(AdapterError, match="step: its signature names A_log of A_log and dt_bias"):
        kernel(gate="softplus", step=step)(fused)


@pytest.mark.parametrize(
    ("declared", "behaves"), [("softplus", "bounded"), ("bounded", "softplus")]
)
def test_the_other_activation_is_named(declared: str, behaves: str) -> None:
    found = conventions(conforming(gate=behaves, declared={"gate": declared}))
    assert found.status is Status.CONVENTION
    assert f"declared gate={declared!r}, but behaves as gate={behaves!r}" in found.message


def test_a_kernel_that_takes_unit_rows_after_all_is_named() -> None:
    found = conventions(conforming(qk="l2norm", normalise=lambda x: x))
    assert found.status is Status.CONVENTION
    assert "declared qk='l2norm', but behaves as qk='given'" in found.message


@pytest.mark.parametrize("name", ["no_epsilon", "keys_alone", "largest_element"])
def test_a_wrong_normalisation_is_not_taken_for_none(name: str) -> None:
    assert "behaves as qk" not in conventions(getattr(KERNELS, name)).message


def test_a_kernel_that_normalises_undeclared_is_not_taken_for_right(
    make_problem: MakeProblem,
) -> None:
    adapter = conforming(qk="l2norm", declared={"qk": "given"})
    assert any(outcome.status.rejects for outcome in forward(adapter, make_problem(key="tiny")))


def test_gradients_of_parameters_are_reported_as_not_tested_where_none_are_returned() -> None:
    said = "gradients of A_log and dt_bias (sums over all tokens)"
    adapter = conforming(gate="softplus")
    assert said not in outside(adapter)
    adapter.sums_gates = False
    assert said in outside(adapter)
    assert said not in outside(conforming())
    assert said not in outside(conforming(gate="softplus", declared={"gradients": False}))


@pytest.mark.parametrize("gate", FORMS)
def test_a_kernel_that_takes_log_gates_after_all_is_named(gate: str) -> None:
    adapter = conforming(gate=gate, activate=untouched)
    found = conventions(adapter)
    assert found.status is Status.CONVENTION
    assert f"declared gate={gate!r}, but behaves as gate='log'" in found.message


def test_gradients_of_rows_of_one_element_behind_deep_gates_are_certified() -> None:
    # The projection leaves eps of them, and gates of -1e6 nothing: a right port had no decision.
    problem = Problem.model_validate(
        {"B": 1, "T": 17, "H": 1, "HV": 1, "K": 1, "V": 1, "dtype": "bf16", "seed": 56833}
        | {"gate": "mixed", "gate_range": (-1e6, -(2.0**-30)), "key": "coherent-0.9"}
        | {"beta": "uniform", "state": "asymmetric", "value": "normal"}
    )
    adapter = conforming(
        "token", qk="l2norm-stored", gate="softplus", beta="logit", layout="bhtd", dtype="bf16"
    )
    found = gradients(adapter, fitted(adapter, problem), of="both")
    assert {outcome.status for outcome in found} == {Status.PASS}
