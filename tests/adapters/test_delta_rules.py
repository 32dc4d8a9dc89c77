"""The shipped implementations with one gate a head, or none:
controls pass, in every format, there and back.
"""

from __future__ import annotations

import pytest
import torch

from kdaverify.adapters import Adapter, WrongKernelError, find
from kdaverify.adapters.fla.delta import GATED_ASCEND, FlaDelta
from kdaverify.adapters.isolation import CallFailure, Isolated, housed
from kdaverify.adapters.shipped import SHIPPED
from kdaverify.checks.forward import forward
from kdaverify.checks.gradients import gradients
from kdaverify.checks.status import Status
from kdaverify.limits import Limits
from kdaverify.problems import Problem

KERNELS = {
    "transformers-gdn-recurrent": "torch_recurrent_gated_delta_rule (line",
    "transformers-gdn-chunk": "torch_chunk_gated_delta_rule (line",
    "onnxruntime-gdn": "LinearAttention on CPUExecutionProvider",
    "onnxruntime-delta": "LinearAttention on CPUExecutionProvider",
    "fla-gdn": "gated_delta_rule.chunk_fwd",
    "fla-gdn-recurrent": "gated_delta_rule.fused_recurrent",
    "triton_npu-gdn": "gated_delta_rule.backends.triton_ascend.wy_fast",
    "emulated:triton_npu_gdn": "triton_npu_gdn in torch, emulated",
    "fla-delta": "delta_rule.wy_fast",
    "fla-delta-recurrent": "delta_rule.fused_recurrent",
    "fla-delta-product": "gated_delta_product.chunk_deltaproduct_h",
    "fla-delta-product-grouped": "gated_delta_product.chunk_deltaproduct_h",
}
CASES = [(name, dtype) for name in KERNELS for dtype in find(name).dtypes]
PLAIN = Problem(
    B=1,
    T=70,
    H=1,
    HV=2,
    K=16,
    V=8,
    dtype="fp32",
    gate="log-sigmoid",
    key="random",
    beta="uniform",
    state="random",
    value="normal",
    seed=4,
)


def installed(name: str) -> Adapter:
    adapter = find(name)
    if reason := adapter.missing():
        pytest.skip(reason)
    return housed(adapter, name, limits=Limits()) if adapter.isolated else adapter


def test_every_shipped_one_is_tested_here() -> None:
    here = {name for name in SHIPPED if find(name).missing() is None}
    assert here & {*KERNELS} == {name for name in here if find(name).domain.gates != "channel"}


@pytest.mark.whole_run
@pytest.mark.rotates(14)
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_a_control_passes(name: str, dtype: str) -> None:
    adapter = installed(name)
    problem = adapter.domain.fit(PLAIN.replace(dtype=dtype))
    assert adapter.supports(problem) is None
    try:
        found = [
            *forward(adapter, problem),
            *(gradients(adapter, problem, of="both") if adapter.differentiable else []),
        ]
        ran = adapter.proof()
    finally:
        adapter.end()
    assert [str(outcome) for outcome in found if outcome.status is not Status.PASS] == []
    assert len(found) == (2 if not adapter.differentiable else 8 if problem.gates == "head" else 7)
    assert KERNELS[name] in ran


@pytest.mark.whole_run
@pytest.mark.parametrize("name", ["LEFT_TO_CPU", "triton_npu-gdn"])
def test_ascend_kernels_beside_others_are_the_wrong_ones(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Two functions decline tensors on a CPU; without dispatch, all do."""
    adapter = find("triton_npu-gdn")
    if reason := adapter.missing():
        pytest.skip(reason)
    if name == "LEFT_TO_CPU":
        adapter, name = LEFT_TO_CPU, f"{__name__}:{name}"
    else:
        monkeypatch.setenv("FLA_DISABLE_BACKEND_DISPATCH", "1")  # what a user's shell may hold
    isolated = Isolated(adapter, name, limits=Limits())
    try:
        with pytest.raises((CallFailure, WrongKernelError), match="wanted kernels of"):
            isolated.forward(PLAIN.replace(gates="head").inputs())
    finally:
        isolated.end()


@pytest.mark.parametrize("name", ["transformers-gdn-chunk", "fla-gdn"])
def test_another_number_of_gates_is_refused_in_words(name: str) -> None:
    said = find(name).supports(PLAIN)
    assert said == "no gates of every key channel: it takes one gate a head"
    assert (
        find("eager").supports(PLAIN.replace(gates="head"))
        == "no one gate a head: it takes gates of every key channel"
    )


def test_a_gate_of_the_head_is_handed_over_in_the_callers_memory() -> None:
    x = PLAIN.replace(gates="head").inputs()
    handed = find("fla-gdn").conventions.arguments(x)["g"]
    assert (
        handed.shape == (1, 70, 2)
        and handed.is_contiguous()
        and handed.data_ptr() == x.g.data_ptr()
    )
    assert torch.equal(x.decays[..., :1], x.g) and x.decays.shape == (1, 70, 2, 16)


class _LeftToCpu(FlaDelta):
    """Leaves the verifiers of the Ascend backend as they are, which want an NPU's tensors."""

    def _prepare(self) -> None:
        pass


LEFT_TO_CPU = _LeftToCpu("left-to-cpu", GATED_ASCEND, "chunk", gated=True, backend="npu")
