"""Each fault of lists and of quantised rows is rejected where the same kernel without it passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kdaverify.adapters import find
from kdaverify.adapters.attention_layout import contracts
from kdaverify.adapters.base import Adapter
from kdaverify.checks.gradients import gradients
from kdaverify.checks.outcome import outcomes
from kdaverify.diagnosis.diagnose import diagnose
from kdaverify.diagnosis.minimise import failure
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.faults.attention import lists, quantised
from kdaverify.faults.attention.list_kernel import CACHES, ListPatch, adapted
from kdaverify.faults.catalogue import FAULTS
from kdaverify.faults.fault import Fault, Setting
from kdaverify.faults.hosts import HOSTS, host_of
from kdaverify.operators.attention.sparse import SPARSE

OF_LISTS = (*lists.FAULTS, *quantised.FAULTS)
LAWS = {"fp8-5": "nan-shows"}
"""By law alone: no problem has NaN in a slot that is named."""
CALLS = {"attention-Q9", "lists-26"}
"""By rules of calls alone: see `test_call_rules`."""
SIZES = {"lists-24"}
"""By a size of one format: see `test_special_sizes`."""


def _rejected(adapter: Adapter, dtype: str, name: str, *, backward: bool = False) -> bool:
    problem = dict(SPARSE.panel(adapter, "smoke"))[f"{dtype}-{name}"]
    found = (
        gradients(adapter, problem, of="both")
        if backward
        else outcomes(adapter, problem.inputs(), lambda: adapter.forward(problem.inputs()))
    )
    return any(outcome.status.rejects for outcome in found)


def _shown(adapter: Adapter, dtype: str, *, backward: bool = False) -> str:
    """The first problem of the panel that rejects it; "" where none does."""
    names = [name for name, _ in SPARSE.panel(adapter, "smoke") if name.startswith(f"{dtype}-")]
    cut = len(dtype) + 1
    rejected = (n for n in names if _rejected(adapter, dtype, n[cut:], backward=backward))
    return next(rejected, "")


@pytest.mark.whole_run
@pytest.mark.rotates
@pytest.mark.parametrize(
    "fault",
    [x for x in OF_LISTS if x.id not in {*LAWS, *CALLS, *SIZES}],
    ids=lambda fault: fault.id,
)
def test_the_panel_rejects_it_and_not_its_twin(fault: Fault) -> None:
    backward = {*fault.outputs} <= {"dq", "dcache", "dsink"}
    for dtype in (fault.dtypes[0], "bf16"):
        name = _shown(find(f"fault:{fault.id}"), dtype, backward=backward)
        assert name, dtype
        right, case = host_of(fault).right(fault), name[len(dtype) + 1 :]
        assert not _rejected(right, dtype, case, backward=backward)


@pytest.mark.parametrize("name", LAWS)
def test_a_law_rejects_it_and_not_its_twin(name: str) -> None:
    fault, law = FAULTS[name], SPARSE.laws()[LAWS[name]]
    for adapter, wrong in ((find(f"fault:{name}"), True), (host_of(fault).right(fault), False)):
        problem = SPARSE.within(adapter, SPARSE.probe("bf16"))
        found = law.check(adapter, problem)
        assert any(outcome.status.rejects for outcome in found) == wrong


@pytest.mark.parametrize("guarded", [True, False])
def test_a_row_of_a_slot_that_is_not_a_number_may_be_that_of_no_keys(*, guarded: bool) -> None:
    def call(right: Callable[..., Any], given: dict[str, Any]) -> Any:
        if guarded:
            o, lse = right(**given)
            return o.nan_to_num(0.0), lse
        # as if the slot were in no list
        skipped = given["cache"].isnan().any(-1).flatten()
        seen = (given["indices"] >= 0) & (given["indices"] < len(skipped))
        lost = seen & skipped[given["indices"].clamp(0, len(skipped) - 1).long()]
        return right(**given | {"indices": given["indices"].masked_fill(lost, -1)})

    adapter = adapted(ListPatch(call=call), "sparse_attention", "NaN in o")
    problem = SPARSE.within(adapter, SPARSE.probe("bf16"))
    found = SPARSE.laws()["nan-shows"].check(adapter, problem)
    assert any(outcome.status.rejects for outcome in found) != guarded


def test_a_slot_times_0_may_spread_where_a_kernel_declares_finite_slots() -> None:
    def call(right: Callable[..., Any], given: dict[str, Any]) -> Any:
        o, lse = right(**given)
        return o + 0.0 * given["cache"].sum(), lse

    for unused, wrong in (("finite", False), ("anything", True)):
        adapter = adapted(ListPatch(call=call), "sparse_attention", "0 times NaN", unused=unused)
        problem = SPARSE.within(adapter, SPARSE.probe("bf16"))
        found = SPARSE.laws()["nan-shows"].check(adapter, problem)
        assert any(outcome.status.rejects for outcome in found) == wrong


def test_scales_of_the_first_call_show_in_the_second() -> None:
    adapter = find("fault:attention-Q9")
    problem = SPARSE.within(adapter, SPARSE.probe("bf16"))
    assert failure(adapter, PropertyCase("forward", problem)) is None
    assert failure(adapter, PropertyCase("forward", problem.replace(seed=9))) is not None


@pytest.mark.rotates
@pytest.mark.parametrize("host", CACHES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_the_right_kernel_is_accepted(host: str, dtype: str) -> None:
    adapter = adapted(ListPatch(), host, f"conforming {host}")
    assert HOSTS[host].op == "sparse_attention"
    names = [name for name, _ in SPARSE.panel(adapter, "smoke") if name.startswith(dtype)]
    for backward in {False, adapter.differentiable}:
        assert not [
            n
            for n in names[backward :: 5 if dtype == "bf16" else 9]
            if _rejected(adapter, dtype, n[len(dtype) + 1 :], backward=backward)
        ]


def test_a_scale_in_bf16_is_right_where_it_is_declared() -> None:
    patch = FAULTS["attention-Q4"].patch(Setting(1.0, None))  # pyright: ignore[reportArgumentType]
    declared = contracts("online64-{0}[K_scale:bf16]", dtypes=("bf16",))
    adapter = adapted(patch, "sparse_fp8", "scale in bf16", dtypes=("bf16",), contract=declared)
    assert _shown(adapter, "bf16") == ""


@pytest.mark.rotates
@pytest.mark.parametrize("name", ["lists-4", "attention-Q2", "fp8-1", "lists-14", "lists-20"])
def test_the_diagnosis_names_it_first(name: str) -> None:
    fault, adapter = FAULTS[name], find(f"fault:{name}")
    problem = SPARSE.within(adapter, SPARSE.probe("fp32").replace(d_v=256, d_k=264))
    backward = {*fault.outputs} <= {"dcache", "dsink"}
    of_both = PropertyCase("gradients", problem, {"of": "both"})
    case = of_both if backward else PropertyCase("forward", problem)
    assert failure(host_of(fault).right(fault), case) is None
    found = diagnose(adapter, case, seconds=20.0)
    assert str(found).startswith(f"matches known bug {name}: {fault.title}")
