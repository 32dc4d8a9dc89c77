"""Whole layers: every planted fault breaks the law that is about it, conforming layers keep all."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import kdaverify as kv
from kdaverify.adapters.base import AdapterError
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.operators.layer.call import LayerCall
from kdaverify.operators.layer.laws import LAWS
from kdaverify.operators.layer.layout import TokenLayout
from kdaverify.operators.layer.operator import LAYER
from kdaverify.operators.layer.problem import LayerProblem
from tests.operators.layers import FAULTS, RIGHT_ONES, D, adapted, faulty, plain, refusing

RANDOM = [LayerProblem(B=1 + seed % 4, T=1 + 7 * seed % 67, seed=seed) for seed in range(3)]


def outcomes(adapter: Any, law: str, problem: LayerProblem) -> list[Outcome]:
    return check("laws", adapter, problem, {"law": law})


@pytest.mark.rotates
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_breaks_its_law_in_smoke(fault: str) -> None:
    adapter = faulty(fault)
    found = [
        outcome
        for _, (law, problem) in LAYER.lawful(adapter, "smoke")
        if law == FAULTS[fault]
        for outcome in outcomes(adapter, law, problem)
    ]
    assert any(outcome.status.rejects for outcome in found)
    assert not any(outcome.status is Status.ERROR for outcome in found), found


@pytest.mark.rotates
@pytest.mark.parametrize("name", RIGHT_ONES)
def test_conforming_layers_keep_all_laws(name: str) -> None:
    adapter = RIGHT_ONES[name]
    cases = [case for _, case in LAYER.lawful(adapter, "smoke")]
    wrong = {
        (law, problem.id): outcome.message
        for law, problem in cases
        for outcome in outcomes(adapter, law, problem)
        if outcome.status is not Status.PASS
    }
    assert not wrong


def test_a_conforming_layer_keeps_all_laws_on_random_problems() -> None:
    adapter = RIGHT_ONES["delta"]
    for problem in RANDOM:
        for law in (law for law in LAWS.values() if law.untestable(problem) is None):
            found = outcomes(adapter, law.name, problem)
            assert not [x.message for x in found if x.status.rejects], (law.name, problem.to_json())


def test_every_law_has_a_planted_fault_but_one_that_masks_cannot_break() -> None:
    # Padding on the right changes nothing before it; a layer that shifts tokens breaks that law.
    assert {*LAWS} - {*FAULTS.values()} == {
        "right-padding",
        "left-padding-decode",
        "batch-gradient",
    }


def test_a_layer_that_declines_a_mask_is_not_tested_with_masks() -> None:
    adapter = adapted(refusing, "refusing")
    (found,) = outcomes(adapter, "left-padding", LayerProblem(B=2, T=9))
    assert found.status is Status.SKIP and "no masks; unpad the batch" in found.message


def test_what_a_layer_does_not_take_is_not_tested() -> None:
    adapter = RIGHT_ONES["plain"]
    laws = {law for _, (law, _) in LAYER.lawful(adapter, "smoke")}
    assert laws == {"batch", "later-tokens", "batch-gradient", "float64", "repeat"}
    assert any("cu_seqlens" in said for said in LAYER.outside(adapter))


def test_a_law_that_cannot_fail_is_inconclusive() -> None:
    """A layer without memory keeps the law of cuts whatever it does to its cache."""

    def pointwise(hidden: torch.Tensor, *, cache: Any) -> tuple[torch.Tensor, Any]:
        return 2 * hidden, {}

    adapter = adapted(pointwise, "pointwise")
    (found,) = outcomes(adapter, "cut", LayerProblem(B=2, T=9))
    assert found.status is Status.SKIP and "inconclusive" in found.message


def test_a_layer_without_a_width_is_declined() -> None:
    with pytest.raises(AdapterError, match="widths: wanted the one width of hidden"):
        kv.kernel(op="layer")(plain)


def test_a_reset_that_is_no_function_is_declined() -> None:
    with pytest.raises(AdapterError, match="reset: wanted a function"):
        kv.kernel(op="layer", widths=D, reset="yes")(plain)


def test_a_missing_cache_is_said() -> None:
    def forgetful(hidden: torch.Tensor, *, cache: Any) -> torch.Tensor:
        return plain(hidden)

    (found,) = outcomes(adapted(forgetful, "forgetful"), "cut", LayerProblem(B=2, T=9))
    assert found.status is Status.ERROR and "wanted (out, cache), got no cache" in found.message


def test_tokens_lie_in_every_layout_in_order() -> None:
    tokens = torch.arange(1.0, 16).view(3, 5, 1)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 0, 1, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0, 1]])
    padded, packed = TokenLayout.masked(mask, 5), TokenLayout.packed((5, 2, 4), 5)
    assert padded.there(tokens)[..., 0].tolist() == [
        [0, 0, 1, 2, 3, 4, 5],
        [6, 0, 7, 0, 8, 0, 0],
        [0, 0, 0, 0, 0, 0, 11],
    ]
    assert packed.there(tokens)[..., 0].tolist() == [[1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 14]]
    assert (padded.lengths, packed.lengths) == ((5, 3, 1), (5, 2, 4))
    assert torch.equal(padded.empty[..., 0], mask == 0)


def test_a_token_is_named_by_its_place_in_its_own_sequence() -> None:
    hidden, offsets = torch.zeros(1, 9, D), torch.tensor([0, 4, 4, 9])
    pack = LAYER.place("out", (0, 5, 3), LayerCall(hidden, cu_seqlens=offsets))
    padded = LAYER.place("out", (0, 5, 3), LayerCall(hidden, torch.tensor([[0] * 4 + [1] * 5])))
    assert pack.where == "sequence 2, token 1, column 3"
    assert padded.where == "sequence 0, token 1, column 3"


def test_a_failure_is_a_comparison_by_rows() -> None:
    problem = LayerProblem(B=2, T=9)
    (found,) = outcomes(faulty("window shifted"), "cut", problem)
    assert found.comparison is not None and found.comparison.statistic == "row"
    assert "x tolerance" in found.message and "cut at 1" in found.message
