"""Stages are judged one by one: conforming ones pass over many problems,
and a planted fault is named by its stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from torch import Tensor

from kdaverify.adapters import find
from kdaverify.adapters.stages import StageArguments, StageCall
from kdaverify.checks.location import FEEDS, Feed
from kdaverify.checks.stages import stages
from kdaverify.checks.status import Status
from kdaverify.problems import Problem
from kdaverify.problems.regimes.gate import EXTREME
from tests.checks import staged
from tests.checks.staged import Fault, Staged, changed, first_wrong, tables


def problem(**changes: Any) -> Problem:
    plain: dict[str, Any] = {
        "B": 1,
        "T": 71,
        "H": 1,
        "HV": 2,
        "K": 8,
        "V": 8,
        "lengths": (5, 66),
        "dtype": "bf16",
        "seed": 3,
    }
    regimes: dict[str, Any] = {
        "gate": "log-sigmoid",
        "key": "coherent-0.9",
        "beta": "uniform",
        "state": "asymmetric",
        "value": "normal",
    }
    return Problem(**{**plain, **regimes, **changes})


DENSE: dict[str, Any] = {"B": 2, "T": 70, "lengths": None}
FAULTS: dict[str, tuple[str, Fault, dict[str, Any]]] = {
    "cumsum across chunks": ("cumsum", ("cumsum", staged.cumsum_across_chunks), {}),
    "Aqk column offset by pack instead of chunk": (
        "scores",
        ("scores", staged.columns_by_pack),
        {},
    ),
    "exp of the unmasked upper triangle": (
        "scores",
        tables(scores=staged.exp_of_minus_cumsum),
        {"gate": "bound-5"},
    ),
    "truncated Neumann": ("solve", tables(solve=staged.truncated_neumann), {"gate": "slow"}),
    "w without decay": ("wy", tables(wy=staged.without_decay), {}),
    "kg from the padded last row": ("wy", tables(wy=staged.from_the_padded_row), {}),
    "h stored transposed": ("state", ("state", staged.h_transposed), {}),
    "v_new stored after gate scaling": ("state", ("state", staged.v_new_gated), DENSE),
    "state carried in bf16": ("state", tables(state=staged.carried_in_bf16), {"gate": "slow"}),
    "last decay left out": (
        "state",
        tables(state=staged.the_last_decay_left_out),
        {**DENSE, "gate": "mild"},
    ),
    "scale left out": ("output", ("output", staged.unscaled), {}),
    "input overwritten": ("state", ("state", staged.input_overwritten), {}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named_by_its_stage(name: str) -> None:
    wanted, fault, changes = FAULTS[name]
    assert first_wrong(Staged(name, fault), problem(**changes)) == wanted


@pytest.mark.parametrize("name", FAULTS)
def test_on_exact_inputs_only_the_faulty_stage_fails(name: str) -> None:
    wanted, fault, changes = FAULTS[name]
    found = stages(Staged(name, fault), problem(dtype="fp32", **changes))
    assert {outcome.output.partition(".")[0] for outcome in found if outcome.status.rejects} == {
        wanted
    }
    assert all(outcome.message.startswith("stage ") for outcome in found)


GATES = ("log-sigmoid", "slow", *EXTREME)
CONFORMING: dict[str, dict[str, Any]] = {
    "bf16": {},
    "fp16": {"lengths": (0, 30, 1)},
    "fp32": {**DENSE, "key": "identical", "beta": "one"},
}


@pytest.mark.rotates
@pytest.mark.parametrize("dtype", CONFORMING)
@pytest.mark.parametrize("gate", GATES)
def test_conforming_stages_pass(gate: str, dtype: str) -> None:
    for feed in FEEDS if gate == "mixed" else ("exact",):
        found = stages(
            find("eager"), problem(gate=gate, dtype=dtype, **CONFORMING[dtype]), feed=feed
        )
        assert {outcome.status for outcome in found} == {Status.PASS} and len(found) == {
            "exact": 12,
            "own": 15,
        }[feed]


def test_equations_between_the_kernel_s_tensors_are_reported_of_the_stage_that_wrote_it() -> None:
    found = [
        outcome
        for outcome in stages(find("eager"), problem(), feed="own")
        if outcome.comparison is None
    ]
    assert [outcome.output for outcome in found] == [
        "solve.R (I + Akk) = I",
        "state.v_new = u - w h",
        "output.o = scale qg h + Aqk v_new",
    ]
    assert all(outcome.ratio is not None and outcome.ratio < 1 for outcome in found)
    assert found[1].message.startswith("stage state: v_new = u - w h is off by 0.")


def test_nothing_is_wrong_with_a_conforming_implementation() -> None:
    for name in ("eager", "fla_port:module=tests.adapters.fla.torch_port"):
        assert first_wrong(find(name), problem()) is None


@pytest.mark.parametrize("feed", FEEDS)
def test_undefined_regions_are_neither_read_nor_judged(feed: Feed) -> None:
    for name in ("scores", "solve"):
        conforming = Staged("undefined", (name, staged.upper_left_undefined))
        assert {outcome.status for outcome in stages(conforming, problem(), feed=feed)} == {
            Status.PASS
        }


def test_a_stage_that_reads_what_its_predecessor_leaves_undefined_is_found_on_its_own_inputs() -> (
    None
):
    class Unmasked(Staged):
        def stages(self, dtype: str) -> Mapping[str, StageCall]:
            calls = dict(super().stages(dtype))
            calls["scores"] = changed(calls["scores"], staged.upper_left_undefined)

            def reads_all(x: StageArguments, written: dict[str, Tensor]) -> Mapping[str, Tensor]:
                return {"o": written["o"] + 0 * x.tensors["Aqk"].sum(-1, keepdim=True)}

            calls["output"] = changed(calls["output"], reads_all)
            return calls

    assert not any(outcome.status.rejects for outcome in stages(Unmasked("unmasked"), problem()))
    assert first_wrong(Unmasked("unmasked"), problem()) == "output"


class Fused(Staged):
    """Scores, solve and wy in one, as fused kernels do them."""

    def stages(self, dtype: str) -> Mapping[str, StageCall]:
        calls = super().stages(dtype)

        def intra(x: StageArguments) -> Mapping[str, Tensor]:
            written: dict[str, Tensor] = {}
            for name in ("scores", "solve", "wy"):
                taken = {
                    tensor: {**x.tensors, **written}[tensor]
                    for tensor in calls[name].takes_of_earlier
                }
                written |= calls[name].call(x.beside(taken))
            return written

        gives = ("w", "u", "kg", "Aqk", "R")
        return {
            "intra": StageCall(
                ("scores", "solve", "wy"), ("q", "k", "v", "beta", "G"), gives, intra, resets=True
            )
        }


def test_fused_stages_are_judged_as_one_and_say_which_tensor_is_off() -> None:
    assert first_wrong(Fused("fused"), problem(gate="slow")) is None
    assert (
        first_wrong(Fused("fused", tables(solve=staged.truncated_neumann)), problem(gate="slow"))
        == "intra (R)"
    )
    assert first_wrong(Fused("fused", tables(wy=staged.without_decay)), problem()) == "intra (w)"


def broken(kind: str) -> Staged:
    def change(x: StageArguments, written: dict[str, Tensor]) -> Mapping[str, Tensor]:
        if kind == "raises":
            raise RuntimeError("no such tile")
        bad: dict[str, Any] = {
            "lacks": {},
            "shape": {"R": written["R"][:, :-1]},
            "type": {"R": [1.0]},
        }
        return bad[kind]

    return Staged(kind, ("solve", change))


@pytest.mark.parametrize(
    ("kind", "status"),
    [("raises", "ERROR"), ("lacks", "MISSING"), ("shape", "SHAPE"), ("type", "TYPE")],
)
def test_whatever_a_stage_does_wrong_becomes_a_status(kind: str, status: str) -> None:
    (rejected,) = (outcome for outcome in stages(broken(kind), problem()) if outcome.status.rejects)
    assert rejected.status == status and rejected.output.startswith("solve")
    assert first_wrong(broken(kind), problem()) == "solve"


def test_what_cannot_be_judged_is_skipped_with_its_reason() -> None:
    def reasons(adapter: Any, tested: Problem) -> list[str]:
        return [
            outcome.message for outcome in stages(adapter, tested) if outcome.status is Status.SKIP
        ]

    assert reasons(find("eager-recurrent"), problem()) == ["no stage is exposed"]
    assert reasons(find("eager"), problem(dtype="fp64")) == [
        "float64 is the stages' own oracle: kernels are judged up to fp32"
    ]
    assert reasons(find("eager"), problem(lengths=(0, 0), T=3)) == ["no token, no stage"]
    port = find("fla_port:module=tests.adapters.fla.torch_port")
    forward = [call for call in port.stages("bf16").values() if not call.backward]
    assert len(reasons(port, problem(gate="hard-reset"))) == len(forward)


def test_the_place_of_a_wrong_element_is_reported() -> None:
    def spoil(x: StageArguments, written: dict[str, Tensor]) -> Mapping[str, Tensor]:
        h = written["h"].clone()
        h[0, 2, 1, 3, 4] = 9.0
        return written | {"h": h}

    (wrong,) = (
        outcome
        for outcome in stages(Staged("spoiled", ("state", spoil)), problem())
        if outcome.status.rejects
    )
    assert "batch entry 0, chunk 2, value head 1, key channel 3, column 4" in wrong.message
    assert (
        wrong.output == "state.h" and wrong.comparison is not None and wrong.comparison.found == 9.0
    )


def test_gates_summed_in_base_2_are_conforming_where_their_grid_is_another() -> None:
    tested = problem(
        B=1,
        T=15,
        K=24,
        V=4,
        lengths=None,
        dtype="fp16",
        gate="one-token-reset",
        key="random",
        beta="zero",
        value="large",
        seed=50910,
    )
    port = find("fla_port:module=tests.adapters.fla.torch_port")
    assert {outcome.status for outcome in stages(port, tested) if outcome.output == "cumsum.G"} == {
        Status.PASS
    }
