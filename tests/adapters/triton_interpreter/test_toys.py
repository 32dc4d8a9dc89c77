"""What interpreted kernels could not do without the patches, shown on kernels of a few lines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kdaverify.adapters.triton_interpreter.formats import to_tf32
from tests.adapters.triton_interpreter.processes import interpreting, printed

# Kernels of a few lines, but a minute of them.
pytestmark = [interpreting, pytest.mark.whole_run]

TUNED = "tests.adapters.triton_interpreter.toys.tuned"
THIRD = float(np.float32(1 / 3))
FAULTS = (
    *(
        "truncating cast",
        "ties away from zero",
        "flushed subnormals",
        "sums of bits",
        "order of bits",
    ),
    *("a constant of 0", "sum rounded once", "largest of bits"),
)


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    return printed("observe", "gaps", "tuning", "faults", "bookkeeping")


@pytest.mark.parametrize(
    ("loop", "total"), [("python_loop", 45), ("language_loop", 18), ("stepped", 18)]
)
def test_loop_indices_are_tensors(seen: dict[str, Any], loop: str, total: int) -> None:
    assert seen["gaps"][loop] == total


def test_a_grid_looks_at_the_tensors_of_the_call_and_fills_them(seen: dict[str, Any]) -> None:
    assert seen["gaps"]["numbered"] == [2, 2, 0]


def test_gather_bound_before_the_first_launch_works(seen: dict[str, Any]) -> None:
    assert seen["gaps"]["gathered"] == list(range(15, -1, -1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_an_argument_is_fp32_and_a_constant_has_the_format_of_its_tensor(
    seen: dict[str, Any], dtype: torch.dtype
) -> None:
    tenth = torch.tensor(0.1)
    assert seen["gaps"][f"scaled {dtype}"] == [tenth.item(), tenth.to(dtype).item()]


@pytest.mark.parametrize("precision", ["ieee", "tf32", "bf16x3"])
def test_every_input_precision_is_taken_and_computed_in_fp32(
    seen: dict[str, Any], precision: str
) -> None:
    assert seen["gaps"][precision] == THIRD


def test_tf32_rounds_operands_of_one_pass_products_only(seen: dict[str, Any]) -> None:
    rounded = float(to_tf32(np.array([THIRD]))[0])
    assert rounded != THIRD
    assert seen["gaps"]["rounded"] == {"ieee": THIRD, "tf32": rounded, "tf32x3": THIRD}


def test_what_is_not_emulated_is_refused(seen: dict[str, Any]) -> None:
    assert "atomic addition of bf16 is not emulated" in seen["gaps"]["atomic"]


def test_every_configuration_can_be_forced(seen: dict[str, Any]) -> None:
    ran = {choice: block for choice, (block, _) in seen["tuning"]["ran"].items()}
    assert ran == {"0": 16, "1": 32, "2": 64, "3": 16, "-1": 64}


def test_configurations_and_choices_are_remembered(seen: dict[str, Any]) -> None:
    offered = seen["tuning"]["offered"][TUNED]
    assert [configuration.split(",")[0] for configuration in offered] == [
        "BLOCK: 16",
        "BLOCK: 32",
        "BLOCK: 64",
    ]
    assert seen["tuning"]["ran"]["1"][1] == offered[1]


def test_launched_kernels_are_named_until_forgotten(seen: dict[str, Any]) -> None:
    tuning = seen["tuning"]
    assert (tuning["before"], tuning["kernels"], tuning["forgotten"]) == ([], [TUNED], [])


def test_bf16_is_proved_at_start_up_by_kernels_nobody_counts(seen: dict[str, Any]) -> None:
    assert (seen["faults"]["sound"], seen["faults"]["kernels"]) == (None, [])


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_bf16_is_refused(seen: dict[str, Any], fault: str) -> None:
    assert str(seen["faults"][fault]).startswith("interpreted bf16 is not bf16 (")


def test_shortcuts_of_the_bookkeeping_agree_with_triton(seen: dict[str, Any]) -> None:
    assert seen["bookkeeping"]["tried"] > 1000
    assert seen["bookkeeping"]["differing"] == []
    assert seen["bookkeeping"]["operators differing"] == []


def test_a_wrong_shortcut_of_the_bookkeeping_is_seen(seen: dict[str, Any]) -> None:
    assert seen["bookkeeping"]["under a fault"]
    assert seen["bookkeeping"]["operators under a fault"]
