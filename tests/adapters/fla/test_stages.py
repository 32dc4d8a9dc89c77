"""The stage functions of FLA and of its Ascend kernels, interpreted in worker processes: legal, and wrong ones named."""

from __future__ import annotations

from typing import Any

import pytest

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.fla.adapter import Fla
from kdaverify.adapters.fla.stages import FUNCTIONS
from kdaverify.adapters.isolation import Isolated
from kdaverify.adapters.stages import StageArguments, StageCall
from kdaverify.checks.stages import FEEDS, first_wrong, stages
from kdaverify.checks.status import Status
from kdaverify.limits import Limits
from tests.adapters.fla.conftest import CHUNKS, House
from tests.adapters.standins import Ask

PACK: dict[str, Any] = {"B": 1, "H": 1, "HV": 2, "lengths": (5, 0, 64), "T": 70}
SOME = {"gate": "slow", "key": "coherent-0.9"}


@pytest.mark.parametrize("name", CHUNKS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_every_stage_function_is_legal_on_exact_inputs_and_on_its_own(house: House, ask: Ask, name: str, dtype: str) -> None:
    for feed in FEEDS:
        found = stages(house(name), ask(dtype=dtype, **PACK, **SOME), feed=feed)
        assert {outcome.status for outcome in found} == {Status.PASS}
        assert list(dict.fromkeys(outcome.output.partition(".")[0] for outcome in found)) == list(FUNCTIONS)


def test_anchored_diagonal_blocks_are_legal_too(house: House, ask: Ask) -> None:
    safe = house("triton_npu").configured({"safe_gate": "yes"})
    assert first_wrong(safe, ask(dtype="bf16", **PACK)) is None


def test_hard_resets_are_not_asked_of_functions_that_take_cumulative_gates(house: House, ask: Ask) -> None:
    assert {outcome.status for outcome in stages(house("fla"), ask(dtype="bf16", gate="hard-reset"))} == {Status.SKIP}


class _Faulty(Fla):
    """FLA's stages, with v_new in the place of u."""

    def stages(self, dtype: str) -> dict[str, StageCall]:
        calls = dict(super().stages(dtype))
        state = calls["state"]

        def call(x: StageArguments) -> Any:
            return {**state.call(x), "v_new": x.tensors["u"]}

        calls["state"] = StageCall(state.covers, state.takes, state.gives, call, received=state.received)
        return calls


FAULTY = _Faulty("faulty", "cuda", "chunk")


def test_a_wrong_stage_in_a_worker_process_is_named(house: House, ask: Ask) -> None:
    house("fla")
    faulty: Adapter = Isolated(FAULTY, f"{__name__}:FAULTY", limits=Limits())
    try:
        assert first_wrong(faulty, ask(dtype="bf16", **PACK)) == "state"
    finally:
        faulty.end()
