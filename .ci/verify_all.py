"""Runs `kdaverify verify` on every shipped implementation that runs here, and prints one table.

A rejected vendor is a finding about the vendor. This fails only where an implementation of ours is rejected, or where a session ends in a
harness error or without enough evidence.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from kdaverify.adapters.registry import SHIPPED, Listing, shipped
from kdaverify.verdicts.decision import Ruling

OURS = tuple(name for name in SHIPPED if name.startswith("eager"))
# What only emulates a design is no implementation: its own tests judge it.
DESIGN = "emulated:"
# Eight minutes is what an interpreted implementation may take; a machine that does other work gets more.
SECONDS = 900


class Row(NamedTuple):
    """One implementation's session."""

    name: str
    decision: str
    seconds: float
    fine: bool


def main() -> int:
    rows = [_verify(listing) for listing in shipped() if listing.name in SHIPPED and not listing.name.startswith(DESIGN)]
    table = Table(title="every implementation that runs here", title_justify="left")
    for name in ("implementation", "decision", "seconds", ""):
        table.add_column(name)
    for row in rows:
        table.add_row(row.name, row.decision, f"{row.seconds:.0f}", "" if row.fine else "FAILS THIS CHECK")
    Console(width=120).print(table)
    return 0 if all(row.fine for row in rows) else 1


def _verify(listing: Listing) -> Row:
    if listing.missing is not None:
        return Row(listing.name, f"cannot run here: {listing.missing}", 0.0, listing.name not in OURS)
    print(f"\n== {listing.name}", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "kdaverify", "verify", "--impl", listing.name, "--record", str(Path(folder) / "record.jsonl")]
        try:
            code = subprocess.run(command, timeout=SECONDS, check=False, stdin=subprocess.DEVNULL).returncode
        except subprocess.TimeoutExpired:
            code = Ruling.ERROR.exit_code
            print(f"{listing.name}: no decision within {SECONDS} s", flush=True)
    ruling = next((ruling for ruling in Ruling if ruling.exit_code == code), Ruling.ERROR)
    accepted = {Ruling.ACCEPT} if listing.name in OURS else {Ruling.ACCEPT, Ruling.REJECT}
    return Row(listing.name, ruling.value, time.monotonic() - started, ruling in accepted)


if __name__ == "__main__":
    sys.exit(main())
