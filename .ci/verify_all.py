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
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from kdaverify.adapters.registry import Listing, find, shipped
from kdaverify.adapters.shipped import SHIPPED
from kdaverify.survey.session import DESIGN, exit_code_of
from kdaverify.verdicts.code_identity import git
from kdaverify.verdicts.decision import Ruling

OURS = tuple(name for name in SHIPPED if name.startswith("eager"))
# What an interpreted implementation may take, and after how long no other one is begun: with the
# tests before it the whole of a change is to be known within 15 minutes.
SECONDS, ENOUGH = 600, 180

# What takes turns: an interpreted implementation takes minutes, a native one half a minute, and
# there are forty of them; `make nightly` runs all.
TURNS = {"interpreted": 1, "native": 3}

# Its reference ensemble walks token by token, so that it costs twice what all others of ours do
# together. A commit judges it on a share of smoke instead, in tests/plugin/test_right_kernels.py.
LONG = "eager-recurrent"


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
        row
        for session in _sessions([one for one in chosen if one.name not in left])
        if everything or time.monotonic() - began < ENOUGH
        for row in _verify(session)
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
    place = lambda name: hashlib.sha256(f"{commit} {name}".encode()).digest()  # noqa: E731
    return {LONG} | {
        name
        for mode, names in by_mode.items()
        for name in sorted(names, key=place)[TURNS.get(mode, 0) :]
    }


def _sessions(listings: list[Listing]) -> list[list[Listing]]:
    """Ours in one session, which fills every worker: most are short, and each session by itself
    would cost 5 s to start. Any other has its own, since it may end its process.
    """
    ours = [one for one in listings if one.name in OURS]
    return [ours, *([one] for one in listings if one.name not in OURS)]


def _verify(listings: list[Listing]) -> list[Row]:
    """The rows of one session; each shows how long all of it took."""
    absent = [
        Row(one.name, f"cannot run here: {one.missing}", 0.0, one.name not in OURS)
        for one in listings
        if one.missing is not None
    ]
    names = [one.name for one in listings if one.missing is None]
    if not names:
        return absent
    print(f"\n== {', '.join(names)}", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "decisions.json"
        command = [sys.executable, "-m", "kdaverify", "verify", "--json", str(found)]
        command += ["--record", str(Path(folder) / "record.jsonl")]
        command += [word for name in names for word in ("--impl", name)]
        limit = SECONDS if len(names) == 1 else 2 * SECONDS
        code = exit_code_of(command, limit)
        decisions = _decisions(found)
    if len(names) == 1 and code is not None:  # a vendor's adapter may have another name
        decisions = {names[0]: next((one for one in Ruling if one.exit_code == code), Ruling.ERROR)}
    seconds = time.monotonic() - started
    if code is None:
        late = f"no decision within {limit} s"
        print(f"{', '.join(names)}: {late}", flush=True)
        return [*absent, *(Row(name, late, seconds, name not in OURS) for name in names)]
    return [*absent, *(_row(name, decisions.get(name, Ruling.ERROR), seconds) for name in names)]


def _decisions(path: Path) -> dict[str, Ruling]:
    """By implementation; none where the session broke before it had any."""
    if not path.exists():
        return {}
    found = json.loads(path.read_text())["implementations"]
    return {one["name"]: Ruling(one["decision"]) for one in found}


def _row(name: str, ruling: Ruling, seconds: float) -> Row:
    accepted = {Ruling.ACCEPT} if name in OURS else {Ruling.ACCEPT, Ruling.REJECT}
    return Row(name, ruling.value, seconds, ruling in accepted)


if __name__ == "__main__":
    sys.exit(main())
