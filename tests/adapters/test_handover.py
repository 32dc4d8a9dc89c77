"""Nothing a kernel does to its tensors gets lost in a conversion: the judge sees edits, aliases and
junk as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kdaverify.adapters import kernel
from oracles.tensors import FLOATING, TOKENS
from tests.adapters.standins import MakeProblem

CONVERTED: dict[str, str] = {"layout": "bhtd", "state": "vk", "gate": "log2", "beta": "logit"}
STRAIGHT: dict[str, str] = {}


def returning(made: Callable[[dict[str, Tensor]], Any]) -> Any:
    """A kernel that returns what `made` makes of its tensors, by name."""

    def call(q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: float, initial_state: Any) -> Any:
        return made({"q": q, "k": k, "v": v, "g": g, "beta": beta, "initial_state": initial_state})

    return call


def reading(q: Any, k: Any, v: Any, g: Any, beta: Any, *, cu_seqlens: Any) -> Any:
    return v.clone(), None


@pytest.mark.parametrize("declared", [STRAIGHT, CONVERTED])
@pytest.mark.parametrize("edited", ["q", "k", "v", "g", "beta", "initial_state"])
def test_an_edit_in_place_reaches_the_callers_tensor(
    make_problem: MakeProblem, declared: dict[str, str], edited: str
) -> None:
    def edit(named: dict[str, Tensor]) -> tuple[None, None]:
        named[edited].mul_(0.5)
        return None, None

    x, before = make_problem().inputs(), make_problem().inputs()
    kernel(**declared)(returning(edit)).forward(x)  # pyright: ignore[reportArgumentType]
    for name in FLOATING:
        assert torch.equal(getattr(x, name), getattr(before, name)) is (name != edited)


@pytest.mark.parametrize(
    "declared", [{"gate": "decay"}, {"gate": "log2"}, {"beta": "logit"}, CONVERTED]
)
def test_poisoned_padding_is_no_edit(make_problem: MakeProblem, declared: dict[str, Any]) -> None:
    x = make_problem(B=1, T=8, lengths=(2, 3), state="absent").inputs()
    for name in TOKENS:
        getattr(x, name)[:, 5:] = math.nan
    before = x.copied()
    kernel(packing="cu_seqlens", **declared)(reading).forward(x)
    for name in TOKENS:
        assert torch.equal(getattr(x, name).nan_to_num(9.0), getattr(before, name).nan_to_num(9.0))


@pytest.mark.parametrize("gate", ["log2", "decay"])
def test_an_edit_of_one_element_leaves_the_others_alone_however_small_it_is(
    make_problem: MakeProblem, gate: str
) -> None:
    def nudge(named: dict[str, Tensor]) -> tuple[None, None]:
        first = named["g"].view(-1)[:1]
        first.copy_(torch.nextafter(first, first - 1))
        return None, None

    x, before = make_problem(gate="mild").inputs(), make_problem(gate="mild").inputs()
    kernel(gate=gate)(returning(nudge)).forward(x)
    assert int((x.g != before.g).sum()) == 1


@pytest.mark.parametrize("declared", [STRAIGHT, CONVERTED])
def test_an_input_returned_as_output_is_the_callers_tensor(
    make_problem: MakeProblem, declared: dict[str, str]
) -> None:
    x = make_problem(K=12, V=12).inputs()
    assert x.initial_state is not None
    function = returning(lambda named: (named["v"], named["initial_state"]))
    output = kernel(**declared)(function).forward(x)  # pyright: ignore[reportArgumentType]
    assert output.o.untyped_storage().data_ptr() == x.v.untyped_storage().data_ptr()
    assert (
        output.final_state.untyped_storage().data_ptr()
        == x.initial_state.untyped_storage().data_ptr()
    )


@pytest.mark.parametrize("declared", [STRAIGHT, CONVERTED])
def test_fresh_outputs_share_nothing_with_the_inputs(
    make_problem: MakeProblem, declared: dict[str, str]
) -> None:
    x = make_problem(K=12, V=12).inputs()
    copies = returning(lambda named: (named["v"].clone(), named["initial_state"].clone()))
    output = kernel(**declared)(copies).forward(x)  # pyright: ignore[reportArgumentType]
    assert torch.equal(output.o, x.v)
    assert output.o.untyped_storage().data_ptr() != x.v.untyped_storage().data_ptr()


@pytest.mark.parametrize("junk", [None, np.zeros(3), "o", (1, 2, 3), torch.zeros(2, 2)])
def test_junk_passes_through_for_the_judge_to_name(make_problem: MakeProblem, junk: Any) -> None:
    inputs = make_problem().inputs()
    for declared in (STRAIGHT, CONVERTED):
        pair, alone = returning(lambda _: (junk, junk)), returning(lambda _: junk)
        output = kernel(**declared)(pair).forward(inputs)  # pyright: ignore[reportArgumentType]
        assert output.o is junk and output.final_state is junk
        output = kernel(**declared)(alone).forward(inputs)  # pyright: ignore[reportArgumentType]
        assert output.o is junk


def test_a_flat_output_of_the_wrong_length_stays_flat(make_problem: MakeProblem) -> None:
    def short(q: Any, k: Any, v: Any, g: Any, beta: Any, *, cu_seqlens: Any) -> Any:
        return v[1:], None

    output = kernel(layout="thd", packing="cu_seqlens")(short).forward(
        make_problem(state="absent").inputs()
    )
    assert output.o.shape == (41, 3, 12)


def test_what_the_kernel_raises_is_not_caught(make_problem: MakeProblem) -> None:
    def broken(named: dict[str, Tensor]) -> None:
        raise RuntimeError("out of shared memory")

    with pytest.raises(RuntimeError, match="out of shared memory"):
        kernel()(returning(broken)).forward(make_problem().inputs())
