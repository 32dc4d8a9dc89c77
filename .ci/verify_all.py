"""Runs `kdaverify verify` on the shipped implementations that run here, and prints one table.

    python .ci/verify_all.py           # ours, and some of the others, which follow from the commit
    python .ci/verify_all.py --all     # all of them

A rejected vendor is a finding about the vendor. This fails only where an implementation of ours is
rejected or has no decision in time, or where a session ends in a harness error or without enough
evidence.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from kdaverify.adapters.registry import SHIPPED, Listing, find, shipped
from kdaverify.survey.session import DESIGN, exit_code_of
from kdaverify.verdicts.code_identity import git
from kdaverify.verdicts.decision import Ruling

OURS = tuple(name for name in SHIPPED if name.startswith("eager"))
# What an interpreted implementation may take, and after how long no other one is begun: with the
# tests before it the whole of a change is to be known within 20 minutes.
SECONDS, ENOUGH = 600, 300

# What takes turns: an interpreted implementation takes minutes, a native one half a minute, and
# there are forty of them; `make nightly` runs all.
TURNS = {"interpreted": 1, "native": 3}


class Row(NamedTuple):
    """One implementation's session."""

    name: str
    decision: str
    seconds: float
    fine: bool


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", action="store_true", help="leave no implementation out")
    chosen = [
        listing
        for listing in shipped()
        if listing.name in SHIPPED and not listing.name.startswith(DESIGN)
    ]
    everything = parser.parse_args().all
    left = set[str]() if everything else _left_out(chosen)
    began = time.monotonic()
    rows = [
        _verify(listing)
        for listing in sorted(chosen, key=lambda one: one.name not in OURS)
        if listing.name not in left and (everything or time.monotonic() - began < ENOUGH)
    ]
    table = Table(title="every implementation that runs here", title_justify="left")
    for name in ("implementation", "decision", "seconds", ""):
        table.add_column(name)
    for row in rows:
        table.add_row(
            row.name, row.decision, f"{row.seconds:.0f}", "" if row.fine else "FAILS THIS CHECK"
        )
    Console(width=120).print(table)
    if left:
        print(f"left out of this commit's turn: {', '.join(sorted(left))}; --all runs them too")
    return 0 if all(row.fine for row in rows) else 1


def _left_out(listings: list[Listing]) -> set[str]:
    """All but ours and a few of each mode, in an order that every commit shuffles."""
    others = [one.name for one in listings if one.missing is None and one.name not in OURS]
    by_mode: dict[str, list[str]] = {}
    for name in others:
        by_mode.setdefault(find(name).environment()["mode"], []).append(name)
    commit = git(Path(__file__).parent, "rev-parse", "HEAD")
    key = lambda name: hashlib.sha256(f"{commit} {name}".encode()).digest()  # noqa: E731
    return {
        name
        for mode, names in by_mode.items()
        for name in sorted(names, key=key)[TURNS.get(mode, 0) :]
    }


def _verify(listing: Listing) -> Row:
    if listing.missing is not None:
        return Row(
            listing.name, f"cannot run here: {listing.missing}", 0.0, listing.name not in OURS
        )
    print(f"\n== {listing.name}", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "kdaverify",
            "verify",
            "--impl",
            listing.name,
            "--record",
            str(Path(folder) / "record.jsonl"),
        ]
        code = exit_code_of(command, SECONDS)
    if code is None:
        late = f"no decision within {SECONDS} s"
        print(f"{listing.name}: {late}", flush=True)
        return Row(listing.name, late, time.monotonic() - started, listing.name not in OURS)
    ruling = next((ruling for ruling in Ruling if ruling.exit_code == code), Ruling.ERROR)
    accepted = {Ruling.ACCEPT} if listing.name in OURS else {Ruling.ACCEPT, Ruling.REJECT}
    return Row(listing.name, ruling.value, time.monotonic() - started, ruling in accepted)


if __name__ == "__main__":
    sys.exit(main())
