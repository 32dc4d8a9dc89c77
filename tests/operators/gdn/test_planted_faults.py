"""Gated DeltaNet and DeltaNet: right ports pass the fixed problems of smoke, where each fault is
rejected for the tensor it spoils.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kdaverify.adapters import AdapterError
from kdaverify.checks.conventions import conventions
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.property_table import PROPERTIES
from kdaverify.checks.status import Status
from kdaverify.operators.kda.axes import AXES
from tests.operators.gdn import faulty, kernels

RIGHT = (
    "right_token",
    "right_chunk",
    "right_bf16",
    "right_scalar",
    "right_tiled",
    "right_delta",
    "right_delta_chunk",
)
OUTPUTS, KEYS = {"o", "final_state"}, {"dk", "dbeta", "dg"}
# fault -> the property that rejects it, and the tensors that it may name first
EXPECTED: dict[str, tuple[str, set[str]]] = {
    "zero_difference_dropped": ("panel", OUTPUTS),
    "last_gate_of_another_row": ("panel", OUTPUTS),
    "factored_decay": ("panel", OUTPUTS),
    "gates_of_the_chunk_before": ("panel", OUTPUTS),
    "gates_ahead": ("panel", OUTPUTS),
    "decay_along_values": ("panel", OUTPUTS),
    "decay_in_bf16": ("panel", OUTPUTS),
    "no_scale": ("panel", {"o"}),
    "gate_of_the_first_head": ("panel", OUTPUTS),
    "tiled_undeclared": ("panel", OUTPUTS),
    "decay_after_the_write": ("panel", OUTPUTS),
    "last_decay_missing": ("panel", OUTPUTS),
    "no_gradient_of_the_states_decay": ("gradients", {"dg"}),
    "state_gradient_not_decayed": (
        "gradients",
        {"dq", "dk", "dv", "dg", "dbeta", "d_initial_state"},
    ),
    "no_gradient_through_the_inverse": ("gradients", KEYS),
    "group_sum_missing": ("gradients", {"dq", "dk"}),
    "gate_gradient_of_one_channel": ("gradients", {"dg"}),
    "key_part_of_dbeta_missing": ("gradients", {"dbeta"}),
}
NAMED = {
    "no_scale": "the kernel does not multiply q k^T by scale",
    "tiled_undeclared": "declared heads='interleaved', but behaves as heads='tiled'",
}
"""What the conventions say of those that are no more than a wrong declaration."""


def case_tested(kernel: Any, name: str) -> Iterator[list[Outcome]]:
    """What a property finds on each fixed problem of smoke."""
    gradients = name == "gradients"
    for _, problem in AXES["named_backward" if gradients else "named"](kernel, "smoke"):
        yield PROPERTIES[name].check(kernel, problem, **({"of": "both"} if gradients else {}))


@pytest.mark.rotates(12)
@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("tested", ["panel", "gradients"])
def test_a_right_port_passes(name: str, tested: str) -> None:
    kernel = getattr(kernels, name)
    assert conventions(kernel).status is Status.PASS
    found = [outcome for outcomes in case_tested(kernel, tested) for outcome in outcomes]
    assert [str(outcome) for outcome in found if outcome.status is not Status.PASS] == []
    assert ("dg" in {outcome.output for outcome in found}) == (
        tested == "gradients" and "delta" not in name
    )


@pytest.mark.rotates
@pytest.mark.parametrize("name", EXPECTED)
def test_a_fault_is_rejected_for_the_tensor_that_it_spoils(name: str) -> None:
    tested, tensors = EXPECTED[name]
    rejected = (
        [x for x in outcomes if x.status.rejects]
        for outcomes in case_tested(getattr(faulty, name), tested)
    )
    first = next(filter(None, rejected), [])
    assert first and {outcome.output for outcome in first} & tensors


def test_a_contract_of_one_gate_is_refused_where_every_channel_has_its_own() -> None:
    with pytest.raises(
        AdapterError,
        match=(
            "contract: decay 'scalar' is of kernels whose channels share a gate, but"
            " gates='channel'"
        ),
    ):
        kernels.port(kernels.Chunked(), "port", gates="channel", contract="gdn64")


@pytest.mark.parametrize("name", NAMED)
def test_what_is_wrong_with_every_call_is_named(name: str) -> None:
    found = conventions(getattr(faulty, name))
    assert found.status is Status.CONVENTION and NAMED[name] in found.message
