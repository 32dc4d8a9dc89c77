"""The vendor's kernels, interpreted: accuracy, dispatch,
and bits that do not depend on how fast they were had.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.adapters.triton_interpreter.processes import printed, with_fla

pytestmark = [with_fla, pytest.mark.whole_run]

BOUNDS = {"fp32": 3e-6, "fp16": 1e-3, "bf16": 8e-3}
ASCEND = "fla.ops.kda.backends.triton_ascend."
MAINLINE = "fla.ops.kda."


@pytest.fixture(scope="module")
def cuda() -> dict[str, Any]:
    return printed("kda", "cuda", *BOUNDS)


@pytest.fixture(scope="module")
def npu() -> dict[str, Any]:
    return printed("kda", "npu", *BOUNDS)


def of_kda(run: dict[str, Any]) -> list[str]:
    return [
        name for kernels in run["kernels"].values() for name in kernels if name.startswith(MAINLINE)
    ]


@pytest.mark.parametrize("format_name", BOUNDS)
@pytest.mark.parametrize("backend", ["cuda", "npu"])
def test_results_and_gradients_are_those_of_the_recurrence(
    request: pytest.FixtureRequest, backend: str, format_name: str
) -> None:
    errors = request.getfixturevalue(backend)[format_name]["errors"]
    assert len(errors) == 18
    assert max(errors.values()) < BOUNDS[format_name]


def test_rounded_operands_fail_the_bound(cuda: dict[str, Any]) -> None:
    errors = cuda["tf32"]["errors"]
    assert (
        min(errors[name] for name in errors if name.startswith(("chunk", "gradient")))
        > BOUNDS["fp32"]
    )


def test_ascend_kernels_and_no_others_of_kda_run_for_npu(npu: dict[str, Any]) -> None:
    for run in npu.values():
        assert of_kda(run) and all(name.startswith(ASCEND) for name in of_kda(run))
        assert any("token_parallel" in name for name in run["kernels"]["chunk"])
        assert not any("token_parallel" in name for name in run["kernels"]["safe"])


def test_a_dispatch_that_fell_back_is_seen() -> None:
    run = printed("kda", "npu", "fp32", FLA_DISABLE_BACKEND_DISPATCH="1")["fp32"]
    assert of_kda(run) and not any(name.startswith(ASCEND) for name in of_kda(run))


def test_cuda_kernels_run_for_cuda(cuda: dict[str, Any]) -> None:
    assert of_kda(cuda["fp32"]) and not any(
        name.startswith(ASCEND) for name in of_kda(cuda["fp32"])
    )


def test_faster_bookkeeping_changes_no_bit(cuda: dict[str, Any]) -> None:
    assert printed("kda", "cuda", "bf16", "plain")["bf16"]["digest"] == cuda["bf16"]["digest"]
    assert cuda["tf32"]["digest"] != cuda["fp32"]["digest"]
