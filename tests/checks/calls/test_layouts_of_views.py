"""Views reach kernels of every layout: one that takes a tensor by its address and shape is found in
each, and right ones pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from kdaverify.adapters import kernel
from kdaverify.adapters.base import Adapter
from kdaverify.checks.calls import questions
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.faults.planted.broken_calls import Outputs, right
from oracles.inputs import Inputs

RULES: Final = ("view-sliced", "view-swapped", "view-joined", "view-sliced-backward")
OF_STATES: Final = ("view-sliced", "view-swapped", "view-sliced-backward")
Change = Callable[[Tensor], Tensor]


def as_it_lies(x: Tensor) -> Tensor:
    return x


def by_address(x: Tensor) -> Tensor:
    """What lies there where a dense tensor of this shape would."""
    return x.as_strided(x.shape, torch.empty(x.shape, device="meta").stride()).nan_to_num(0.0)


def demanded(x: Tensor) -> Tensor:
    assert x.is_contiguous()
    return x


def port(layout: str, of_q: Change, of_state: Change = as_it_lies) -> Adapter:
    """A kernel of a layout, of states [N, HV, V, K], that changes what it is given."""

    def canonical(x: Tensor) -> Tensor:
        return x.transpose(1, 2) if layout == "bhtd" else x.unsqueeze(0)

    @kernel(
        name=f"in-{layout}",
        contract="chunk64-fp32",
        layout=layout,
        state="vk",
        packing="cu_seqlens",
        dtypes=("fp32",),
    )
    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        initial_state: Tensor | None,
        cu_seqlens: Tensor | None,
    ) -> Outputs:
        state = None if initial_state is None else of_state(initial_state).mT
        q, k, v, g, beta = (canonical(x) for x in (of_q(q), k, v, g, beta))
        o, final = right(Inputs(q, k, v, g, beta, scale, state, cu_seqlens))
        return (o.transpose(1, 2) if layout == "bhtd" else o.flatten(0, 1)), final.mT

    return call


def tested(adapter: Adapter, rules: tuple[str, ...]) -> dict[str, list[Outcome]]:
    return {
        one.rule.name: check("calls", adapter, one.problem, one.detail)
        for one in questions(adapter, "smoke")
        if one.rule.name in rules
    }


def rejecting(found: dict[str, list[Outcome]]) -> set[str]:
    return {name for name, said in found.items() if any(outcome.status.rejects for outcome in said)}


@pytest.mark.parametrize("layout", ["bhtd", "thd"])
def test_a_kernel_that_reads_by_address_is_found(layout: str) -> None:
    assert rejecting(tested(port(layout, by_address), RULES)) == {*RULES}


@pytest.mark.parametrize("layout", ["bhtd", "thd"])
def test_a_kernel_that_reads_states_by_address_is_found(layout: str) -> None:
    found = rejecting(tested(port(layout, as_it_lies, by_address), RULES))
    assert found == {*OF_STATES}


@pytest.mark.parametrize("layout", ["bhtd", "thd"])
def test_a_right_kernel_passes_and_is_skipped_nowhere(layout: str) -> None:
    found = tested(port(layout, as_it_lies), RULES)
    assert {*found} == {*RULES}
    assert {outcome.status for said in found.values() for outcome in said} == {Status.PASS}


ORDINARY: Final[dict[str, dict[str, Any]]] = {
    "forward": {},
    "packing": {"arrangement": "reversed"},
    "gradients": {"of": "both"},
}


def test_ordinary_calls_of_every_layout_are_dense() -> None:
    adapter = port("bhtd", demanded, demanded)
    problem = next(one.problem for one in questions(adapter, "smoke") if one.rule.name == "padding")
    for name, detail in ORDINARY.items():
        assert {outcome.status for outcome in check(name, adapter, problem, detail)} == {
            Status.PASS
        }
