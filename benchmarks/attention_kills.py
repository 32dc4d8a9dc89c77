"""Which faults of attention the smoke profile rejects: the kill matrix of the attention operators.

    python benchmarks/attention_kills.py --only "M*,S*" --out kills.jsonl

Runs the suites on each fault until the first verdict that rejects it, each in a process of its own,
after the three conforming twins, which must be accepted. Prints one line a fault and the rate;
faults that are not re-created count as missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from fnmatch import fnmatchcase
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from kdaverify.faults.attention.catalogue import ATTENTION_FAULTS, NOT_RECREATED

TWINS = ("ATTENTION", "MLA_DECODE", "MERGE_STATE")
SECONDS = 240.0


def killed(spec: str) -> dict[str, Any]:
    """What the smoke profile finds."""
    from kdaverify.kills.hunt import hunt

    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 # of this process
    began = time.process_time()
    found = hunt(spec, "smoke", lambda _: "", time.time() + SECONDS)
    verdict = found.killer
    about = (
        {}
        if verdict is None
        else {
            "property": verdict.property,
            "output": verdict.output,
            "case": verdict.case,
            "status": str(verdict.status),
            "statistic": verdict.statistic,
            "ratio": str(verdict.ratio),
        }
    )
    return {
        "spec": spec,
        "killed": verdict is not None,
        **about,
        "cases": len(found.tested),
        "cpu": round(time.process_time() - began, 1),
        "out_of_time": found.out_of_time,
        "trouble": found.trouble[:2],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*", help="globs of ids, joined by commas")
    parser.add_argument("--twins", action="store_true", help="run the conforming twins as well")
    parser.add_argument("--out", type=Path, default=None)
    tested = parser.parse_args()
    globs = tested.only.split(",")
    names = [n for n in ATTENTION_FAULTS if any(fnmatchcase(n, glob) for glob in globs)]
    twins = [f"kdaverify.faults.attention.adapter:{name}" for name in TWINS] if tested.twins else []
    specs = [*twins, *(f"fault:attention-{name}" for name in names)]
    count = 0
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for row in pool.imap(killed, specs):
            count += row["killed"] and row["spec"].startswith("fault:")
            print(json.dumps(row), flush=True)
            if tested.out is not None:
                with tested.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    missing = len(NOT_RECREATED) if tested.only == "*" else 0
    total = len(names) + missing
    print(f"{count} of {total} rejected, {missing} of them not re-created")


if __name__ == "__main__":
    main()
