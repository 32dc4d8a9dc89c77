"""Verdicts and a table of them come to the same tally, and so a session and the gate over its
record to the same ruling.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kdaverify.checks.status import Status
from kdaverify.verdicts.record import scan
from kdaverify.verdicts.tally import tally, tally_of
from kdaverify.verdicts.verdict import Verdict
from tests.rows import row
from tests.verdicts.gated import GOOD, closed, decided
from tests.verdicts.paired_runs import run

HOLLOW = [row(case=f"hollow-{i}", dtype="bf16", vacuous=("zeros",)) for i in range(2)]
OTHERS = [
    row(Status.FAIL, case="kda-7", output="final_state", message="far off\nby much"),
    row(Status.SKIP, case="kda-8", message="no device\nhere"),
    row(Status.UNANSWERED, case="kda-9", output="call", message="no outputs"),
    row(Status.ORACLE_UNCERTIFIED, case="kda-10", output="call"),
]
RUNS: dict[str, list[Verdict]] = {
    "good": GOOD,
    "hollow": [*GOOD, *HOLLOW],
    "all hollow": HOLLOW,
    "others": [*GOOD, *OTHERS, *OTHERS],
    "risen": [*GOOD, *run(1.1)],
    "not risen": [*GOOD, *run(1.0)],
}


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", RUNS)
def test_a_table_is_counted_as_its_verdicts_are(name: str, ending: str, tmp_path: Path) -> None:
    table = scan(closed(tmp_path / f"r.{ending}", RUNS[name])).rows.collect()
    assert tally_of(table) == tally(RUNS[name])


def test_the_gate_rejects_a_run_that_errs_a_tenth_more_than_its_nearest_reference_kernels(
    tmp_path: Path,
) -> None:
    code, reason = decided(closed(tmp_path / "r.parquet", RUNS["risen"]))
    assert code == 1 and reason.startswith("o bf16: over 40 cases the rms error is 1.")
    assert decided(closed(tmp_path / "n.parquet", RUNS["not risen"]))[0] == 0
