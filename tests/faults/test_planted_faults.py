"""Every planted fault is rejected by the suite one would expect, and its right twins pass every suite."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kdaverify

KERNELS = Path(__file__).with_name("kernels.py")
RIGHT = ("right_fp32", "right_bf16")
# fault -> the suites that must reject it (faults.md: O1, H1, O2, H6, H8, S8, C2, GA2, GA4, SO1, O6, V10 and design faults a to e)
EXPECTED = {
    "decay_on_the_value_axis": {"forward", "resume"},
    "key_decay_applied_twice": {"forward", "panel"},
    "output_terms_share_a_tile": {"forward", "panel"},
    "last_gate_from_padding": {"forward", "state"},
    "resume_drops_partial_chunk": {"resume", "state"},
    "state_transposed_where_square": {"resume"},
    "beta_in_bf16": {"forward", "panel"},
    "log_of_alpha_plus_eps": {"forward", "extreme_gates"},
    "exp_of_minus_cumsum": {"extreme_gates"},
    "doubling_inverse_in_bf16": {"panel", "extreme_gates"},
    "one_token_zeroed": {"panel", "forward"},
    "ignores_cu_seqlens": {"packing"},
}


@pytest.fixture(scope="module")
def verdict(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One run of the whole smoke profile on every kernel of the table."""
    record = tmp_path_factory.mktemp("planted") / "verdicts.json"
    impls = [word for name in (*RIGHT, *EXPECTED) for word in ("--impl", f"{KERNELS}:{name}")]
    command = [
        sys.executable,
        "-m",
        "kdaverify",
        "verify",
        *impls,
        "--json",
        str(record),
        "--record",
        str(record.with_suffix(".jsonl")),
        "--workers",
        "2",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 1, f"wanted a rejection (exit 1), got {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return json.loads(record.read_text())


def failing_properties(verdict: dict[str, Any], name: str) -> set[str]:
    (found,) = (impl for impl in verdict["implementations"] if impl["name"] == name)
    assert found["cases"] > 50, f"{name}: only {found['cases']} cases ran"
    return {failure["property"] for failure in found["failures"]}


@pytest.mark.parametrize("name", RIGHT)
def test_the_right_kernel_passes_every_suite(verdict: dict[str, Any], name: str) -> None:
    assert failing_properties(verdict, name) == set()


@pytest.mark.parametrize("name", EXPECTED)
def test_the_fault_is_rejected_by_the_suite_one_would_expect(verdict: dict[str, Any], name: str) -> None:
    missed = EXPECTED[name] - failing_properties(verdict, name)
    assert not missed, f"{name} passed {sorted(missed)}"


def test_the_decorator_used_is_the_public_one() -> None:
    assert "@kv.kernel(" in KERNELS.read_text() and kdaverify.kernel is not None
