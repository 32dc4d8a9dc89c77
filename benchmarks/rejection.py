"""How soon a broken port is rejected, what that costs beside accepting it, and whether the right
cause is named.

    python -m benchmarks.rejection --json FILE [--report reports/rejection.md] [--seed 23] [--most
    4] [--at-once 7]

Faults of the catalogue are sampled by seed, in five of twenty ports two at once, and each port is
judged as a user would: one plain function, no stages, smoke, bf16, two workers, on two cores of its
own, with an empty cache of tolerances. FILE keeps what is done; started again, only the rest is
run. Time is CPU time of all processes, which other work on the machine changes little.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

from benchmarks.ported_faults import DTYPE, patch_of, together
from kdaverify.checks.property_table import PROPERTIES
from kdaverify.diagnosis.common_factor import common_factors
from kdaverify.diagnosis.failing_rules import failing_rules
from kdaverify.faults.catalogue import FAULTS
from kdaverify.report.reported_kinds import contrasts_of, random_failures, reported_kinds
from kdaverify.verdicts.record import read
from kdaverify.verdicts.verdict import Verdict
from tests.faults.triggers import TRIGGERS

ROOT: Final = Path(__file__).parent.parent
MATRIX: Final = ROOT / "reports/kill_matrix.json"
SINGLE, PAIRS = 15, 5
CORES: Final = 2
"""For each port: what `kdaverify verify` has where nobody else is at work."""
RIGHT: Final = "right"
RIGHTS: Final = (RIGHT, f"{RIGHT} again", f"{RIGHT} once more")
HIDDEN: Final = ("activation", "variant")
"""Ways to show a fault that a plain function does not offer."""
DECIDED: Final = (0, 1)
LAST: Final = 200
"""Lines that are kept of a run without a decision: one of 20 ended in an error of the harness, and
nobody could see which."""
NAMED: Final = 2
"""Reported kinds of failure that are looked at for the cause."""
LIVE: Final = re.compile(r"^ *\d+ s  port: ")
AXES: Final[dict[str, tuple[str, str]]] = {
    "packing": (
        r"pack|offset|padded token|empty sequence|several sequences|beside others",
        r"pack|past the last offset",
    ),
    "length": (
        r"chunk|tail|length|multiple of|\d tokens|tokens or more|sequence of",
        r"\bT\b|multiple of",
    ),
    "gates": (r"gate|decay|nats", r"gate"),
    "state": (r"state", r"state"),
    "heads": (r"heads?\b", r"\bHV\b|\bH\b|heads"),
    "widths": (r"\bK\b|\bV\b", r"\bK\b|\bV\b"),
    "keys": (r"\bkeys\b", r"key ="),
    "beta": (r"\bbeta\b", r"beta ="),
    "batch": (r"two sequences and", r"\bB\b"),
    "memory": (r"address|contiguous|stride", r"address|wider tensor|head-major|stride"),
    "direction": (r"backward|loss", r"outputs (=|other than) gradients"),
    "repeats": (r"repeated|rare", r"differ between runs|repeat"),
    "decode": (r"decode", r"\bdecode|\bstep\b|^resume"),
    "everywhere": (r"^any\b", r"^everywhere"),
}
"""By axis: the words of a declared trigger, and those of a line on common factors."""
Row = dict[str, Any]
ABOUT: Final = (__doc__ or "").split("\n\n")[2].splitlines()
HEAD: Final = (
    (
        "| port with | rejected | first, CPU s | CPU, s | of accepting | failures, kinds, collapsed"
        " | common factor | axis | bug named |"
    ),
    "|---|---|---|---|---|---|---|---|---|",
)


def sample(seed: int) -> list[tuple[str, ...]]:
    """The faults of each port: those that a plain function can show, and that smoke killed by more
    than a stage when the kill matrix was made.
    """
    killed = {
        row["id"]
        for row in json.loads(MATRIX.read_text())["faults"]
        if row["profile"] == "smoke" and not PROPERTIES[row["by"]["property"]].stages
    }
    shown = [
        f.id
        for f in FAULTS.values()
        if DTYPE in f.dtypes and f.id in killed and TRIGGERS[f.id].how not in HIDDEN
    ]
    Random(seed).shuffle(shown)  # noqa: S311 # a sample
    single = [(name,) for name in shown[:SINGLE]]
    return [*single, *_pairs(shown[SINGLE:])]


def _pairs(shown: list[str]) -> Iterator[tuple[str, ...]]:
    """Two at a time, in order, that replace different parts of the kernel."""
    left, found = [*shown], 0
    while left and found < PAIRS:
        first = left.pop(0)
        other = next(
            (name for name in left if together([patch_of(first), patch_of(name)]) is not None), None
        )
        if other is not None:
            left.remove(other)
            found += 1
            yield first, other


def judged(names: tuple[str, ...]) -> Row:
    """One run of `kdaverify verify` on a port with these faults, or none."""
    with tempfile.TemporaryDirectory() as folder:
        port, record = Path(folder) / "port.py", Path(folder) / "r.jsonl"
        port.write_text(
            "from benchmarks.ported_faults import port\n\nkda ="
            f" port({', '.join(map(repr, names))})\n"
        )
        command = [
            sys.executable,
            "-m",
            "kdaverify",
            "verify",
            "--impl",
            str(port),
            "--workers",
            "2",
            "--record",
            str(record),
        ]
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        first, code, last = _watched(command, folder, started)
        seconds, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        row: Row = {"code": code, "wall": seconds, "cpu": cpu, "load": os.getloadavg()[0]}
        if code not in DECIDED:
            row["output"] = last
        return row | (first or {"first": seconds, "first_cpu": cpu}) | _reported(record, names)


def _pinned(places: multiprocessing.Queue[tuple[int, ...]]) -> None:
    """Take two cores for this process and what it starts: on a machine of many cores a port would
    otherwise be judged by more threads than two cores have, and its limits of time end early.
    """
    os.sched_setaffinity(0, places.get())


def _places(count: int) -> multiprocessing.Queue[tuple[int, ...]]:
    """Two cores for each of `count` processes."""
    cores = sorted(os.sched_getaffinity(0))
    if CORES * count > max(len(cores), CORES):
        raise SystemExit(f"--at-once {count}: {CORES * count} cores needed, {len(cores)} are here")
    places: multiprocessing.Queue[tuple[int, ...]] = multiprocessing.Queue()
    for k in range(count):
        places.put(tuple(cores[CORES * k : CORES * (k + 1)]))
    return places


def _watched(command: list[str], folder: str, started: float) -> tuple[Row | None, int, list[str]]:
    """When the first failure was printed, the exit code, and the last lines."""
    environment = {
        **os.environ,
        # Ports that others had warmed the cache for took half as long as the first ones.
        "KDAVERIFY_CACHE": str(Path(folder) / "cache"),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    first: Row | None = None
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        last = deque[str](maxlen=LAST)
        for line in process.stdout:
            last.append(line)
            if first is None and LIVE.match(line):
                first = {"first": time.monotonic() - started, "first_cpu": _path(process.pid)}
        return first, process.wait(), [*last]


def _path(process: int) -> float:
    """CPU seconds of a process and of its slowest child, and so on:
    what passes on the clock of an idle machine.
    """
    own = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return (int(own[11]) + int(own[12])) / os.sysconf("SC_CLK_TCK") + max(
        map(_path, map(int, children)), default=0.0
    )


def _reported(record: Path, names: tuple[str, ...]) -> Row:
    """What the run says of the cause."""
    verdicts = read(record).verdicts
    failures = [row for row in verdicts if row.status.rejects]
    lines = _lines(verdicts, failures)
    shown = [row for kind in reported_kinds(failures)[:NAMED] for row in kind.rows]
    said = " ".join(row.diagnosis for row in shown if row.diagnosis)
    return {
        "failures": len(failures),
        "kinds": len(reported_kinds(failures)),
        "collapsed": sum(bool(row.same_as) for row in failures),
        "lines": lines,
        "said": said,
        "axes": {name: {axis: named(axis, lines) for axis in declared(name)} for name in names},
        "bugs": [name for name in names if re.search(rf"\b{re.escape(name)}\b", said)],
        "stages": [
            FAULTS[name].stage
            for name in names
            if any((row.stage or "").startswith(FAULTS[name].stage) for row in shown)
        ],
    }


def _lines(verdicts: Sequence[Verdict], failures: Sequence[Verdict]) -> list[str]:
    """The lines above all failures: the common factors of the cases, the rules of calls that are
    broken, what was found by changing one thing at a time, and of a run that ends before the suites
    its one message.
    """
    if not failures:
        return []
    stopped = [row.message for row in failures if row.property == "conventions"]
    factors = [found.said for found in common_factors(verdicts)]
    return [
        *random_failures(failures),
        *factors,
        *failing_rules(verdicts),
        *contrasts_of(failures),
        *stopped,
    ]


def declared(name: str) -> list[str]:
    """The axes that the trigger of a fault names."""
    return [axis for axis, (words, _) in AXES.items() if re.search(words, FAULTS[name].trigger)]


def named(axis: str, lines: list[str]) -> bool:
    """Whether a line on common factors names an axis."""
    return any(re.search(AXES[axis][1], line) for line in lines)


def table(rows: dict[str, Row]) -> str:
    """The report."""
    rights = [row for name, row in rows.items() if name.startswith(RIGHT)]
    accepting = median(row["cpu"] for row in rights)
    faults = {name: row for name, row in rows.items() if not name.startswith(RIGHT)}
    rejected = [row for row in faults.values() if row["code"] == 1]
    wall = median(row["wall"] for row in rights)
    said = (
        f"Accepting the same port without a fault takes {accepting:.0f} s of CPU time,"
        f" {wall:.0f} s on the clock (median of {len(rights)}). "
    )
    counts = f"Of {SINGLE + PAIRS} ports {len(faults)} were judged and {len(rejected)} rejected:"
    body = [_line(name, row, accepting) for name, row in faults.items()]
    return "\n".join(
        [
            "# Rejecting a broken port",
            "",
            *ABOUT,
            "",
            said + counts,
            "",
            *_figures(rejected, accepting, wall),
            "",
            *HEAD,
            *body,
            "",
        ]
    )


def _figures(rejected: list[Row], accepting: float, accepting_wall: float) -> list[str]:
    """What the table comes to."""
    cpu, wall, first, path = (
        [row[name] for row in rejected] for name in ("cpu", "wall", "first", "first_cpu")
    )
    load, of_axis = (
        median(row["load"] for row in rejected),
        [row for row in rejected if any(row["axes"].values())],
    )
    bugs = sum(bool(row["bugs"]) for row in rejected)
    said = [{axis for axis in AXES if named(axis, row["lines"])} for row in rejected]
    right = [{axis for axes in row["axes"].values() for axis in axes} for row in rejected]
    return [
        (
            f"- rejecting takes {median(cpu) / accepting:.2f} times accepting (median),"
            f" {max(cpu) / accepting:.2f} at most; on the clock {median(wall) / accepting_wall:.2f}"
            f" and {max(wall) / accepting_wall:.2f};"
        ),
        (
            f"- first evidence after {median(path):.0f} s (median), {max(path):.0f} s at most, of"
            " CPU time one after another;"
        ),
        (
            f"- {median(first):.0f} s and {max(first):.0f} s passed on this one, at a load of"
            f" {load:.0f} on {os.cpu_count()} cores;"
        ),
        (
            f"- a declared axis of each fault is named in {sum(map(_axis, of_axis))} of"
            f" {len(of_axis)} ports that declare one;"
        ),
        (
            f"- these lines name {sum(map(len, said))} axes, of {len(AXES)} for each port,"
            f" {sum(len(a & b) for a, b in zip(said, right, strict=True))} of them declared;"
        ),
        f"- the bug is named by one of the first {NAMED} kinds in {bugs} of {len(rejected)}.",
    ]


def _axis(row: Row) -> bool:
    return all(any(axes.values()) for axes in row["axes"].values() if axes)


def _line(name: str, row: Row, accepting: float) -> str:
    axis = ("yes" if _axis(row) else "no") if any(row["axes"].values()) else "none declared"
    lines = "; ".join(row["lines"]) or "none"
    counts = f"{row['failures']}, {row['kinds']}, {row['collapsed']}"
    cpu = f"{row['cpu']:.0f} | {row['cpu'] / accepting:.2f}"
    rejected, bugs = (
        "yes" if row["code"] == 1 else f"no ({row['code']})",
        ", ".join(row["bugs"]) or "no",
    )
    return (
        f"| {name} | {rejected} | {row['first_cpu']:.0f} | {cpu} | {counts} | {lines} | {axis} |"
        f" {bugs} |"
    )


def _among(ports: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Accepting runs spread among ports: a machine is slower while it is new, the first seven of
    twenty ports by half as much as the others.
    """
    rows, step = [*ports.items()], len(ports) // len(RIGHTS)
    for k, name in reversed([*enumerate(RIGHTS)]):
        rows.insert(k * step + step // 2, (name, ()))
    return dict(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, required=True, help="what is done, by port")
    parser.add_argument("--report", type=Path, help="where the table goes")
    parser.add_argument("--seed", type=int, default=23, help="of the sample (default 23)")
    parser.add_argument("--most", type=int, default=100, help="runs of this call at most")
    parser.add_argument(
        "--at-once", type=int, default=1, help="ports judged at a time, two cores each (default 1)"
    )
    given = parser.parse_args()
    done: dict[str, Row] = json.loads(given.json.read_text()) if given.json.exists() else {}
    jobs = _among({" + ".join(names): names for names in sample(given.seed)})
    # Processes, not threads: each counts the CPU time of its own children.
    with ProcessPoolExecutor(
        given.at_once, initializer=_pinned, initargs=(_places(given.at_once),)
    ) as pool:
        begun = {
            pool.submit(judged, jobs[name]): name
            for name in [name for name in jobs if name not in done][: given.most]
        }
        for ended in as_completed(begun):
            done[begun[ended]] = ended.result()
            given.json.write_text(json.dumps(done, indent=1) + "\n")
            print(f"{begun[ended]}: {ended.result()}", flush=True)
    text = table(done)
    print(text)
    if given.report is not None:
        given.report.write_text(text)


if __name__ == "__main__":
    main()
