"""Sizes of the smoke panels of attention are equal, 1 and a tile apart somewhere; faults that show
there alone are rejected, where the same kernel without them, and one to base 2, pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any, Final

import pytest
import torch

from kdaverify.adapters import find
from kdaverify.adapters.base import Adapter
from kdaverify.checks.calls import questions
from kdaverify.checks.properties import check
from kdaverify.faults.attention.adapter import adapted, in_base_two
from kdaverify.faults.attention.kernel import AttentionKernel
from kdaverify.faults.attention.special_sizes import FAULTS
from kdaverify.faults.catalogue import FAULTS as FAULTS_BY_ID
from kdaverify.faults.hosts import host_of
from kdaverify.operators.attention.decode import MLA_DECODE
from kdaverify.operators.attention.dense import ATTENTION
from kdaverify.operators.attention.panel import decode_problems, dense_problems, merge_problems
from kdaverify.operators.attention.problem import AttentionProblem
from kdaverify.operators.attention.sparse_panel import sparse_problems
from tests.operators.attention import ports

PANELS: Final[dict[str, Any]] = {
    "attention": dense_problems,
    "mla_decode": decode_problems,
    "merge_state": merge_problems,
    "sparse_attention": sparse_problems,
}
AXES: Final = {
    "attention": "B s_q s_k H h_kv d_k d_v",
    "mla_decode": "B s_q s_k H h_kv d_k d_v page pages width",
    "merge_state": "T H d_v",
    "sparse_attention": "B s_q H h_kv d_k d_v page pages topk",
}
NEVER: Final = {
    # values are the first of the columns of a row, and not all; a pool has three free pages
    "mla_decode": {("d_k", "d_v"), ("pages", "width")},
    "sparse_attention": {("d_k", "d_v")},
}
PROBLEMS: Final = {
    "EQUAL-merge": ("all-equal", "rows-as-heads"),
    "EQUAL-sink": ("all-equal", "requests-as-heads"),
    "EQUAL-heads": ("all-equal", "entries-as-queries"),
    "EQUAL-dk": ("all-equal", "entries-as-queries"),
    "EQUAL-lists": ("all-equal", "requests-as-entries", "pages-as-entries"),
    "ONE-key": ("one-key-causal", "pack-of-ones"),
    "ONE-sequence": ("pack-of-one",),
    "ONE-head": ("one-head-one-column", "pack-of-one", "all-ones"),
    "PACK-maxima": ("pack-equal-maxima", "pack-equal-sums"),
    "PACK-sums": ("pack-equal-sums",),
    "PACK-tiles": ("pack-of-borders-past-256",),
    "PACK-byte": ("empties-between",),
    "TILE-sink": ("queries-past-keys", "queries-past-keys-causal"),
    "BORDER-segments": ("queries-past-4096-causal",),
    "END-slot": ("ends-list", "all-equal"),
    "END-first-slot": ("ends-list", "all-equal"),
    "END-slot-backward": ("ends-list", "all-equal"),
    "END-page": ("reversed-table", "width-as-page"),
    "END-column": ("reversed-table", "width-as-keys"),
}
ACCUMULATORS: Final = {
    "WIDE-o": ("wide-rows-past-1024", "columns-256-past-1024", "odd-columns-past-1024"),
    "WIDE-dq": ("wide-rows-past-1024", "columns-256-past-1024", "odd-columns-past-1024"),
    "WIDE-dkv": ("wide-queries-past-1024",),
    "WIDE-decode": ("model-width-past-1024",),
    "WIDE-lists": ("model-width-past-1024",),
}
WIDTHS: Final = {
    "WIDTH-dv": ("columns-128-96", "columns-192-80"),
    "WIDTH-dq": ("columns-72-72", "columns-80-80", "columns-104-104", "columns-112-112"),
}
OTHER_WIDTHS: Final = ("widths-past-128", "odd-columns-past-1024", "model-width", "columns-96-96")
NARROW: Final = {
    "attention": ("widths-past-128", "keys-past-4096"),
    "mla_decode": ("model-width", "tokens-past-4096"),
    "sparse_attention": ("entries-past-2048",),
}
"""Wide rows of few tiles, and narrow ones of many."""
PREFIXES: Final = {
    "PREFIX-first-page": ("leading-page", "leading-pages"),
    "PREFIX-equal-columns": ("middle-pages",),
    "PREFIX-fork": ("forked-pages",),
    "PREFIX-outer": ("outer-pages",),
    "PREFIX-nested": ("nested-pages",),
    "PREFIX-crowd": ("outer-pages-past-256",),
    "PREFIX-pair": ("paired-pages",),
    "TREE-odd": ("last-split-wins",),
    "PREFIX-border": ("prefix-to-the-end",),
}
CROWDS: Final = {
    "SCAN-pages": "requests-past-32",
    "SCAN-block": "rows-past-65535",
    "SCAN-rows": "sequences-past-32",
    "SCAN-keys": "sequences-past-32",
    "SCAN-lists": "requests-past-32",
    "BORDER-splits": "border-across-splits",
    "SINK-query": "pack-of-one-long-query",
    "TILE-merge": "second-once-past-512",
    "TILE-weights": "outweighed-tiles",
    "PORT-range": "brink-of-keys",
    "SCAN-lengths": "requests-past-32",
    "GRID-decode": "rows-past-65535",
    "GRID-decode-lse": "rows-past-65535",
    "GRID-lists": "rows-past-65535",
    "GRID-lists-lse": "rows-past-65535",
    "lists-24": "slots-past-65536",
    "GRID-merge": "rows-past-65535",
    "GRID-merge-lse": "rows-past-65535",
}
FEWER: Final = {
    "attention": ("pack-past-32", "entries-past-32"),
    "mla_decode": ("page-edges", "many-heads"),
    "sparse_attention": ("lengths", "many-heads"),
    "merge_state": ("many-rows", "many-heads"),
}
"""Fewer requests of several pages, more of a single one, and fewer rows."""
RULES: Final = {
    "PACK-cotangent": ("cotangent-sliced", "cotangent-swapped"),
    "PACK-sink": ("padding-backward",),
}
OTHERWISE: Final = {
    "attention": in_base_two("attention"),
    "mla_decode": in_base_two("mla_decode"),
    "merge_state": ports.merged(ports.merge),
    "sparse_attention": find("eager-sparse-attention"),
}
"""Conforming kernels in other conventions, or by other formulas."""
ONES: Final[dict[str, Callable[[Any], bool]]] = {
    "s_q": lambda problem: any(s_q == 1 for s_q, _ in problem.pairs),
    "s_k": lambda problem: any(s_k == 1 for _, s_k in problem.pairs),
    "requests": lambda problem: len(problem.pairs) == 1,
    "H": lambda problem: problem.H == 1,
    "h_kv": lambda problem: problem.h_kv == 1 < problem.H,
    "d_v": lambda problem: problem.d_v == 1,
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def sizes(problem: Any) -> dict[str, int]:
    """Of every axis, by its name."""
    found = {axis: getattr(problem, axis, 0) for axis in AXES[problem.op].split()}
    if problem.op == "mla_decode":
        call = problem.inputs()
        found |= {
            "pages": len(call.cache),
            "width": call.block_table.shape[1],
            "s_k": max(problem.k_lengths),
        }
    return found


@pytest.mark.parametrize("op", PANELS)
def test_any_two_axes_that_can_be_equally_long_are_somewhere(op: str) -> None:
    pairs = {tuple(sorted(pair)) for pair in combinations(AXES[op].split(), 2)}
    for problem in PANELS[op]("fp32", "smoke").values():
        if not problem.packed:
            at = sizes(problem)
            pairs -= {(a, b) for a, b in pairs if at[a] == at[b] > 1}
    assert pairs == NEVER.get(op, set())


@pytest.mark.parametrize("op", ["attention", "merge_state"])
def test_any_two_are_where_not_all_are(op: str) -> None:
    pairs = {*combinations(AXES[op].split(), 2)}
    for problem in PANELS[op]("fp32", "smoke").values():
        at = sizes(problem)
        if not problem.packed and len({*at.values()}) > 1:
            pairs -= {(a, b) for a, b in pairs if at[a] == at[b] > 1}
    assert not pairs


@pytest.mark.parametrize("axis", ONES)
@pytest.mark.parametrize("packed", [False, True])
def test_any_axis_has_one_element_under_a_causal_mask_with_a_sink(axis: str, packed: bool) -> None:
    problems = dense_problems("fp32", "smoke").values()
    assert any(
        problem.packed == packed and problem.causal and problem.sink and ONES[axis](problem)
        for problem in problems
    )


def rejecting(adapter: Adapter, names: tuple[str, ...], *, backward: bool) -> Iterator[bool]:
    """Whether each of some problems of the panel rejects an implementation."""
    choices = adapter.operator.panel(adapter, "smoke")
    panel = {name.partition("-")[2]: found for name, found in choices}
    how: tuple[str, dict[str, Any]] = ("gradients", {"of": "both"}) if backward else ("forward", {})
    for name in names:
        found = check(how[0], adapter, panel[name], how[1])
        yield any(outcome.status.rejects for outcome in found)


@pytest.mark.parametrize("fault", [x for x in FAULTS if x.id in PROBLEMS], ids=lambda x: x.id)
def test_a_problem_rejects_it_and_passes_its_twin(fault: Any) -> None:
    names, backward = PROBLEMS[fault.id], all(name.startswith("d") for name in fault.outputs)
    assert all(rejecting(find(f"fault:{fault.id}"), names, backward=backward))
    assert not any(rejecting(host_of(fault).right(fault), names, backward=backward))
    assert not any(rejecting(OTHERWISE[fault.operator], names, backward=backward))


@pytest.mark.parametrize("name", PREFIXES)
def test_requests_that_share_pages_reject_it_and_pass_its_twin(name: str) -> None:
    wrong, right = find(f"fault:{name}"), host_of(FAULTS_BY_ID[name]).right(FAULTS_BY_ID[name])
    shown = PREFIXES[name]
    assert all(rejecting(wrong, shown, backward=False))
    assert not any(rejecting(wrong, ("shared-pages", "two-tile-edges"), backward=False))
    for conforming in (right, OTHERWISE["mla_decode"]):
        assert not any(rejecting(conforming, shown, backward=False))


@pytest.mark.rotates
@pytest.mark.parametrize("name", CROWDS)
def test_many_requests_or_rows_reject_it_and_pass_its_twin(name: str) -> None:
    fault, shown = FAULTS_BY_ID[name], (CROWDS[name],)
    wrong, right = find(f"fault:{name}"), host_of(fault).right(fault)
    assert all(rejecting(wrong, shown, backward=False))
    assert not any(rejecting(wrong, FEWER[fault.operator], backward=False))
    for conforming in (right, OTHERWISE[fault.operator]):
        assert not any(rejecting(conforming, shown, backward=False))


@pytest.mark.parametrize(("width", "tested"), [((), True), ((128,), False)])
def test_rows_past_a_grid_are_left_out_where_they_are_wide(width: Any, tested: bool) -> None:
    for op, function in (("mla_decode", "mla_decode"), ("merge_state", "merge_state")):
        adapter = adapted(getattr(AttentionKernel(), function), op, "wide", widths=width)
        names = [name for name, _ in adapter.operator.panel(adapter, "smoke")]
        assert any(name.endswith("rows-past-65535") for name in names) == tested


def test_requests_past_a_warp_have_several_pages_of_any_size() -> None:
    adapter = adapted(AttentionKernel().mla_decode, "mla_decode", "pages", page=64)
    panel = {name.partition("-")[2]: found for name, found in MLA_DECODE.panel(adapter, "smoke")}
    assert sum(n > 64 for n in panel["requests-past-32"].k_lengths[32:]) > 9


def of_16_bits(adapter: Adapter, name: str) -> Any:
    """The problem of a name in bf16, whatever format smoke has it in."""
    panel = PANELS[adapter.operator.name]("bf16", "smoke")
    return adapter.operator.within(adapter, panel[name])


@pytest.mark.rotates
@pytest.mark.parametrize("name", ACCUMULATORS)
def test_wide_rows_of_many_tiles_reject_it_and_pass_its_twin(name: str) -> None:
    fault, backward = FAULTS_BY_ID[name], name in ("WIDE-dq", "WIDE-dkv")
    wrong, right = find(f"fault:{name}"), host_of(fault).right(fault)
    how: Any = ("gradients", {"of": "both"}) if backward else ("forward", {})
    for shown, adapter, rejects in [
        *((shown, wrong, True) for shown in ACCUMULATORS[name]),
        *((hidden, wrong, False) for hidden in NARROW[fault.operator]),
        *((shown, right, False) for shown in ACCUMULATORS[name]),
        *((shown, OTHERWISE[fault.operator], False) for shown in ACCUMULATORS[name]),
    ]:
        found = check(how[0], adapter, of_16_bits(adapter, shown), how[1])
        assert any(outcome.status.rejects for outcome in found) == rejects, (shown, adapter.name)


@pytest.mark.parametrize("name", WIDTHS)
def test_widths_of_heads_reject_it_and_pass_its_twin(name: str) -> None:
    fault, shown = FAULTS_BY_ID[name], WIDTHS[name]
    wrong, right = find(f"fault:{name}"), host_of(fault).right(fault)
    assert all(rejecting(wrong, shown, backward=True))
    assert not any(rejecting(wrong, OTHER_WIDTHS, backward=True))
    for conforming in (right, OTHERWISE["attention"]):
        assert not any(rejecting(conforming, shown, backward=True))


@pytest.mark.parametrize("page", [1, 16, 64])
def test_requests_share_as_many_pages_of_any_size(page: int) -> None:
    adapter = adapted(AttentionKernel().mla_decode, "mla_decode", "pages", page=page)
    panel = {name.partition("-")[2]: found for name, found in MLA_DECODE.panel(adapter, "smoke")}
    for name, equal in (("leading-page", [0]), ("leading-pages", [0, 1]), ("middle-pages", [1, 2])):
        table = panel[name].inputs().block_table
        columns = range(-(-min(panel[name].k_lengths[:2]) // page))
        assert [at for at in columns if table[0, at] == table[1, at]] == equal


@pytest.mark.rotates
@pytest.mark.parametrize("name", RULES)
def test_a_rule_rejects_it_and_passes_its_twin(name: str) -> None:
    fault = next(fault for fault in FAULTS if fault.id == name)
    wrong, right = find(f"fault:{name}"), host_of(fault).right(fault)
    for adapter, rejects in ((wrong, True), (right, False), (in_base_two("attention"), False)):
        tested = [
            one
            for one in questions(adapter, "smoke")
            if one.rule.name in RULES[name] and one.problem.packed
        ]
        assert len(tested) == len(RULES[name])
        for one in tested:
            found = check("calls", adapter, one.problem, one.detail)
            assert any(outcome.status.rejects for outcome in found) == rejects, one.name


def test_smoke_tests_each_in_one_format_and_acceptance_in_all() -> None:
    adapter = find("eager-attention")
    for profile, count in (("smoke", 1), ("acceptance", 3)):
        names = [name.partition("-")[2] for name, _ in ATTENTION.panel(adapter, profile)]
        assert {names.count(name) for name in ATTENTION.special_sizes} == {count}


def test_a_problem_of_special_sizes_has_one_loss() -> None:
    panel = dense_problems("bf16", "smoke")
    assert all(ATTENTION.has_one_loss(panel[name]) for name in ATTENTION.special_sizes)
    assert not ATTENTION.has_one_loss(panel["pack"])
    assert not ATTENTION.has_one_loss(AttentionProblem())


def test_rows_of_a_quantised_cache_are_whole_numbers_of_fp32() -> None:
    adapter = find("eager-sparse-fp8")
    for name, problem in adapter.operator.panel(adapter, "smoke"):
        assert problem.inputs().cache.shape[-1] % 4 == 0, name
