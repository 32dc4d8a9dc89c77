"""Whether right kernels are rejected for their conventions or their declared domain.

    python -m benchmarks.convention_matrix --combinations 60 --workers 2 --json
    reports/convention_matrix.json

Judges token loops and chunk forms in plain torch (`kdaverify.faults.conforming`) that conform to
their contract by construction, in a covering array of layout, state, gate, beta, packing, scale,
padding and format, and in declared domains, on the cases of smoke and of acceptance.
A rejection of one of these is a false alarm. Prints every one with its replay line, the number of
runs, and the upper limit of the rate of false alarms at 95 % confidence. `--share` takes every n-th
case, another n-th for each combination.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from rich.progress import track

from benchmarks.binomial import upper
from benchmarks.suite_runs import property_tests, verdicts
from kdaverify.adapters import find
from kdaverify.campaign.suite_tests import CONVENTIONS
from kdaverify.faults.conforming import AXES, DOMAINS, JOINT, covering_rows
from kdaverify.process import use_one_core

MODULE: Final = "kdaverify.faults.conforming"
PROFILES: Final = ("smoke", "acceptance")


@dataclass(frozen=True)
class Run:
    """One kernel under one profile: every `share`-th case, beginning with number `first`."""

    spec: str
    profile: str
    share: int
    first: int


@dataclass(frozen=True)
class Found:
    """What came of it.

    Args:
        statuses: verdicts by status.
        rejected: message and replay line of every rejection.
        seconds: of one core.
    """

    run: Run
    statuses: Counter[str]
    rejected: list[str]
    seconds: float


def judged(run: Run) -> Found:
    """The verdicts of one run."""
    use_one_core()
    started, adapter = time.perf_counter(), find(run.spec)
    chosen = [CONVENTIONS, *property_tests(adapter, run.profile, run.first)][
        run.first % run.share :: run.share
    ]
    found = [verdict for test in chosen for verdict in verdicts(adapter, test, run.spec)]
    wrong = [
        f"{v.property} {v.output}: {v.message}\n  replay: {v.replay}"
        for v in found
        if v.status.rejects
    ]
    return Found(run, Counter(str(v.status) for v in found), wrong, time.perf_counter() - started)


def runs(combinations: int, profiles: list[str], shares: dict[str, int], seed: int) -> list[Run]:
    """Every combination in every format, and every domain, under every profile."""
    formats = AXES["dtype"]
    conventions = {axis: values for axis, values in AXES.items() if axis != "dtype"}
    rows = [
        JOINT.join((*row.values(), dtype))
        for row in covering_rows(combinations, seed, conventions)
        for dtype in formats
    ]
    specs = [f"{MODULE}:MATRIX.{row}" for row in rows] + [
        f"{MODULE}:DOMAINS.{name}" for name in DOMAINS.names
    ]
    return [
        Run(spec, profile, shares[profile], number)
        for profile in profiles
        for number, spec in enumerate(specs)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--combinations",
        type=int,
        default=60,
        help="of conventions, each in three formats (default 60)",
    )
    parser.add_argument("--profiles", nargs="+", default=PROFILES, choices=PROFILES)
    parser.add_argument(
        "--share",
        nargs="+",
        default=["smoke=1", "acceptance=8"],
        help="every n-th case of a profile, as smoke=1",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the combinations and the random cases (default 0)"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=2,
        help="processes (default 2); the result does not depend on it",
    )
    parser.add_argument(
        "--minutes", type=float, default=1440.0, help="stop then, and report what was judged"
    )
    parser.add_argument("--json", type=Path, help="write the summary here")
    given = parser.parse_args()
    shares = {profile: int(number) for profile, number in (part.split("=") for part in given.share)}
    tested, found, until = (
        runs(given.combinations, given.profiles, shares, given.seed),
        list[Found](),
        time.time() + 60 * given.minutes,
    )
    with get_context("spawn").Pool(given.workers) as pool:
        for one in track(
            pool.imap_unordered(judged, tested),
            total=len(tested),
            description="judging conforming kernels",
        ):
            found.append(one)
            if time.time() > until:
                pool.terminate()
                break
    summary = summarised(found, len(tested))
    for one in found:
        for message in one.rejected:
            print(f"REJECTED {one.run.spec} {one.run.profile}: {message}")
    print(json.dumps(summary, indent=1))
    if given.json:
        given.json.write_text(json.dumps(summary, indent=1) + "\n")


def summarised(found: list[Found], tested: int) -> dict[str, Any]:
    """Counts by profile, and what they say of the rate of false alarms."""
    by_profile: dict[str, Any] = {}
    for profile in dict.fromkeys(one.run.profile for one in found):
        own = [one for one in found if one.run.profile == profile]
        statuses = sum((one.statuses for one in own), Counter[str]())
        verdicts = sum(statuses.values()) - statuses["SKIP"]
        by_profile[profile] = {
            "kernels": len(own),
            "kernels_rejected": sum(bool(one.rejected) for one in own),
            "verdicts": verdicts,
            "rejections": sum(len(one.rejected) for one in own),
            "skipped_share": round(statuses["SKIP"] / max(1, sum(statuses.values())), 4),
            "core_seconds": round(sum(one.seconds for one in own)),
        }
    kernels, wrong = len(found), sum(bool(one.rejected) for one in found)
    return {
        "runs": kernels,
        "runs_planned": tested,
        "runs_rejected": wrong,
        "rate_below_at_95_percent": round(upper(wrong, kernels), 5) if kernels else None,
        "profiles": by_profile,
    }


if __name__ == "__main__":
    main()
