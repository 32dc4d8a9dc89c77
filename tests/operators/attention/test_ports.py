"""Attention, paged decode and merges: every planted fault is found on the panel of smoke,
conforming ports in other conventions pass, and wrong declarations are named.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from torch import Tensor

import kdaverify as kv
from kdaverify.adapters.base import Adapter, AdapterError
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.operator import problem_from_json
from tests.operators.attention import ports
from tests.operators.attention.ports import FAULTS, FOREIGN, MERGE_FAULTS, RIGHT, TOP_LEFT

OPS = ("attention", "mla_decode")
FAULTY = [
    *(("attention", name) for name in FAULTS),
    *(("mla_decode", name) for name in ports.DECODE_FAULTS),
]
FOREIGN_WORDS = {"lse": "2", "empty_lse": "+inf"}
RANDOM_CASES = 25


def smoke(adapter: Adapter) -> Iterator[Outcome]:
    yield from adapter.operator.preflight(adapter)
    for _, problem in adapter.operator.panel(adapter, "smoke"):
        yield from check("forward", adapter, problem, {})


def rejected(outcomes: Iterator[Outcome]) -> list[str]:
    return [str(outcome.message) for outcome in outcomes if outcome.status.rejects]


@pytest.mark.whole_run
@pytest.mark.rotates
@pytest.mark.parametrize(("op", "name"), FAULTY)
def test_every_fault_is_found(op: str, name: str) -> None:
    port = ports.adapter(op, ports.DECODE_FAULTS[name])
    assert any(outcome.status.rejects for outcome in smoke(port))


@pytest.mark.parametrize("name", MERGE_FAULTS)
def test_every_fault_of_a_merge_is_found(name: str) -> None:
    assert any(outcome.status.rejects for outcome in smoke(ports.merged(MERGE_FAULTS[name])))


CONFORMING = {
    "attention": ports.adapter("attention", RIGHT),
    "attention, other conventions": ports.adapter("attention", FOREIGN, **FOREIGN_WORDS),
    "attention, top left": ports.adapter("attention", TOP_LEFT, causal_alignment="top_left"),
    "decode": ports.adapter("mla_decode", RIGHT),
    "decode, other conventions": ports.adapter("mla_decode", FOREIGN, **FOREIGN_WORDS),
    "decode, top left": ports.adapter("mla_decode", TOP_LEFT, causal_alignment="top_left"),
    "merge, other conventions": ports.merged(ports.merge),
    "merge, interpolated": ports.merged(ports.interpolated),
}


@pytest.mark.whole_run
@pytest.mark.rotates
@pytest.mark.parametrize("name", CONFORMING)
def test_conforming_ports_pass_the_panel(name: str) -> None:
    assert not rejected(smoke(CONFORMING[name]))


@pytest.mark.whole_run
@pytest.mark.rotates
@pytest.mark.parametrize("name", CONFORMING)
def test_conforming_ports_pass_random_cases_and_every_law(name: str) -> None:
    adapter = CONFORMING[name]
    operator: Any = adapter.operator
    chosen: list[tuple[str, str | None]] = [(dtype, None) for dtype in adapter.dtypes]
    chosen += [(dtype, law) for _, (law, dtype) in operator.lawful(adapter, "smoke")]
    for dtype, law in chosen:
        _passes(adapter, dtype, law)


def _passes(adapter: Adapter, dtype: str, law: str | None) -> None:
    """Random problems of a format, or those of a law."""
    laws: Any = adapter.operator.laws()
    fields = None if law is None else laws[law].wanted

    @seed(11)
    @settings(
        max_examples=RANDOM_CASES if law is None else 3,
        database=None,
        deadline=None,
        suppress_health_check=[*HealthCheck],  # pyright: ignore[reportArgumentType]
        phases=[Phase.generate],
    )
    @given(problem=adapter.operator.random(adapter, dtype, fields))
    def passes(problem: Any) -> None:
        if law is None:
            assert not rejected(iter(check("forward", adapter, problem, {})))
        elif laws[law].untestable(problem) is None:
            assert not rejected(iter(check("laws", adapter, problem, {"law": law})))

    passes()


MISDECLARED = {
    "lse='2'": (FOREIGN, {"empty_lse": "+inf"}),
    "lse='e'": (RIGHT, {"lse": "2"}),
    "empty_lse='+inf'": (FOREIGN, {"lse": "2"}),
    "empty_lse='-inf'": (RIGHT, {"empty_lse": "+inf"}),
    "causal_alignment='top_left'": (TOP_LEFT, {}),
    "multiply by softmax_scale": (FAULTS["S1 default scale"], {}),
    "behind the border": (FAULTS["M4 flag without effect"], {}),
    "h % h_kv": (FAULTS["tiled heads"], {}),
    "as declared, got 0": (replace(RIGHT, core=ports.zero_empty), {}),
    "are swapped": (FAULTS["lse with H and s_q swapped"], {}),
}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("words", MISDECLARED)
def test_a_wrong_declaration_is_named(op: str, words: str) -> None:
    port, options = MISDECLARED[words]
    adapter = ports.adapter(op, port, **options)
    assert words in (adapter.operator.misfit(adapter) or "")


def test_a_wrong_declaration_of_a_merge_is_named() -> None:
    adapter = ports.merged(ports.merge, empty_lse="-inf")
    assert Status.CONVENTION in {one.status for one in adapter.operator.preflight(adapter)}


@pytest.mark.parametrize("dtype", ports.FORMATS)
def test_weights_of_0_times_nan_are_a_declared_convention(dtype: str) -> None:
    adapter = ports.whole("values times 0", dtypes=dtype)
    (found,) = adapter.operator.preflight(adapter)
    assert found.status is Status.CONVENTION
    assert "declare unused='finite'" in found.message


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("name", "unused"), [("values times 0", "finite"), ("values masked", "anything")]
)
def test_gathers_of_whole_tables_pass(name: str, unused: str) -> None:
    adapter = ports.whole(name, unused=unused, dtypes="fp32")
    assert not rejected(smoke(adapter))
    _passes(adapter, "fp32", "unused-slots")
    _passes(adapter, "fp32", "longer-table")


def test_finite_memory_that_counts_is_found() -> None:
    """A kernel that attends to the slot past each request, in memory that is finite."""
    port = replace(RIGHT, rows=ports.one_more)
    adapter = ports.adapter("mla_decode", port, unused="finite", dtypes="fp32")
    assert rejected(smoke(adapter))


@pytest.mark.parametrize("name", ["whole tables", "whole tables, values times 0"])
def test_an_error_from_unused_entries_of_a_table_says_so(name: str) -> None:
    adapter = ports.whole(name, dtypes="fp32")
    (found,) = adapter.operator.preflight(adapter)
    assert found.status is Status.ERROR
    assert "block_table[b, j] for j >= ceil(cache_seqlens[b] / page) is poisoned" in found.message


def test_an_error_for_another_reason_says_nothing_of_tables() -> None:
    def broken(*_: Any) -> Tensor:
        raise RuntimeError("no such tile")

    port = replace(RIGHT, rows=broken)
    adapter = ports.adapter("mla_decode", port, dtypes="fp32")
    (found,) = adapter.operator.preflight(adapter)
    assert "no such tile" in found.message
    assert "poisoned" not in found.message


def test_a_packed_layout_without_offsets_is_refused() -> None:
    def whole(q: Any, k: Any, v: Any, *, cu_seqlens_q: Any) -> Any:
        raise NotImplementedError

    declared = kv.kernel(op="attention", layout="packed", lse="none")
    with pytest.raises(AdapterError, match="does not name cu_seqlens_k and cu_seqlens_q"):
        declared(whole)


@pytest.mark.parametrize("unused", ["anything", "finite"])
def test_nan_in_rows_of_nobody_is_a_declared_convention(unused: str) -> None:
    adapter = kv.kernel(
        op="attention", name="packed", dtypes="fp32", contract="math-fp32", unused=unused
    )(ports.one_mask)
    problem = adapter.operator.within(adapter, adapter.operator.pack("fp32"))
    found = check("laws", adapter, problem, {"law": "rows-of-nobody"})
    assert bool(rejected(iter(found))) == (unused == "anything")
    if unused == "anything":
        assert all("declare unused='finite'" in text for text in rejected(iter(found)))


@pytest.mark.parametrize("faulty", [True, False])
def test_offsets_of_queries_taken_for_those_of_keys_are_found(*, faulty: bool) -> None:
    """Only where both have as many rows, which other packs have not."""

    def packed(
        q: Any, k: Any, v: Any, *, cu_seqlens_q: Any, cu_seqlens_k: Any, softmax_scale: float,
        causal: bool,
    ) -> Any:  # fmt: skip
        if faulty and cu_seqlens_q is not None and cu_seqlens_q[-1] == cu_seqlens_k[-1]:
            cu_seqlens_k = cu_seqlens_q
        offsets = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
        return ports.one_mask(q, k, v, **offsets, softmax_scale=softmax_scale, causal=causal)

    adapter = kv.kernel(op="attention", dtypes="fp32", contract="math-fp32[weights:lse]")(packed)
    problem = dict(adapter.operator.panel(adapter, "smoke"))["fp32-pack-equal-rows"]
    assert bool(rejected(iter(check("forward", adapter, problem, {})))) == faulty


@pytest.mark.parametrize("name", ["attention", "decode", "merge, other conventions"])
def test_problems_survive_json_and_steps_shrink_them(name: str) -> None:
    adapter = CONFORMING[name]
    for _, problem in adapter.operator.panel(adapter, "smoke"):
        assert problem_from_json(problem.to_json()) == problem
        for change, _ in adapter.operator.smaller(problem, {}):
            assert problem.replace(**change) != problem
