"""Faults of ports of attention change one problem of the smoke panel, which is there for them, and
no other that is near it; without the fault the kernel passes both.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from kdaverify.adapters import find
from kdaverify.adapters.attention_layout import contracts
from kdaverify.adapters.base import Adapter
from kdaverify.checks.outcome import outcomes
from kdaverify.checks.status import Status
from kdaverify.faults.attention.adapter import adapted
from kdaverify.faults.attention.kernel import PLAIN, AttentionKernel, patched
from kdaverify.faults.catalogue import FAULTS, faulty
from kdaverify.faults.hosts import host_of
from kdaverify.operators.attention.decode import MLA_DECODE
from kdaverify.operators.attention.laws import DECODE_LAWS, SPARSE_LAWS
from kdaverify.operators.attention.problem import AttentionProblem, MlaDecodeProblem
from kdaverify.operators.attention.regimes import REGIMES, VALUES
from kdaverify.operators.attention.sparse import SPARSE

CASES: Final = {
    "PORT-positions": ("few-queries-past-2048", "keys-past-4096"),
    "PORT-route": ("few-queries-past-2048", "rows-past-128"),
    "PORT-sink": ("one-token-sink", "level-sink"),
    "PORT-blocks": ("plateau-logits", "first-logits"),
    "PORT-sentinel": ("lowest-logits", "low-logits"),
    "PORT-start": ("deepest-logits", "lowest-logits"),
    "PORT-masked-tile": ("low-causal", "high-causal"),
    "PORT-lag": ("hill-logits", "rising-causal"),
    "PORT-few": ("three-high-keys", "high-logits"),
    "PORT-merge": ("apart", "far"),
    "PORT-clamp": ("large-values", "normal"),
}
"""The problem that shows a fault, and one that does not."""
DTYPE: Final = "bf16"


def rejected(adapter: Adapter, name: str) -> bool:
    dtype = DTYPE if DTYPE in adapter.dtypes else adapter.dtypes[0]
    problem = dict(adapter.operator.panel(adapter, "smoke"))[f"{dtype}-{name}"]
    found = outcomes(adapter, problem.inputs(), lambda: adapter.forward(problem.inputs()))
    return any(outcome.status.rejects for outcome in found)


@pytest.mark.parametrize("name", CASES)
def test_one_problem_shows_it_and_passes_its_twin(name: str) -> None:
    shown, hidden = CASES[name]
    right = host_of(FAULTS[name]).right(FAULTS[name])
    assert rejected(faulty(name), shown)
    assert not rejected(faulty(name), hidden)
    assert not rejected(right, shown)


def test_positions_past_256_show_where_there_are_as_many_queries() -> None:
    """A kernel with another causal border is tested on squares alone."""
    assert rejected(faulty("PORT-positions"), "positions-past-256")


@pytest.mark.parametrize("logits", REGIMES)
def test_requests_of_any_length_have_every_regime(logits: Any) -> None:
    for length in (0, 1, 2):
        call = MlaDecodeProblem(k_lengths=(length, 3), logits=logits).inputs()
        assert call.cache_seqlens.tolist() == [length, 3]


@pytest.mark.parametrize("value", VALUES)
def test_requests_of_any_length_have_all_values(value: Any) -> None:
    pack = AttentionProblem(q_lengths=(1, 2), k_lengths=(0, 1), s_q=3, s_k=1, value=value)
    assert pack.inputs().v.shape == (1, 1, 1, 8)


@pytest.mark.parametrize("name", ["no-sink", "sink-factor", "concatenation", "heads-reversed"])
def test_laws_hold_where_an_error_of_lse_has_no_bound(name: str) -> None:
    """Logits of -64,000 of keys that are dequantised to 16 bits."""
    adapter = find("eager-sparse-fp8")
    law = SPARSE_LAWS[name]
    problem = SPARSE.probe("bf16").replace(logits="lowest", **law.wanted)
    problem = SPARSE.within(adapter, problem)
    found = law.check(adapter, problem)
    assert {outcome.status for outcome in found} == {Status.PASS}


@pytest.mark.parametrize("row_sum", ["rounded", "free"])
@pytest.mark.parametrize("logits", ["normal", "rising", "plateau"])
def test_the_law_of_merges_counts_that_row_sums_are_of_rounded_weights(
    row_sum: str, logits: Any
) -> None:
    """A right port was rejected by problems of more than a few keys."""
    patch = patched(design=replace(PLAIN, row_sum="rounded"))
    declared = contracts(f"online64-{{0}}[row_sum:{row_sum}]", dtypes=("bf16",))
    kernel = AttentionKernel(patch).mla_decode
    adapter = adapted(kernel, "mla_decode", "rounded sums", dtypes=("bf16",), contract=declared)
    law = DECODE_LAWS["concatenation"]
    problem = MLA_DECODE.probe("bf16").replace(logits=logits, **law.wanted)
    found = law.check(adapter, MLA_DECODE.within(adapter, problem))
    assert {outcome.status for outcome in found} == {Status.PASS}
