"""Records as sessions leave them, for tests of the gate."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from kdaverify.checks.status import Status
from kdaverify.verdicts.decision import heaviest
from kdaverify.verdicts.gate import GateCriteria, Gated, gate
from kdaverify.verdicts.record import RecordWriter
from kdaverify.verdicts.seal import Account, Expected
from kdaverify.verdicts.verdict import Verdict
from kdaverify.verdicts.waivers import read_waivers
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


BROKEN = row(Status.FAIL, case="kda-7", statistic="rms", ratio=2.5, dtype="bf16", detail={"cut": 3})


WAIVER = {
    "id": "forward/bf16/*",
    "impl": "port",
    "statistic": "rms",
    "cap": 3.0,
    "reason": "known",
    "owner": "me",
    "expires": TODAY,
}


def waiving(tmp_path: Path, **changes: Any) -> GateCriteria:
    path = tmp_path / "waivers.toml"
    lines = [
        f"{name} = {value if name in ('cap', 'expires') else repr(value)}"
        for name, value in {**WAIVER, **changes}.items()
    ]
    path.write_text("[[waiver]]\n" + "\n".join(lines) + "\n")
    return GateCriteria(TODAY, waivers=read_waivers(path, TODAY))
