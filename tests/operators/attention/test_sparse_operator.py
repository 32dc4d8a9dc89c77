"""Attention over lists of slots: right kernels are accepted, and no port with one mistake is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kdaverify as kv
from kdaverify.adapters import find
from kdaverify.adapters.base import Adapter
from kdaverify.checks.execute import execute
from kdaverify.checks.gradients import gradients
from kdaverify.checks.outcome import Outcome, outcomes
from kdaverify.faults.attention.list_kernel import ListPatch, adapted
from kdaverify.operators.attention.sparse import SPARSE
from kdaverify.operators.attention.sparse_problem import SparseProblem
from tests.operators.plain_ports import sparse_attention

Port = Callable[..., tuple[Tensor, Tensor]]
RIGHT = ("eager-sparse-attention", "eager-sparse-fp8")


def judged(adapter: Adapter, problem: SparseProblem) -> list[Outcome]:
    call = problem.inputs()
    return outcomes(adapter, call, lambda: adapter.forward(call))


def rejected(found: list[Outcome]) -> list[str]:
    return [outcome.message for outcome in found if outcome.status.rejects]


@pytest.mark.rotates
@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_right_kernels_are_accepted(name: str, dtype: str) -> None:
    adapter = find(name)
    for case, problem in SPARSE.panel(adapter, "smoke")[:: 3 if dtype == "fp32" else 7]:
        assert not rejected(judged(adapter, problem.replace(dtype=dtype))), case


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("law", SPARSE.laws())
def test_laws_hold(name: str, law: str) -> None:
    adapter, one = find(name), SPARSE.laws()[law]
    problem = SPARSE.within(adapter, SPARSE.probe("bf16").replace(**one.wanted))
    assert not rejected(one.check(adapter, problem))


def _adapted(port: Port) -> Adapter:
    return kv.kernel(op="sparse_attention", dtypes=("fp32",), contract="math-fp32")(port)


def _changed(change: Callable[..., dict[str, Any]]) -> Port:
    """The right port on other lists."""

    def port(
        q: Tensor,
        cache: Tensor,
        indices: Tensor,
        *,
        topk_length: Tensor | None,
        d_v: int,
        softmax_scale: float,
    ) -> tuple[Tensor, Tensor]:
        given = {"cache": cache, "indices": indices, "topk_length": topk_length}
        how: dict[str, Any] = {"d_v": d_v, "softmax_scale": softmax_scale}
        return sparse_attention(q, **{**given, **change(**given)}, **how)

    return port


def merged_duplicates(indices: Tensor, **_: Any) -> dict[str, Any]:
    first = indices[..., None] == indices[..., None, :]
    earlier = first.tril(-1).any(-1)
    return {"indices": indices.masked_fill(earlier, -1)}


def page_dropped(cache: Tensor, indices: Tensor, **_: Any) -> dict[str, Any]:
    return {"indices": torch.where(indices < 0, indices, indices % cache.shape[1])}


def tail_dropped(indices: Tensor, **_: Any) -> dict[str, Any]:
    whole = indices.shape[2] // 64 * 64
    return {"indices": indices[:, :, : whole or indices.shape[2]]}


def lengths_ignored(**_: Any) -> dict[str, Any]:
    return {"topk_length": None}


def stops_at_nothing(indices: Tensor, **_: Any) -> dict[str, Any]:
    ended = (indices < 0).cumsum(-1) > 0
    return {"indices": indices.masked_fill(ended, -1)}


def list_of_the_first_query(indices: Tensor, **_: Any) -> dict[str, Any]:
    return {"indices": indices[:, :1].expand_as(indices)}


WRONG = (
    merged_duplicates, page_dropped, tail_dropped, lengths_ignored, stops_at_nothing,
    list_of_the_first_query,
)  # fmt: skip


@pytest.mark.parametrize("change", WRONG)
def test_a_port_with_one_mistake_is_rejected(change: Callable[..., dict[str, Any]]) -> None:
    adapter = _adapted(_changed(change))
    problems = [problem for _, problem in SPARSE.panel(adapter, "smoke")]
    assert any(rejected(judged(adapter, problem)) for problem in problems)
    assert not rejected(judged(_adapted(sparse_attention), problems[0]))


def test_a_function_without_lengths_is_given_none() -> None:
    def port(
        q: Tensor, cache: Tensor, indices: Tensor, *, d_v: int, softmax_scale: float
    ) -> tuple[Tensor, Tensor]:
        how: dict[str, Any] = {"d_v": d_v, "softmax_scale": softmax_scale}
        return sparse_attention(q, cache, indices, topk_length=None, **how)

    adapter = _adapted(port)
    problem = SparseProblem(B=2, topk_lengths=(3, 4))
    assert adapter.supports(problem) == "it does not take topk_lengths=(3, 4)"
    assert not rejected(judged(adapter, SPARSE.within(adapter, problem)))


Reading = Callable[[Tensor, float], Tensor | None]
READINGS: dict[str, Reading] = {
    "the sink is ignored": lambda _sink, _scale: None,
    "the sink is multiplied by softmax_scale": lambda sink, scale: sink * scale,
    "the sink is taken to base 2": lambda sink, _: sink * math.log(2),
    "one sink is used for all heads": lambda sink, _: sink[:1].expand_as(sink),
    "": lambda sink, _: sink,
}


def _with_sink(read: Reading) -> Adapter:
    """The right kernel, which takes the sink for another."""

    def call(right: Callable[..., Any], given: dict[str, Any]) -> Any:
        return right(**{**given, "sink": read(given["sink"], given["softmax_scale"])})

    return adapted(ListPatch(call=call), "sparse_attention", "another sink")


@pytest.mark.parametrize("said", READINGS)
def test_a_sink_that_is_misread_is_named(said: str) -> None:
    adapter = _with_sink(READINGS[said])
    problem = SPARSE.within(adapter, SPARSE.probe("fp32"))
    found = execute(adapter, problem.inputs(), adapter.exposes(problem)).outputs
    named = SPARSE.otherwise(adapter, problem, found)
    assert named is None if not said else (named or "").startswith(said)


def test_a_function_without_a_sink_is_given_none() -> None:
    adapter = _adapted(sparse_attention)
    assert SPARSE.within(adapter, SPARSE.probe("fp32")).sink is None
    assert adapter.supports(SPARSE.probe("fp32")) == "it does not take sink='mixed'"


UNTESTED: dict[str, dict[str, Any]] = {
    "those of lists are tested where gradients=True is declared": {},
    "gradients of a quantised cache are not judged": {"gradients": True, "cache": "fp8"},
    "it declares that it has no backward": {"gradients": False},
    "": {"gradients": True},
}


@pytest.mark.parametrize("why", UNTESTED)
def test_why_gradients_are_not_tested_is_reported(why: str) -> None:
    made = kv.kernel(op="sparse_attention", contract="math-fp32", **UNTESTED[why])
    adapter: Adapter = made(sparse_attention)
    assert adapter.differentiable == (not why)
    assert SPARSE.not_applicable(adapter, "smoke").get("gradients", "") == why


@pytest.mark.parametrize("case", ["bf16-model-width-sink", "fp16-duplicates-list", "fp32-lengths"])
def test_right_gradients_are_accepted(case: str) -> None:
    adapter = find("eager-sparse-attention")
    found = gradients(adapter, dict(SPARSE.panel(adapter, "smoke"))[case], of="both")
    assert {outcome.output for outcome in found} >= {"dq", "dcache"} and not rejected(found)


def test_an_element_of_dcache_is_named_by_page_and_slot() -> None:
    call = SparseProblem(page=16, pages=2, lists="sorted", topk=30).inputs()
    place = SPARSE.place("dcache", (1, 3, 0, 5), call)
    assert str(place).startswith("page 1, slot 3, key head 0, column 5")
    assert "times" in str(place)


def test_bytes_of_a_quantised_cache_need_whole_tiles() -> None:
    with pytest.raises(ValueError, match="wanted a multiple of 128"):
        SparseProblem(cache="fp8", d_k=24, d_v=16)
