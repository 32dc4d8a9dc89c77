"""Records as sessions leave them, for tests of the gate."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path

from kdaverify.verdicts.decision import heaviest
from kdaverify.verdicts.gate import GateCriteria, Gated, gate
from kdaverify.verdicts.record import RecordWriter
from kdaverify.verdicts.seal import Account, Expected
from kdaverify.verdicts.verdict import Verdict
from tests.rows import row

TODAY = date(2026, 3, 1)
EXPECTED = Expected(
    "port",
    ("fp32", "bf16"),
    ("o", "final_state"),
    ("forward", "resume"),
    {"packing": "it declares packing='none'"},
)
ACCOUNT = Account(harness="1", profile="smoke", expected=(EXPECTED,))
GOOD = [
    row(
        property=name,
        dtype=dtype,
        output=output,
        case=f"kda-{i}",
        ratio=0.5,
        statistic="rms",
        versions={"torch": "2.8"},
    )
    for name in EXPECTED.properties
    for dtype in EXPECTED.dtypes
    for output in EXPECTED.outputs
    for i in range(3)
]


def closed(path: Path, rows: Sequence[Verdict] = GOOD, account: Account | None = ACCOUNT) -> Path:
    """A record that its session closed."""
    path.unlink(missing_ok=True)
    with RecordWriter(path) as writer:
        writer.settle(rows, account)
    return path


def decided(*paths: Path, question: GateCriteria | None = None) -> tuple[int, str]:
    """The exit code, and the first reason."""
    found = gate(paths, question or GateCriteria(TODAY))
    return heaviest(found).exit_code, first(found)


def first(found: list[Gated]) -> str:
    return next((reason for one in found for reason in one.reasons), "")
