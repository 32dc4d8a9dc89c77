"""Wrong derivatives are rejected, tensor by tensor, within a 16-bit contract; right ones pass, and kernels without a backward say so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import kdaverify as kv
from kdaverify.adapters import find
from kdaverify.adapters.base import Output
from kdaverify.adapters.eager import Eager
from kdaverify.budgets.emulate import Emulator
from kdaverify.budgets.formats import FORMATS
from kdaverify.checks.gradients import gradients
from kdaverify.checks.status import Status
from kdaverify.problems import TORCH, Problem
from oracles.chunk_backward import BACKWARD, BackwardStages, chunk_backward
from oracles.gradients import GRADIENTS, Cotangents, Gradients
from oracles.inputs import Inputs
from tests.oracles.test_backward_stages import FAULTS

_PLAIN = Problem(
    B=1, T=80, H=1, HV=2, K=16, V=24, dtype="bf16", gate="log-sigmoid", key="random", beta="uniform", state="random", value="normal", seed=3
)
PROBLEMS = (_PLAIN, _PLAIN.replace(T=80, lengths=(0, 37, 33), gate="slow", key="coherent-0.9"))


class Staged(Eager):
    """The embedded kernel with the backward of its contract, or with a stage of it replaced."""

    def __init__(self, backward: BackwardStages, change: Callable[[Gradients[Tensor]], Gradients[Tensor]] = lambda found: found) -> None:
        super().__init__("staged", {"bf16": "chunk64-bf16"})
        self._backward, self._change = backward, change

    def gradients(self, inputs: Inputs, cotangents: Cotangents) -> Gradients[Any]:
        contract = self.contract("bf16")
        arithmetic = Emulator("staged", contract, FORMATS["bf16"]).arithmetic
        found = self._change(chunk_backward(inputs, cotangents, dtype=torch.float32, arithmetic=arithmetic, backward=self._backward))
        given = {name: getattr(inputs, source) for name, source in GRADIENTS.items()}
        return Gradients(**{name: x.to(given[name].dtype) for name, x in found.named().items()})


def rejected(adapter: kv.Adapter) -> set[str]:
    """The gradients that one of the problems rejects."""
    found = [outcome for problem in PROBLEMS for outcome in gradients(adapter, problem, of="both")]
    assert all(outcome.status in (Status.PASS, Status.FAIL, Status.NONFINITE) for outcome in found)
    return {outcome.output for outcome in found if outcome.status.rejects}


def test_the_backward_of_the_contract_passes() -> None:
    assert rejected(Staged(BACKWARD)) == set()


@pytest.mark.parametrize("name", ["eager", "eager-recurrent"])
@pytest.mark.parametrize("of", ["both", "o", "final_state"])
def test_autograd_passes_in_every_format(name: str, of: str) -> None:
    adapter = find(name)
    for dtype in adapter.dtypes:
        problem = PROBLEMS[1].replace(dtype=dtype, K=8, V=8)
        assert {outcome.status for outcome in gradients(adapter, problem, of=of)} == {Status.PASS}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_rejected_in_a_tensor_that_it_hits(fault: str) -> None:
    stage, wrong, hit = FAULTS[fault]
    told = rejected(Staged(replace(BACKWARD, **{stage: wrong})))
    named = {"d_initial_state" if name == "dS_0" else name for name in hit}
    assert told and told <= named


def _leaking(found: Gradients[Tensor]) -> Gradients[Tensor]:
    dv = found.dv.clone()
    dv[:, -1] += 1e-30  # what lies past the last offset
    return replace(found, dv=dv)


def test_a_gradient_on_padding_is_rejected_however_small() -> None:
    packed = PROBLEMS[1]
    found = {outcome.output: outcome for outcome in gradients(Staged(BACKWARD, _leaking), packed, of="o")}
    assert found["dv"].status is Status.FAIL and "padding row" in found["dv"].message
    assert all(outcome.status is Status.PASS for name, outcome in found.items() if name != "dv")


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_gradient_off_by_a_twentieth_is_rejected(name: str) -> None:
    wrong = Staged(BACKWARD, lambda found: replace(found, **{name: 1.05 * getattr(found, name)}))
    assert rejected(wrong) == {name}


def test_gradients_of_the_wrong_sign_or_of_nothing_are_all_rejected() -> None:
    for factor in (0.0, -1.0):
        wrong = Staged(BACKWARD, lambda found, by=factor: Gradients(**{name: by * x for name, x in found.named().items()}))
        assert rejected(wrong) == {*GRADIENTS}


class Changed(Eager):
    """The embedded kernel with its outputs changed."""

    def __init__(self, change: Callable[[Output], Output]) -> None:
        super().__init__("changed", {"fp32": "chunk64-fp32"})
        self._change = change

    def forward(self, inputs: Inputs) -> Output:
        return self._change(super().forward(inputs))


def test_a_state_that_comes_back_detached_has_wrong_gradients() -> None:
    adapter = Changed(lambda output: replace(output, final_state=output.final_state.detach()))
    problem = PROBLEMS[1].replace(dtype="fp32")
    assert all(outcome.status.rejects for outcome in gradients(adapter, problem, of="final_state") if outcome.output != "dq")
    assert all(outcome.status is Status.PASS for outcome in gradients(adapter, problem, of="o"))


def test_a_kernel_without_a_graph_is_forward_only_and_skipped() -> None:
    adapter = Changed(lambda output: Output(output.o.detach(), output.final_state.detach()))
    (outcome,) = gradients(adapter, PROBLEMS[0].replace(dtype="fp32"), of="both")
    assert (outcome.status, outcome.message) == (Status.SKIP, "forward only: no output carries a gradient graph of torch")


def test_a_kernel_that_leaves_torch_is_forward_only() -> None:
    adapter = Changed(lambda output: Output(torch.from_numpy(output.o.numpy()), output.final_state))
    (outcome,) = gradients(adapter, PROBLEMS[0].replace(dtype="fp32"), of="both")
    assert outcome.status is Status.SKIP and outcome.message.startswith("forward only: it leaves torch")


def test_gradcheck_of_the_embedded_kernel_in_float64() -> None:
    x = PROBLEMS[1].replace(dtype="fp64", K=3, V=2, T=19, lengths=(0, 5, 12), HV=2).inputs()
    names = list(GRADIENTS.values())

    def call(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        output = find("eager").forward(replace(x, **dict(zip(names, tensors, strict=True))))
        return output.o, output.final_state

    # One-sided in g would be needed at 0; these gates lie below it, by more than the step.
    leaves = tuple(getattr(x, name).clone().requires_grad_() for name in names)
    assert TORCH["fp64"] == leaves[0].dtype
    assert torch.autograd.gradcheck(call, leaves, eps=1e-6, atol=1e-7, rtol=1e-6)
