"""Packages of softmax attention: each is called once, and a wrong call of one is rejected."""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch
from torch import Tensor

from kdaverify.adapters import torch_attention
from kdaverify.adapters.attention_layout import contracts
from kdaverify.adapters.frameworks import FRAMEWORKS
from kdaverify.adapters.isolation.isolated import housed
from kdaverify.adapters.operator_kernel import operator_kernel
from kdaverify.adapters.registry import find
from kdaverify.budgets.attention.contract import attention_contract
from kdaverify.budgets.formats import FORMATS
from kdaverify.checks.forward import forward
from kdaverify.checks.outcome import Outcome, declined
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.limits import Limits
from kdaverify.operators.attention.merge_problem import MergeProblem
from kdaverify.operators.attention.problem import AttentionProblem, MlaDecodeProblem
from kdaverify.operators.attention.tolerance import counted

PACKAGES: Final = (
    "torch-sdpa-flash",
    "torch-sdpa-math",
    "torch-flex",
    "jax-nn-attention",
    "pallas-flash",
    "pallas-splash",
    "pallas-mha",
    "pallas-decode",
    "onnxruntime-attention",
    "transformers-eager-attention",
    "mlx-attention",
)
DEVICE: Final = ("torch-sdpa-efficient", "torch-sdpa-cudnn", "torch-flex-compiled")
MERGES: Final = ("torch-ring-merge", "vllm-triton-merge", "vllm-torch-merge")
"""Of problems without empty parts: two of them are right there."""


def _judged(adapter: Any, problem: Any) -> list[Outcome]:
    if reason := adapter.missing() or adapter.supports(problem):
        pytest.skip(reason)
    # Triton cannot be interpreted in a process that has imported it to compile.
    judged = housed(adapter, adapter.name, limits=Limits()) if adapter.isolated else adapter
    try:
        return list(forward(judged, problem))
    finally:
        judged.end()


def _ordinary(adapter: Any) -> AttentionProblem:
    one = adapter.name == "pallas-decode"
    problem = AttentionProblem(s_q=1 if one else 70, s_k=70, H=4, h_kv=2, d_k=24, d_v=16)
    return adapter.operator.within(adapter, problem)


@pytest.mark.rotates
@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_is_within_tolerance_in_fp32(name: str) -> None:
    adapter = find(name)
    outcomes = _judged(adapter, _ordinary(adapter))
    assert [one.output for one in outcomes] == [*adapter.takes.returns]
    assert [one.message for one in outcomes if one.status.rejects] == []


@pytest.mark.parametrize("name", MERGES)
def test_a_merge_is_within_tolerance_where_no_part_is_empty(name: str) -> None:
    outcomes = _judged(find(name), MergeProblem(T=5, H=3, d_v=8))
    assert [one.message for one in outcomes if one.status.rejects] == []


def test_flash_mla_is_tested_on_the_one_shape_that_it_is_compiled_for() -> None:
    flash_mla: Any = find("flash_mla")
    fitted = flash_mla.operator.within(flash_mla, MlaDecodeProblem(k_lengths=(70, 0), h_kv=2))
    assert (fitted.d_k, fitted.d_v, fitted.page, fitted.h_kv) == (576, 512, 64, 1)
    assert flash_mla.supports(fitted) is None


def test_flash_mla_is_within_tolerance_on_a_gpu() -> None:
    flash_mla: Any = find("flash_mla")
    problem = MlaDecodeProblem(dtype="bf16", k_lengths=(70, 0, 300), s_q=2, H=6)
    outcomes = _judged(flash_mla, flash_mla.operator.within(flash_mla, problem))
    assert [one.message for one in outcomes if one.status.rejects] == []


def test_the_decode_kernel_of_vllm_is_within_tolerance_where_no_request_is_empty() -> None:
    problem = MlaDecodeProblem(k_lengths=(1, 17, 70), H=4, d_k=24, d_v=16)
    outcomes = _judged(find("vllm-triton-decode"), problem)
    assert [one.message for one in outcomes if one.status.rejects] == []


@pytest.mark.parametrize("name", DEVICE)
def test_paths_of_a_device_are_missing_without_it(name: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert "no device 'cuda' here" in (find(name).missing() or "")


def test_the_lse_of_torch_in_bf16_is_rejected_and_its_o_is_not() -> None:
    problem = AttentionProblem(dtype="bf16", s_q=65, s_k=65, H=2, h_kv=2, d_k=32, d_v=32)
    outcomes = _judged(torch_attention.SDPA_FLASH, problem)
    assert [one.output for one in outcomes if one.status.rejects] == ["lse"]


def test_laws_bound_an_lse_in_the_format_that_is_declared() -> None:
    adapter = find("jax-nn-attention")
    problem = AttentionProblem(
        dtype="bf16", s_q=3, s_k=9, H=3, h_kv=1, d_k=16, d_v=16, logits="peaked"
    )
    if reason := adapter.missing():
        pytest.skip(reason)
    outcomes = check("laws", adapter, problem, {"law": "concatenation"})
    assert [(one.output, one.status) for one in outcomes] == [
        ("o", Status.PASS),
        ("lse", Status.PASS),
    ]
    contract: Any = adapter.contract("bf16")
    call = problem.inputs()
    narrow, wide = (
        counted(call, None, one, FORMATS["bf16"])["lse"][1].bound
        for one in (contract, attention_contract("math-bf16", FORMATS["bf16"]))
    )
    assert bool((narrow > 100 * wide).all())


def test_the_scale_of_the_tpu_kernels_leans_to_no_side() -> None:
    """As one that is rounded to 16 bits itself does: dq had 1.1 times the bias it may have."""
    adapter = find("pallas-splash")
    problem = AttentionProblem(
        dtype="fp16", s_q=4, s_k=127, H=9, h_kv=3, d_k=40, d_v=24, causal=False, seed=1
    )
    if reason := adapter.missing():
        pytest.skip(reason)
    outcomes = check("gradients", adapter, problem, {"of": "both"})
    assert [one.message for one in outcomes if one.status.rejects] == []


@pytest.mark.parametrize(("said", "status"), [
    ("No available kernel. Aborting execution.", Status.SKIP),
    ("cutlassF: no kernel found to launch!", Status.SKIP),
    ("mha_graph.execute failed", Status.ERROR),
])  # fmt: skip
def test_a_shape_that_no_kernel_of_a_path_takes_is_not_tested(
    monkeypatch: pytest.MonkeyPatch, said: str, status: Status
) -> None:
    def raises(*_: Any, **__: Any) -> Any:
        raise RuntimeError(said)

    monkeypatch.setattr(torch_attention.functional, "scaled_dot_product_attention", raises)
    adapter = torch_attention.SDPA_MATH
    assert {one.status for one in declined(_judged(adapter, _ordinary(adapter)))} == {status}


@pytest.mark.parametrize("factor", [1.1, 3.0**0.5])
def test_a_package_called_with_a_wrong_scale_is_rejected(factor: float) -> None:
    def wrong(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, causal: bool) -> Any:
        return torch_attention.FLEX(q, k, v, softmax_scale=factor * softmax_scale, causal=causal)

    options = {"name": "wrong", "dtypes": ("fp32",), "contract": contracts("math-{0}")["fp32"]}
    adapter = operator_kernel("attention", wrong, options, FRAMEWORKS["torch"])
    outcomes = _judged(adapter, _ordinary(adapter))
    assert {one.output for one in outcomes if one.status.rejects} == {"o", "lse"}
