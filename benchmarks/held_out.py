"""Is a fault found by what was not tuned on it? Every stage's faults, tested by a harness whose
catalogue lacks that stage's file.

    python -m benchmarks.held_out [--stages scores,state] [--workers 2] [--json FILE]

For every stage, in processes of their own, the files of the catalogue that hold its faults are
replaced by empty ones before anything of the harness is imported. What is left of such a fault is a
kernel in a module that nobody has heard of, as a user's own would be. It goes through the suites of
the smoke profile; a rejection counts under the rules of the kill matrix: conforming kernels pass
the same test.

FILE keeps what is done; started again, only the rest is run.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.progress import track

from kdaverify.process import follow_parent

if TYPE_CHECKING:
    from kdaverify.faults.fault import Fault

# Nothing here may import the catalogue when it is imported itself: it is, by every process that is
# not to know a stage.
CATALOGUE: Final = "kdaverify.faults"
MODULE: Final = "a_port"


class Job(NamedTuple):
    """One fault of a stage, and the files of the catalogue that hold the stage."""

    fault: str
    stage: str
    files: tuple[str, ...]


class Found(NamedTuple):
    """What became of it: the property whose verdict killed it, or "" where it survived."""

    fault: str
    stage: str
    killed_by: str
    cases: int
    seconds: float


def jobs(stages: list[str]) -> list[Job]:
    """Every fault of the stages; of all where none is named."""
    from kdaverify.faults.catalogue import MODULES

    files = defaultdict[str, list[str]](list)
    for module in MODULES:
        files[module.FAULTS[0].stage].append(module.__name__)
    if unknown := set(stages) - set(files):
        raise SystemExit(f"--stages: no stage named {unknown.pop()!r}; they are {', '.join(files)}")
    faults = [fault for module in MODULES for fault in module.FAULTS if fault.operator == "kda"]
    return [
        Job(fault.id, fault.stage, tuple(files[fault.stage]))
        for fault in faults
        if not stages or fault.stage in stages
    ]


def taken_out(files: tuple[str, ...]) -> dict[str, Fault]:
    """The faults of these files; whoever imports the files from now on finds them empty."""
    modules = [importlib.import_module(name) for name in files]
    for name in files:
        empty = ModuleType(name)
        vars(empty)["FAULTS"] = ()
        sys.modules[name] = empty
        setattr(sys.modules[CATALOGUE], name.rpartition(".")[2], empty)
    return {fault.id: fault for module in modules for fault in vars(module)["FAULTS"]}


def hunted(job: Job) -> Found:
    """The suites on one fault, in a process that has imported nothing yet."""
    fault = taken_out(job.files)[job.fault]

    import torch

    from kdaverify.faults.adapter import Faulty
    from kdaverify.faults.catalogue import FAULTS
    from kdaverify.faults.conforming_kernels import CONFORMING
    from kdaverify.kills.controls import ConformingControls
    from kdaverify.kills.hunt import hunt

    if any((known.operator, known.stage) == ("kda", job.stage) for known in FAULTS.values()):
        raise RuntimeError(f"the harness still knows faults of {job.stage}")
    torch.set_num_threads(1)
    started, port = time.process_time(), Faulty(fault)
    port.name = MODULE
    sys.modules[MODULE] = ModuleType(MODULE)
    vars(sys.modules[MODULE])["kernel"] = port
    met = hunt(
        f"{MODULE}:kernel",
        "smoke",
        ConformingControls(fault, CONFORMING).objection,
        until=float("inf"),
    )
    return Found(
        job.fault,
        job.stage,
        met.killer.property if met.killer else "",
        len(met.tested),
        round(time.process_time() - started, 1),
    )


def show(found: list[Found]) -> None:
    print(f"{'stage left out':<16}{'faults':>8}{'killed':>8}  not killed")
    for stage in dict.fromkeys(one.stage for one in found):
        own = [one for one in found if one.stage == stage]
        print(
            f"{stage:<16}{len(own):>8}{sum(bool(one.killed_by) for one in own):>8} "
            f" {', '.join(x.fault for x in own if not x.killed_by)}"
        )
    killed = sum(bool(one.killed_by) for one in found)
    print(
        f"{killed} of {len(found)} killed by a harness that does not know them"
        f" ({100 * killed / len(found):.1f} %)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stages", default="", help="with commas between (default: each in turn)")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="processes, one fault each"
    )
    parser.add_argument("--json", type=Path, help="write every fault and what killed it")
    given = parser.parse_args()
    tested = jobs([stage for stage in given.stages.split(",") if stage])
    kept = given.json if given.json is not None and given.json.exists() else None
    found = {row["fault"]: Found(**row) for row in json.loads(kept.read_text())} if kept else {}
    with ProcessPoolExecutor(
        given.workers, get_context("spawn"), follow_parent, max_tasks_per_child=1
    ) as pool:
        running = [pool.submit(hunted, job) for job in tested if job.fault not in found]
        for done in track(as_completed(running), "hunting", total=len(running)):
            found[done.result().fault] = done.result()
            if given.json is not None:
                given.json.write_text(
                    json.dumps([one._asdict() for one in found.values()], indent=1) + "\n"
                )
    show([found[job.fault] for job in tested])


if __name__ == "__main__":
    main()
