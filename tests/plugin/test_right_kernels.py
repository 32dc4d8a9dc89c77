"""A right kernel is accepted whatever its conventions and its declared domain, and every single
wrong declaration is reported as that.

Whole profiles over sixty combinations are measured by `python -m benchmarks.convention_matrix`;
here a covering array of all pairs takes a share of the cases of both profiles, another share for
each combination.
"""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.convention_matrix import MODULE, Run, judged
from kdaverify.adapters import AdapterError
from kdaverify.checks.conventions import conventions
from kdaverify.checks.status import Status
from kdaverify.faults.conforming import AXES, DOMAINS, JOINT, conforming, covering_rows
from oracles.gate_activation import FORMS

pytestmark = pytest.mark.whole_run

ROWS = [JOINT.join(row.values()) for row in covering_rows()]
SHARE = {"smoke": 24, "acceptance": 160}
"""Every so many cases of a profile: some ten of each."""
PARTS = 12
"""Of a session that is judged part by part, one a commit."""
WRONG = [
    (axis, value, truth)
    for axis in ("layout", "state", "gate", "beta", "scale")
    for truth in AXES[axis]
    for value in AXES[axis]
    if value != truth
    and "argument" not in (value, truth)
    # A signature that names A_log has an activation: anything else is refused.
    and not (truth in FORMS and value not in FORMS)
]


@pytest.mark.rotates(12)
@pytest.mark.parametrize("profile", SHARE)
@pytest.mark.parametrize("row", ROWS)
def test_no_combination_of_conventions_is_rejected(row: str, profile: str) -> None:
    found = judged(Run(f"{MODULE}:MATRIX.{row}", profile, SHARE[profile], ROWS.index(row)))
    assert found.rejected == [] and found.statuses["PASS"] > 5


@pytest.mark.rotates(12)
@pytest.mark.parametrize("name", DOMAINS.names)
def test_no_kernel_is_called_outside_its_declared_domain(name: str) -> None:
    found = judged(
        Run(f"{MODULE}:DOMAINS.{name}", "smoke", SHARE["smoke"], DOMAINS.names.index(name))
    )
    assert found.rejected == [] and found.statuses["PASS"] > 5
    assert found.statuses["SKIP"] <= 0.1 * found.statuses.total()


@pytest.mark.rotates(PARTS)
@pytest.mark.parametrize("part", range(PARTS))
def test_the_token_loop_passes_smoke(part: int) -> None:
    """Of ours the one whose tolerances cost most: all parts are its session."""
    found = judged(Run("eager-recurrent", "smoke", PARTS, part))
    assert found.rejected == [] and found.statuses["PASS"] > 5


@pytest.mark.parametrize(("axis", "value", "truth"), WRONG)
def test_a_wrong_declaration_is_reported_as_that(axis: str, value: str, truth: str) -> None:
    packing = "cu_seqlens" if axis == "layout" else "none"
    plain: dict[str, Any] = {"packing": packing, axis: truth}
    found = conventions(conforming(**plain, declared={axis: value}))
    assert found.status is Status.CONVENTION
    assert f"declared {axis}={value!r}, but behaves as {axis}={truth!r}" in found.message


def test_padding_that_is_not_zero_is_reported_as_that() -> None:
    found = conventions(
        conforming(packing="cu_seqlens", padding="undefined", declared={"padding": "zero"})
    )
    assert found.status is Status.CONVENTION and "declare padding='undefined'" in found.message


@pytest.mark.parametrize(
    ("axis", "value", "truth"),
    [
        ("packing", "segment_ids", "cu_seqlens"),
        ("packing", "cu_seqlens", "segment_ids"),
        ("scale", "fixed", "argument"),
        ("scale", "argument", "folded"),
    ],
)
def test_a_declaration_that_the_signature_contradicts_is_refused(
    axis: str, value: str, truth: str
) -> None:
    plain: dict[str, Any] = {axis: truth}
    with pytest.raises(AdapterError, match=f"{axis}='{value}', but the signature"):
        conforming(**plain, declared={axis: value})
