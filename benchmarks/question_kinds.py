"""Whether every kind of question is needed: planted faults judged with and without the questions of
their kind.

    python -m benchmarks.question_kinds --workers 2 --json reports/question_kinds.json

Each planted fault (`kdaverify list faults`) is judged on all questions of its kind, and on every
n-th other one (`--share`) of its profile. With its kind it has to be rejected, and its right twin
accepted on the very same questions; without its kind it has to survive: whatever else rejects it is
printed. Exits 1 where one of these fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from rich.progress import track

from benchmarks.suite_runs import property_tests, verdicts
from kdaverify.adapters.isolation import housed
from kdaverify.faults.planted.catalogue import PLANTED
from kdaverify.faults.planted.questions import QUESTIONS, Question
from kdaverify.limits import Limits
from kdaverify.process import use_one_core

ENOUGH: Final = 1
"""Rejections by a kind's own questions after which no more of them are judged."""


@dataclass(frozen=True)
class Row:
    """What became of one fault.

    Args:
        own: rejections by questions of its kind.
        twin: rejections of the right twin by the same questions.
        others: rejections by any other question, with replay lines.
        judged: cases judged, of its kind and others.
        seconds: of one core.
    """

    id: str
    question: str
    trigger: str
    own: int
    twin: list[str]
    others: list[str]
    judged: tuple[int, int]
    seconds: float

    @property
    def shown(self) -> bool:
        """Whether its kind, and nothing else, rejects it."""
        return bool(self.own) and not self.others and not self.twin


def row(given: tuple[str, int]) -> Row:
    """One fault and its twin."""
    use_one_core()
    fault, share, started = PLANTED[given[0]], given[1], time.perf_counter()
    spec, kind = f"fault:{fault.id}", QUESTIONS[fault.question]
    wrong, twin = housed(fault.adapter(), spec, limits=Limits()), fault.right()
    own, twin_rejected, others, judged = 0, list[str](), list[str](), Counter[bool]()
    for number, test in enumerate(property_tests(wrong, fault.profile)):
        included = kind.includes(Question.of(test))
        if (included and own >= ENOUGH) or (not included and number % share):
            continue
        found = verdicts(wrong, test, spec)
        if not found:
            continue
        is_own = included and kind.shown(found)
        rejected = [v for v in found if v.status.rejects]
        judged[is_own] += 1
        if rejected and is_own:
            own += 1
            twin_rejected += [
                f"{v.headline()}; {v.replay}"
                for v in verdicts(twin, test, spec)
                if v.status.rejects
            ]
        elif rejected:
            others += [f"{v.headline()}; {v.replay}" for v in rejected]
    wrong.end()
    return Row(
        fault.id,
        fault.question,
        fault.trigger,
        own,
        twin_rejected,
        others,
        (judged[True], judged[False]),
        time.perf_counter() - started,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--faults",
        nargs="+",
        default=list(PLANTED),
        choices=list(PLANTED),
        metavar="ID",
        help="which (default all)",
    )
    parser.add_argument(
        "--share", type=int, default=10, help="every n-th question of other kinds (default 10)"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=2,
        help="processes (default 2); the result does not depend on it",
    )
    parser.add_argument("--json", type=Path, help="write the rows here")
    given = parser.parse_args()
    # Slow ones first: acceptance has ten times the questions.
    order = sorted(given.faults, key=lambda name: PLANTED[name].profile)
    with get_context("spawn").Pool(given.workers, maxtasksperchild=1) as pool:
        jobs = pool.imap_unordered(row, [(name, given.share) for name in order])
        rows = list[Row]()
        for one in track(jobs, total=len(order), description="judging planted faults"):
            rows.append(one)
            print(line_of(one), flush=True)
            if given.json:
                given.json.write_text(json.dumps([vars(one) for one in rows], indent=1) + "\n")
    sys.exit(not all(one.shown for one in rows))


def line_of(one: Row) -> str:
    """A row as a line, and what speaks against it below."""
    cases = f"own {one.own}, others {len(one.others)} of {one.judged[1]} cases, {one.seconds:.0f} s"
    line = (
        f"{one.id:7s} {one.question:13s} {'needed' if one.shown else 'NOT SHOWN':9s} {cases}:"
        f" {one.trigger}"
    )
    return "\n        ".join((line, *(*one.twin, *one.others)[:3]))


if __name__ == "__main__":
    main()
