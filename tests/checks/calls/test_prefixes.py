"""Calls that begin alike: a cache of requests that goes on from another state than theirs is found
by this rule alone, one that goes on from theirs passes, in any conventions.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch
from torch import Tensor

from kdaverify.adapters import kernel
from kdaverify.adapters.base import Adapter
from kdaverify.adapters.registry import find
from kdaverify.checks.calls.prefixes import RULES
from kdaverify.checks.status import Status
from kdaverify.faults.planted.broken_calls import Outputs, port
from kdaverify.faults.planted.catalogue import PLANTED
from kdaverify.faults.planted.prefixes import continued
from oracles.inputs import Inputs
from tests.checks.ruled import statuses

NAMES: Final = [rule.name for rule in RULES]
NEAR: Final = ("no-grad", "no-grad-chunks", "edited-values-no-grad", "alternating-shape")
BROKEN: Final = {"AUTO15": "same-prefix", "AUTO16": "same-prefix-packed"}


def turned(*, packs: bool, exact: bool) -> Adapter:
    """The cache in axes of its own: heads before tokens, states [N, HV, V, K]."""
    patch, kept = continued(packs=packs, exact=exact), dict[Any, Any]()

    @kernel(
        name="turned",
        contract="chunk64-fp32",
        layout="bhtd",
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
        q, k, v, g, beta = (x.transpose(1, 2) for x in (q, k, v, g, beta))
        state = None if initial_state is None else initial_state.mT
        o, final = patch(Inputs(q, k, v, g, beta, scale, state, cu_seqlens), kept)
        return o.transpose(1, 2), final.mT

    return call


def rejecting(adapter: Adapter) -> set[str]:
    found = statuses(adapter, (*NAMES, *NEAR))
    return {rule for rule, said in found.items() if any(one.rejects for one in said)}


@pytest.mark.parametrize("fault", BROKEN)
def test_it_is_found_by_the_rule_about_it_alone(fault: str) -> None:
    assert rejecting(PLANTED[fault].adapter()) == {BROKEN[fault]}


@pytest.mark.parametrize("packs", [False, True])
def test_so_it_is_in_other_conventions(packs: bool) -> None:
    assert rejecting(turned(packs=packs, exact=False)) == {NAMES[packs]}


@pytest.mark.parametrize("packs", [False, True])
def test_a_cache_that_goes_on_from_the_common_tokens_passes(packs: bool) -> None:
    for right in (turned(packs=packs, exact=True), port(continued(packs=packs, exact=True))):
        assert statuses(right, NAMES) == {rule: {Status.PASS} for rule in NAMES}


def detached(patch: Any) -> Adapter:
    """A kernel of torch without a graph."""

    def call(x: Inputs, kept: dict[Any, Any]) -> Outputs:
        o, final = patch(x, kept)
        return o.detach(), final.detach()

    return port(call)


def test_a_kernel_without_a_graph_is_compared_with_exact_values() -> None:
    assert rejecting(detached(continued(packs=False, exact=False))) == {"same-prefix"}
    right = detached(continued(packs=False, exact=True))
    assert statuses(right, NAMES) == {rule: {Status.PASS} for rule in NAMES}


@pytest.mark.parametrize("name", ["eager", "eager-recurrent"])
def test_right_kernels_pass(name: str) -> None:
    torch.set_num_threads(1)
    assert statuses(find(name), NAMES) == {rule: {Status.PASS} for rule in NAMES}


def test_a_right_kernel_without_packs_is_tested_on_sequences() -> None:
    found = statuses(find("torch-short-conv"), NAMES)
    assert found == {"same-prefix": {Status.PASS}, "same-prefix-packed": {Status.SKIP}}
