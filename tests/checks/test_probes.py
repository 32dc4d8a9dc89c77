"""Every probe separates its faults from a right kernel by ten times,
and lets every conforming kernel of every contract pass.
"""

from __future__ import annotations

import pytest
import torch

from benchmarks.false_alarms import backwards
from benchmarks.probes import APART, rows, tested, worst
from kdaverify.adapters import find
from kdaverify.budgets.contract import Contract, contract_from_name
from kdaverify.budgets.formats import Format
from kdaverify.budgets.parts import Outputs
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.problems import ProblemError
from kdaverify.problems.probes import PROBES
from oracles.inputs import Inputs
from tests.checks.probe_faults import (
    FAULTS,
    Kernel,
    Planted,
    carried_in,
    checkpoint_in_bf16,
    conforming,
    dead_zone,
    residual_in_bf16,
    rounded_decay,
)

JUDGED = ("chunk64-bf16", "chunk64-fp32", "recurrent-fp32")
# Those of shipped implementations that eager does not have, and one more with a state in 16 bits.
CONFORMING = {
    "chunk64-tf32": "fp32",
    "chunk64-bf16-tf32solve": "bf16",
    "chunk64-fp16-fp32solve": "fp16",
    "chunk32-bf16-anchored-tf32solve": "bf16",
    "chunk16-bf16-fp32factors": "bf16",
    "chunk16-bf16-bf16factors-bf16carry": "bf16",
    "chunk16-fp16-bf16carry": "fp16",
    "recurrent-fp32": "bf16",
}
SHORT = [name for name, probe in PROBES.items() if probe.profile == "smoke"]
CARRIED = ("long-memory", "kept-state", "nine-bit-state")


def dtype_of(preset: str, probe: str) -> str | None:
    dtype = contract_from_name(preset).operands.name
    return dtype if dtype in PROBES[probe].dtypes else None


def test_every_probe_has_a_planted_fault() -> None:
    assert FAULTS.keys() == PROBES.keys()


@pytest.mark.rotates
@pytest.mark.parametrize("preset", JUDGED)
@pytest.mark.parametrize("name", SHORT)
def test_every_fault_is_ten_times_over_what_is_allowed_and_over_the_right_kernel(
    name: str, preset: str
) -> None:
    dtype = dtype_of(preset, name)
    if dtype is None:
        return
    for fault, right, wrong, of in rows(PROBES[name], preset, dtype):
        assert right <= 1
        assert wrong >= APART * max(1, right), (
            f"{fault.name}: {wrong:.3g}x tolerance by {of}, the right kernel {right:.3g}"
        )


@pytest.mark.rotates
@pytest.mark.parametrize("preset", CONFORMING)
def test_a_conforming_kernel_that_sums_in_an_order_of_its_own_passes_every_probe(
    preset: str,
) -> None:
    for name in {*SHORT} - {"long-memory"}:
        if CONFORMING[preset] in PROBES[name].dtypes:
            found = tested(
                PROBES[name],
                preset,
                CONFORMING[preset],
                lambda x, contract, io: conforming(x, contract, io, dot=backwards),
            )
            assert {outcome.status for outcome in found} == {Status.PASS}, (
                name,
                *(outcome.message for outcome in found),
            )


@pytest.mark.parametrize("name", CARRIED)
def test_a_state_in_bf16_passes_where_it_is_declared_and_only_there(name: str) -> None:
    in_bf16 = carried_in(contract_from_name("chunk16-bf16-bf16carry").carry)
    assert worst(tested(PROBES[name], "chunk16-bf16-bf16carry", "bf16", in_bf16))[0] <= 1
    assert worst(tested(PROBES[name], "chunk16-bf16", "bf16", in_bf16))[0] >= APART


def ratios(found: list[Outcome], output: str) -> dict[str, float]:
    (comparison,) = (outcome.comparison for outcome in found if outcome.output == output)
    assert comparison is not None
    return comparison.ratios


@pytest.mark.parametrize(
    ("measure", "name", "fault"),
    [
        ("memory", "long-memory", rounded_decay),
        ("bias", "long-memory", rounded_decay),
        ("update", "converged-residual", residual_in_bf16),
        ("spacing", "nine-bit-state", checkpoint_in_bf16),
        ("relation", "powers-of-two", dead_zone),
    ],
)
def test_every_measure_reports_a_fault_by_itself(measure: str, name: str, fault: Kernel) -> None:
    right, wrong = (
        ratios(tested(PROBES[name], "chunk64-bf16", "bf16", run), "final_state")
        for run in (conforming, fault)
    )
    assert right[measure] <= 1
    assert wrong[measure] >= APART


def test_a_relation_scales_values_and_state_and_places_what_the_scaled_run_missed() -> None:
    calls: list[Inputs] = []

    def doubled(x: Inputs, contract: Contract, io: Format) -> Outputs:
        """Twice the right outputs, of small values."""
        calls.append(x)
        o, final = conforming(x, contract, io)
        return (2 * o, 2 * final) if float(x.v.abs().max()) < 1e-3 else (o, final)

    found = tested(PROBES["powers-of-two"], "chunk64-bf16", "bf16", doubled)
    first, second, *_ = calls
    assert torch.equal(second.v, 2.0**-20 * first.v)
    assert torch.equal(second.state, 2.0**-20 * first.state)
    (state,) = (x.comparison for x in found if x.output == "final_state")
    assert state is not None and state.worst is not None
    assert state.statistic == "relation" and state.ratio >= APART
    assert state.found == 2 * state.exact
    assert f"S_0 {float(second.state[state.worst.index]):.3g}," in state.worst.made_by


def test_a_rejection_says_what_the_probe_exposes_and_where_it_shows() -> None:
    (state,) = (
        x
        for x in tested(PROBES["nine-bit-state"], "chunk64-bf16", "bf16", checkpoint_in_bf16)
        if x.output == "final_state"
    )
    assert state.comparison is not None
    assert (state.status, state.comparison.statistic) == (Status.FAIL, "spacing")
    assert (
        "probe nine-bit-state exposes: checkpoint of the state in bf16 (H11, S12)" in state.message
    )
    assert "key channel" in state.message


def test_a_probe_is_tested_by_its_name() -> None:
    problem = PROBES["overwrite"].problem
    assert {x.status for x in check("probes", find("eager"), problem, {"probe": "overwrite"})} == {
        Status.PASS
    }
    with pytest.raises(
        ProblemError, match="no probe named 'overwritten'; known ones are long-memory"
    ):
        check("probes", find("eager"), problem, {"probe": "overwritten"})


@pytest.mark.parametrize("name", SHORT)
def test_zeros_pass_no_probe(name: str) -> None:
    def zeros(x: Inputs, contract: Contract, io: Format) -> Outputs:
        return torch.zeros_like(x.v), torch.zeros_like(x.state)

    dtype = "bf16" if "bf16" in PROBES[name].dtypes else "fp32"
    assert Status.FAIL in {
        outcome.status for outcome in tested(PROBES[name], f"chunk64-{dtype}", dtype, zeros)
    }


def test_outputs_that_differ_from_call_to_call_are_no_broken_relation() -> None:
    calls = iter(range(100))

    def restless(x: Inputs, contract: Contract, io: Format) -> Outputs:
        return torch.full_like(x.v, next(calls)), x.state.double()

    kernel = Planted(contract_from_name("chunk64-bf16"), "bf16", restless)
    (outcome,) = check(
        "probes", kernel, PROBES["powers-of-two"].problem, {"probe": "powers-of-two"}
    )
    assert outcome.status is Status.SKIP


def test_an_interpreted_kernel_is_not_tested_for_thousands_of_tokens() -> None:
    class Slow(Planted):
        def environment(self) -> dict[str, str]:
            return {**super().environment(), "mode": "interpreted"}

    kernel = Slow(contract_from_name("chunk64-bf16"), "bf16", conforming)
    (outcome,) = check(
        "probes", kernel, PROBES["long-memory-4096"].problem, {"probe": "long-memory-4096"}
    )
    assert (outcome.status, "a shorter probe" in outcome.message) == (Status.SKIP, True)


def test_a_probe_that_cuts_its_run_is_not_tested_of_a_kernel_without_a_final_state() -> None:
    class OutputOnly(Planted):
        def exposes(self, problem: object) -> tuple[str, ...]:
            return ("o",)

    kernel = OutputOnly(contract_from_name("chunk64-bf16"), "bf16", conforming)
    (outcome,) = check(
        "probes", kernel, PROBES["nine-bit-state"].problem, {"probe": "nine-bit-state"}
    )
    assert outcome.status is Status.SKIP
