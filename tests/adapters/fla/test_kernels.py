"""The kernels that FLA ships are right where they should be, under every option, and the verdict
names them and says interpreted.
"""

from __future__ import annotations

from typing import Any

import pytest

from kdaverify.adapters import Adapter, WrongKernelError
from kdaverify.adapters.fla.adapter import Fla
from kdaverify.adapters.fla.options import FlaOptions
from kdaverify.adapters.fla.recurrence import Form
from kdaverify.adapters.isolation import CallFailure, Isolated
from kdaverify.checks.conventions import conventions
from kdaverify.checks.forward import forward, variant_of
from kdaverify.checks.status import Status
from kdaverify.limits import Limits
from tests.adapters.fla.conftest import CHUNKS, RECURRENCES, House
from tests.adapters.standins import MakeProblem

pytestmark = pytest.mark.whole_run

HOMES = {"fla": "kda.chunk_intra", "triton_npu": "kda.backends.triton_ascend.chunk_intra"}
VARIANTS = list(Fla("fla", "cuda", "chunk").variants())
RECURRENT_VARIANTS = list(Fla("fla-recurrent", "cuda", "recurrent").variants())


def statuses(adapter: Adapter, make_problem: MakeProblem, **changes: object) -> set[Status]:
    problem = make_problem(**changes)
    assert adapter.supports(problem) is None
    return {outcome.status for outcome in forward(adapter, problem)}


@pytest.mark.rotates
@pytest.mark.parametrize("name", CHUNKS)
@pytest.mark.parametrize(
    "changes",
    [{"T": 70}, {"B": 1, "H": 1, "HV": 2, "lengths": (0, 5, 66, 0), "T": 71}],
    ids=["tail", "pack, groups"],
)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_ordinary_problems_pass_in_every_format(
    house: House, make_problem: MakeProblem, name: str, dtype: str, changes: dict[str, object]
) -> None:
    adapter = house(name)
    assert statuses(adapter, make_problem, dtype=dtype, **changes) == {Status.PASS}
    assert HOMES[name] in adapter.proof()
    assert adapter.environment()["mode"] == "interpreted" or adapter.device != "cpu"


@pytest.mark.parametrize("name", RECURRENCES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_recurrences_pass_too(
    house: House, make_problem: MakeProblem, name: str, dtype: str
) -> None:
    assert statuses(house(name), make_problem, dtype=dtype) == {Status.PASS}
    assert "fused_recurrent" in house(name).proof()


@pytest.mark.rotates
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_option_gives_what_the_plain_call_gives(
    house: House, make_problem: MakeProblem, variant: str
) -> None:
    other = variant_of(house("triton_npu"), variant)
    assert statuses(other, make_problem, B=1, H=1, HV=1, dtype="bf16", gate="mild") == {Status.PASS}
    assert "triton_ascend" in other.proof()


@pytest.mark.rotates
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("variant", RECURRENT_VARIANTS)
def test_what_a_recurrence_activates_and_normalises_itself_passes(
    house: House, make_problem: MakeProblem, variant: str, dtype: str
) -> None:
    other = variant_of(house("fla-recurrent"), variant)
    assert statuses(other, make_problem, dtype=dtype, gate="mild") == {Status.PASS}


@pytest.mark.rotates
@pytest.mark.parametrize("name", ["UNBIASED", "UNDOUBLED", "UNNORMALISED", "UNBOUNDED", "LOGITS"])
def test_what_a_recurrence_forgets_to_do_itself_is_rejected(
    house: House, make_problem: MakeProblem, name: str
) -> None:
    house("fla-recurrent")
    forgetful = Isolated(globals()[name], f"{__name__}:{name}", limits=Limits())
    try:
        assert any(
            status.rejects
            for status in statuses(forgetful, make_problem, dtype="bf16", gate="mild")
        )
    finally:
        forgetful.end()


@pytest.mark.parametrize("name", CHUNKS)
def test_the_declared_conventions_are_the_kernels_own(house: House, name: str) -> None:
    assert conventions(house(name)).status is Status.PASS


def test_a_state_declared_the_wrong_way_round_is_rejected(
    house: House, make_problem: MakeProblem
) -> None:
    house("fla")
    backwards = Isolated(BACKWARDS, f"{__name__}:BACKWARDS", limits=Limits())
    try:
        assert any(status.rejects for status in statuses(backwards, make_problem, K=8, V=8))
    finally:
        backwards.end()


def test_a_dispatch_that_fell_back_is_the_wrong_kernel(
    house: House, make_problem: MakeProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    house("triton_npu")
    monkeypatch.setenv("FLA_DISABLE_BACKEND_DISPATCH", "1")  # what a user's shell may hold
    fallen = Isolated(Fla("triton_npu", "npu", "chunk"), "triton_npu", limits=Limits())
    try:
        with pytest.raises((CallFailure, WrongKernelError), match="wanted the npu kernels"):
            fallen.forward(make_problem(B=1, H=1, HV=1, dtype="fp32").inputs())
    finally:
        fallen.end()


def test_widths_that_are_no_powers_of_two_are_taken(
    house: House, make_problem: MakeProblem
) -> None:
    assert statuses(
        house("triton_npu"), make_problem, B=1, H=1, HV=1, K=24, V=20, dtype="fp16"
    ) == {Status.PASS}


class _Backwards(Fla):
    """Says that its state is value-first, and leaves the kernel alone."""

    def __init__(self) -> None:
        super().__init__("backwards", "cuda", "chunk")
        self.conventions = type(self.conventions)(packing="cu_seqlens", state="vk")


BACKWARDS = _Backwards()


class _Forgetful(Fla):
    """A recurrence that gets other flags than those of the call."""

    def __init__(self, options: FlaOptions, **forgotten: Any) -> None:
        super().__init__("fla-recurrent", "cuda", "recurrent", options)
        self._forgotten = forgotten

    def _flags(self, form: Form) -> dict[str, Any]:
        return {**super()._flags(form), **self._forgotten}


UNBIASED = _Forgetful(FlaOptions(gate="softplus"), dt_bias=None)
UNBOUNDED = _Forgetful(FlaOptions(gate="bounded"), lower_bound=None)
UNDOUBLED = _Forgetful(FlaOptions(beta="doubled"), allow_neg_eigval=False)
LOGITS = _Forgetful(FlaOptions(beta="sigmoid"), use_beta_sigmoid_in_kernel=False)
UNNORMALISED = _Forgetful(FlaOptions(l2norm="yes"), use_qk_l2norm_in_kernel=False)
