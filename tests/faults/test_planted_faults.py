"""Every planted fault is rejected by the suite one would expect, where its right twin passes; right
twins pass every suite.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

import kdaverify
from benchmarks.convention_matrix import Run, judged
from kdaverify.adapters import find
from kdaverify.kills.controls import retested
from kdaverify.kills.hunt import hunt
from kdaverify.verdicts.verdict import Verdict

pytestmark = pytest.mark.whole_run

KERNELS = Path(__file__).with_name("kernels.py")
RIGHT = ("right_fp32", "right_bf16")
LIMIT = 1800.0
PARTS = 6
"""Of the smoke of a right kernel, which takes two minutes; a commit judges one of each six."""
# fault -> the suites that must reject it (faults.md: O1, H1, O2, H6, H8, S8, C2, GA2, GA4, SO1, O6,
# V10 and design faults a to e)
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
def apart() -> Iterator[ProcessPoolExecutor]:
    """A process in which sessions of pytest run one after another."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield pool


def missed(name: str, suite: str) -> list[str]:
    """Why a suite does not kill a fault; nothing where it does."""
    twin = find(f"{KERNELS}:right_{find(f'{KERNELS}:{name}').dtypes[0]}")

    def objection(verdict: Verdict) -> str:
        return "; ".join(
            reported.headline() for reported in retested(twin, verdict) if reported.status.rejects
        )

    met = hunt(f"{KERNELS}:{name}", "smoke", objection, time.time() + LIMIT, only=suite)
    return [] if met.killer else [f"{len(met.tested)} cases", *met.dismissed, *met.trouble]


@pytest.mark.rotates(PARTS)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", RIGHT)
def test_the_right_kernel_passes_every_suite(name: str, part: int) -> None:
    """All parts are the smoke of it; whole sessions of right kernels are those of `eager`."""
    found = judged(Run(f"{KERNELS}:{name}", "smoke", PARTS, part))
    assert found.rejected == [] and found.statuses["PASS"] > 5


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("name", "suite"),
    [(name, suite) for name, suites in EXPECTED.items() for suite in sorted(suites)],
)
def test_the_fault_is_rejected_by_the_suite_one_would_expect(
    apart: ProcessPoolExecutor, name: str, suite: str
) -> None:
    assert apart.submit(missed, name, suite).result() == []


def test_the_decorator_used_is_the_public_one() -> None:
    assert "@kv.kernel(" in KERNELS.read_text() and kdaverify.kernel is not None
