"""Stages of the backward are judged one by one: conforming ones pass over many problems, and a
planted fault is named by its stage.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from kdaverify.adapters import find
from kdaverify.adapters.stages import StageArguments, StageCall, torch_backward_stages
from kdaverify.budgets.contract import Contract, contract_from_name
from kdaverify.budgets.formats import FORMATS
from kdaverify.checks.location import FEEDS, Feed
from kdaverify.checks.stages import backward_stages
from kdaverify.checks.status import Status
from oracles.backward_stages import BACKWARD_SIGNATURES, run_backward_stages
from oracles.chunk_backward import BACKWARD, BackwardStages
from oracles.stages import Named
from tests.checks import staged
from tests.checks.staged import Change, Fault, Staged, changed, first_wrong
from tests.checks.test_stages import CONFORMING, GATES, problem
from tests.oracles.test_backward_stages import FAULTS, exp_of_the_unmasked_upper_triangle


class StagedBackward(Staged):
    """Eager's stages, the backward's by a table with a fault in it,
    or with what one of them returns changed.
    """

    def __init__(
        self,
        name: str,
        backward: BackwardStages | tuple[str, Change] = BACKWARD,
        fault: Fault = staged.STAGES,
    ) -> None:
        super().__init__(name, fault)
        self._backward = backward

    def stages(self, dtype: str) -> Mapping[str, StageCall]:
        table = self._backward if isinstance(self._backward, BackwardStages) else BACKWARD
        run = functools.partial(run_backward_stages, stages=table)
        calls = {
            **super().stages(dtype),
            **torch_backward_stages(self.contract(dtype), FORMATS[dtype], run),
        }
        if not isinstance(self._backward, BackwardStages):
            name, change = self._backward
            calls[name] = changed(calls[name], change)
        return calls


def as_one_sequence(x: StageArguments, written: dict[str, Tensor]) -> Named:
    """The whole pack taken for one sequence, in this stage alone."""
    stage = torch_backward_stages(find("eager").contract("bf16"), FORMATS["bf16"])["dqkwg"]
    return stage.call(replace(x, inputs=replace(x.inputs, cu_seqlens=None, initial_state=None)))


PLANTED: dict[str, tuple[str, BackwardStages | tuple[str, Change], dict[str, Any]]] = {
    **{
        name: (stage, replace(BACKWARD, **{stage: wrong}), {})
        for name, (stage, wrong, _) in FAULTS.items()
    },
    "exp of the unmasked upper triangle": (
        "intra_bwd",
        replace(BACKWARD, intra_bwd=exp_of_the_unmasked_upper_triangle),
        {"gate": "bound-5"},
    ),
    "cu_seqlens ignored in dqkwg only": ("dqkwg", ("dqkwg", as_one_sequence), {}),
}


@pytest.mark.rotates
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_reported_of_its_stage_alone(name: str) -> None:
    wanted, fault, changes = PLANTED[name]
    found = backward_stages(StagedBackward(name, fault), problem(**{"gate": "slow", **changes}))
    assert {outcome.status for outcome in found} <= {Status.PASS, Status.FAIL, Status.NONFINITE}
    assert {outcome.output.partition(".")[0] for outcome in found if outcome.status.rejects} == {
        wanted
    }
    assert all(outcome.message.startswith("stage ") for outcome in found)


def test_of_a_wrong_gradient_the_forward_s_stages_are_tested_first() -> None:
    wrong = replace(BACKWARD, wy_bwd=FAULTS["R taken as constant"][1])
    tested = problem(gate="slow")
    assert first_wrong(StagedBackward("backward", wrong), tested, backward=True) == "wy_bwd"
    assert first_wrong(StagedBackward("backward", wrong), tested) is None
    both = StagedBackward("both", wrong, ("state", staged.h_transposed))
    assert first_wrong(both, tested, backward=True) == "state"


@pytest.mark.rotates
@pytest.mark.parametrize("dtype", CONFORMING)
@pytest.mark.parametrize("gate", GATES)
def test_conforming_stages_pass(gate: str, dtype: str) -> None:
    for feed in FEEDS if gate == "mixed" else ("exact",):
        found = backward_stages(
            find("eager"), problem(gate=gate, dtype=dtype, **CONFORMING[dtype]), feed=feed
        )
        assert {outcome.status for outcome in found} == {Status.PASS}
        assert len(found) == sum(
            len(signature.writes) for signature in BACKWARD_SIGNATURES.values()
        )


class Fused(StagedBackward):
    """dqkwg and wy_bwd in one, as fused kernels do them."""

    def stages(self, dtype: str) -> Mapping[str, StageCall]:
        calls = super().stages(dtype)

        def fused(x: StageArguments) -> Named:
            written: dict[str, Tensor] = {}
            for name in ("dqkwg", "wy_bwd"):
                written |= calls[name].call(x.beside({**x.tensors, **written}))
            return written

        takes = ("q", "k", "v", "beta", "G", "R", "h", "v_new", "do", "dh", "dv_new")
        gives = ("dq_state", "dk_wy", "dv", "dbeta_wy", "dG_wy", "dAkk")
        return {"wy_dqkg": StageCall(("dqkwg", "wy_bwd"), takes, gives, fused, resets=True)}


def test_fused_stages_are_judged_as_one_and_say_which_tensor_is_off() -> None:
    tested = problem(gate="slow")
    assert first_wrong(Fused("fused"), tested, backward=True) is None
    constant = replace(BACKWARD, wy_bwd=FAULTS["R taken as constant"][1])
    assert first_wrong(Fused("fused", constant), tested, backward=True) == "wy_dqkg (dAkk)"


@pytest.mark.parametrize("feed", FEEDS)
def test_undefined_regions_are_neither_read_nor_judged(feed: Feed) -> None:
    for name in ("dA", "wy_bwd"):
        conforming = StagedBackward("undefined", (name, staged.upper_left_undefined))
        assert {
            outcome.status for outcome in backward_stages(conforming, problem(), feed=feed)
        } == {Status.PASS}


def test_what_cannot_be_judged_is_skipped_with_its_reason() -> None:
    for adapter, tested, reported in (
        ("transformers-chunk", problem(dtype="fp32"), "no stage of the backward is exposed"),
        (
            "eager",
            problem(dtype="fp64"),
            "float64 is the stages' own oracle: kernels are judged up to fp32",
        ),
        ("eager", problem(lengths=(0, 0), T=3), "no token, no stage"),
    ):
        assert [outcome.message for outcome in backward_stages(find(adapter), tested)] == [reported]


def test_the_place_of_a_wrong_element_is_reported() -> None:
    def spoil(x: StageArguments, written: dict[str, Tensor]) -> Named:
        dh = written["dh"].clone()
        dh[0, 2, 1, 3, 4] = 9.0
        return written | {"dh": dh}

    (wrong,) = (
        o
        for o in backward_stages(StagedBackward("spoiled", ("state_bwd", spoil)), problem())
        if o.status.rejects
    )
    assert (
        "batch entry 0, chunk 2, value head 1, key channel 3, column 4 (the gradient of the state"
        " after it)" in wrong.message
    )


class NarrowBackward(StagedBackward):
    """Stages of a backward in bf16 behind a forward in fp32, declared so or not."""

    def __init__(self, declared: str) -> None:
        super().__init__(declared)
        self._declared = contract_from_name(declared)

    def contract(self, dtype: str) -> Contract:
        del dtype
        return self._declared

    def stages(self, dtype: str) -> Mapping[str, StageCall]:
        return torch_backward_stages(contract_from_name("chunk64-bf16"), FORMATS[dtype])


def test_stages_of_a_backward_declared_apart_are_judged_by_what_is_declared_of_it() -> None:
    apart, alone = (
        {outcome.status for outcome in backward_stages(NarrowBackward(name), problem(gate="slow"))}
        for name in ("chunk64-fp32/chunk64-bf16", "chunk64-fp32")
    )
    assert apart == {Status.PASS} and Status.FAIL in alone


def test_a_backward_token_by_token_has_no_stages() -> None:
    adapter = NarrowBackward("chunk64-bf16/recurrent-fp32")
    (only,) = backward_stages(adapter, problem(gate="slow"))
    assert only.status is Status.SKIP and "no chunks" in only.message
