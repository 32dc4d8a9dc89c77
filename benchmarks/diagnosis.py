"""How often the diagnosis names the right fault, and whether it ever names one where none, or more
than one, is to blame.

    python -m benchmarks.diagnosis faults --json FILE [--kinds AB] [--dtypes bf16,fp32]
    python -m benchmarks.diagnosis conforming --json FILE [--problems 75]
    python -m benchmarks.diagnosis pairs --json FILE [--pairs 48]
    python -m benchmarks.diagnosis faults --operators attention --kinds ABCDEF [--unknown]
    python -m benchmarks.diagnosis accepted --json FILE [--cases 200]

faults: every fault of the catalogue is planted in a kernel of another arithmetic than that of the
candidates it is compared with: it stores 16-bit operands in fp32, and makes every sum in 16 parts,
last first. It is tested on the inputs on which the catalogue's tests say that it shows, at another
seed; the first format in which it is rejected counts. conforming: conforming kernels, tested as if
they had been rejected. pairs: two faults of one forward planted together, in cases on which each of
them shows. Of faults of attention the first stage that is named counts too; --unknown leaves each
out of the catalogue that it is compared with. accepted: which stage is named for conforming kernels
of attention, as they are tested and by whatever of their rows is off.

FILE keeps what is done; started again, only the rest is run. `--part 3/16` runs every sixteenth
from the third on: several machines, or processes, may share the work, each with a file of its own;
`--read` adds up such files.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import torch
from rich.progress import track

import kdaverify.diagnosis.suspects as suspected
from benchmarks.attention_cases import accepted, failing_case, is_of_attention, stage_of
from benchmarks.false_alarms import backwards, drawn
from kdaverify.adapters import find
from kdaverify.adapters.base import Adapter
from kdaverify.adapters.eager import arithmetic_of
from kdaverify.budgets.ensemble import ContractOverflow
from kdaverify.diagnosis.diagnose import diagnose
from kdaverify.diagnosis.fault_comparison import FaultComparison
from kdaverify.diagnosis.minimise import failure
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.diagnosis.suspects import suspects
from kdaverify.faults import gated_norm, short_conv
from kdaverify.faults.adapter import Faulty
from kdaverify.faults.catalogue import FAULTS
from kdaverify.faults.fault import Fault, Setting
from kdaverify.faults.hosts import host_of
from kdaverify.faults.kernel import Patch, PatchedPipeline
from kdaverify.operators.pointwise.problem import ActivationProblem
from kdaverify.problems import Problem
from oracles.arithmetic import Arithmetic
from oracles.certified import UncertifiedError
from oracles.chunk import STAGES, Stages
from oracles.inputs import Inputs
from tests.faults.other_triggers import case_of
from tests.faults.triggers import PLAIN, TRIGGERS

SEED = 7
SECONDS = 6.0
CONFORMING_COST = 0.004
RIGHT = Patch()
Row = dict[str, Any]


@dataclass(frozen=True)
class Otherwise(PatchedPipeline):
    """The pipeline in an arithmetic of its own:
    no intermediate in 16 bits, and sums made backwards.
    """

    @property
    def arithmetic(self) -> Arithmetic:
        narrow = self.contract.operands.precision < self.contract.accumulate.precision
        finer = (
            replace(self.contract, operands=self.contract.accumulate, solve=None)
            if narrow
            else self.contract
        )
        return self.changed(replace(arithmetic_of(finer), dot=backwards))


class Planted(Faulty):
    """A fault in such a kernel; it declares what the embedded kernel declares."""

    def _kernel(self, inputs: Inputs) -> PatchedPipeline:
        kernel = super()._kernel(inputs)
        return Otherwise(kernel.contract, kernel.patch)


def kernel_with(fault: Fault) -> Adapter:
    """A fault in a kernel of another arithmetic than that of the candidates: functions of single
    roundings compute in fp64.
    """
    if host_of(fault).gates is not None:
        return Planted(fault)
    patch = fault.patch(Setting(1.0, torch.Generator()))
    if fault.operator == "short_conv":
        wide = replace(patch, wide=torch.float64)
        return short_conv.adapted(wide, f"fault:{fault.id}", fault.dtypes)
    return gated_norm.adapted(patch, f"fault:{fault.id}", fault.dtypes, wide=torch.float64)


def questions(fault: Fault, dtypes: Iterable[str]) -> Iterator[PropertyCase]:
    """The inputs on which it shows, in every format it is tested in."""
    if fault.operator != "kda":
        yield from (case_of(fault, name, SEED) for name in dtypes if name in fault.dtypes)
        return
    trigger = TRIGGERS[fault.id]
    for dtype in (name for name in dtypes if name in fault.dtypes and trigger.how != "own"):
        if trigger.how == "activation":
            yield PropertyCase(
                "activations",
                ActivationProblem.model_validate({**trigger.fields, "dtype": dtype, "seed": SEED}),
            )
            continue
        problem = trigger.problem(fault.dtypes).replace(dtype=dtype, seed=SEED)
        if trigger.how == "step":
            yield PropertyCase("resume", problem.replace(T=70), {"cut": 66, "way": "chunk-step"})
        elif trigger.how == "variant":
            yield PropertyCase(
                "options", problem, {"variant": next(iter(Faulty(fault).variants()))}
            )
        elif trigger.how == "call":
            yield PropertyCase("forward", problem)
        else:
            yield PropertyCase(
                "gradients", problem, {"of": "o" if "of o" in trigger.how else "both"}
            )


def failing(fault: Fault, dtypes: tuple[str, ...]) -> Iterator[tuple[Adapter, PropertyCase]]:
    """The kernel with a fault, and the questions that it fails."""
    if is_of_attention(fault):
        found = failing_case(fault, dtypes)
        yield from () if found is None else (found,)
        return
    for question in questions(fault, dtypes):
        adapter = kernel_with(fault)
        if failure(adapter, question) is not None:
            yield adapter, question


def planted(fault: Fault, dtypes: tuple[str, ...], *, known: bool = True) -> Row:
    """What is said of one fault, on the first question that it fails.

    Args:
        known: whether the catalogue that it is compared with has it.
    """
    for adapter, question in failing(fault, dtypes):
        if not known:
            suspected.FAULTS = {name: x for name, x in FAULTS.items() if name != fault.id}
        started = time.monotonic()
        found = diagnose(adapter, question, seconds=SECONDS)
        named = [match.suspect.fault.id for match in found.named]
        first, among = named[:1] == [fault.id], fault.id in named
        reported = (
            "alone"
            if named == [fault.id]
            else "first of several"
            if first
            else "among several"
            if among
            else "missed"
        )
        reported = reported if found.fits or reported == "missed" else "poor fit"
        seconds = round(time.monotonic() - started, 1)
        return {
            "kind": fault.kind,
            "operator": fault.operator,
            "dtype": question.problem.dtype,
            "found": reported,
            "named": named,
            "stage": fault.stage,
            "first stage": None if found.stage is None else found.stage.stage,
            "located": "" if found.stage is None else found.stage.reported,
            "said": str(found),
            "seconds": seconds,
        }
    return {
        "kind": fault.kind,
        "operator": fault.operator,
        "stage": fault.stage,
        "found": "not rejected",
    }


def conforming(name: str, problem: Problem) -> Row:
    """Which fault is named for a conforming kernel: as it is tested,
    and if what it answers were taken for wrong.
    """
    adapter = Planted(FAULTS["H1"], patch=RIGHT) if name == "backwards" else find(name)
    question = PropertyCase("forward", problem)
    try:
        tested = diagnose(adapter, question, seconds=SECONDS)
        lineup = FaultComparison(question, adapter)
        forced = [
            str(match.suspect)
            for match in lineup.matches(next(suspects(question, adapter)))
            if match.indistinguishable
        ]
    except (ContractOverflow, UncertifiedError):
        return {"found": "not judged"}
    return {
        "found": "named" if tested.named or tested.signatures else "not named",
        "forced": forced,
        "said": str(tested),
    }


def together(a: Patch, b: Patch) -> Patch | None:
    """Two forward patches in one; None where both replace the same part."""
    x = Problem.model_validate(PLAIN).inputs()
    mine, theirs = (_replaced(patch.stages(x)) for patch in (a, b))
    called = [patch.forward for patch in (a, b) if patch.forward is not RIGHT.forward]
    if mine & theirs or len(called) > 1 or not all(mine | {"call"} if called else (mine, theirs)):
        return None

    def stages(x: Inputs) -> Stages:
        other = b.stages(x)
        return replace(a.stages(x), **{name: getattr(other, name) for name in theirs})

    return Patch(stages=stages, forward=called[0] if called else RIGHT.forward)


def _replaced(stages: Stages) -> set[str]:
    return {name for name, stage in vars(stages).items() if stage is not getattr(STAGES, name)}


def pairs(count: int) -> list[tuple[str, str]]:
    """Faults of class A and B that each fail one plain forward,
    two at a time, in one random order.
    """
    question = PropertyCase("forward", Problem.model_validate({**PLAIN, "seed": SEED}))
    alone = [
        f.id
        for f in FAULTS.values()
        if f.operator == "kda"
        and f.kind in "AB"
        and "fp32" in f.dtypes
        and TRIGGERS[f.id].how == "call"
        and _finite(f, question)
    ]
    found = [
        (a, b) for a, b in combinations(alone, 2) if together(_patch(a), _patch(b)) is not None
    ]
    Random(SEED).shuffle(found)  # noqa: S311 # a sample
    return found[:count]


def _finite(fault: Fault, question: PropertyCase) -> bool:
    found = failure(Planted(fault), question)
    return found is not None and found[1] == "FAIL"


def _patch(name: str) -> Patch:
    return FAULTS[name].patch(Setting(1.0, torch.Generator()))


def paired(a: str, b: str) -> Row:
    """What is said of two faults in one kernel."""
    patch = together(_patch(a), _patch(b))
    assert patch is not None
    adapter, question = (
        Planted(FAULTS[a], patch=patch),
        PropertyCase("forward", Problem.model_validate({**PLAIN, "seed": SEED})),
    )
    try:
        lineup = FaultComparison(question, adapter)
    except (ContractOverflow, UncertifiedError):
        return {"found": "not judged"}
    ranked = {
        match.suspect.fault.id: match.fit
        for match in lineup.matches(next(suspects(question, adapter)))
    }
    if min(ranked[a].noise, ranked[b].noise) <= 1:
        return {"found": "one hides the other"}
    found = diagnose(adapter, question, seconds=SECONDS)
    return {"found": "named" if found.fits else "poor fit", "said": str(found)}


def run(jobs: dict[str, Callable[[], Row]], path: Path, others: list[Path]) -> dict[str, Row]:
    """Runs what no file has, and keeps every row as it comes."""
    done = {
        name: row
        for kept in (*others, path)
        if kept.exists()
        for name, row in json.loads(kept.read_text()).items()
    }
    left = {name: job for name, job in jobs.items() if name not in done}
    for name, job in track(left.items(), description=f"{len(done)} of {len(jobs)} done before"):
        done[name] = job()
        path.write_text(json.dumps(done, indent=1) + "\n")
    return {name: done[name] for name in jobs}


def show(rows: dict[str, Row]) -> None:
    for kind in sorted({row.get("kind", "") for row in rows.values()}):
        own = {name: row for name, row in rows.items() if row.get("kind", "") == kind}
        for reported in sorted({row["found"] for row in own.values()}):
            names = [name for name, row in own.items() if row["found"] == reported]
            print(
                f"{kind or 'all':4s} {reported}:"
                f" {len(names)}{'' if len(names) > 12 else f' ({chr(44).join(names)})'}"
            )
    staged = [name for name in rows if name in FAULTS and is_of_attention(FAULTS[name])]
    missed = [name for name in staged if rows[name].get("first stage") != FAULTS[name].stage]
    if staged:
        print(f"right stage first: {len(staged) - len(missed)} of {len(staged)}, not of {missed}")
    forced = [name for name, row in rows.items() if row.get("forced")]
    if any("forced" in row for row in rows.values()):
        print(f"named if a conforming kernel is taken for wrong: {len(forced)} {forced}")


def jobs_of(given: argparse.Namespace) -> dict[str, Callable[[], Row]]:
    """What is to be run, by name."""
    kinds: dict[str, Callable[[argparse.Namespace], dict[str, Callable[[], Row]]]] = {
        "faults": _planted_faults,
        "accepted": _accepted_cases,
        "conforming": _conforming_kernels,
        "pairs": _pairs,
    }
    return kinds[given.what](given)


def _planted_faults(given: argparse.Namespace) -> dict[str, Callable[[], Row]]:
    dtypes, operators = tuple(given.dtypes.split(",")), given.operators.split(",")
    return {
        fault.id: partial(planted, fault, dtypes, known=not given.unknown)
        for fault in FAULTS.values()
        if fault.kind in given.kinds
        and _is_of(fault, operators)
        and not (fault.id in TRIGGERS and TRIGGERS[fault.id].how == "own")
    }


def _is_of(fault: Fault, operators: list[str]) -> bool:
    return fault.operator in operators or (
        any("attention" in name for name in operators) and is_of_attention(fault)
    )


def _accepted_cases(given: argparse.Namespace) -> dict[str, Callable[[], Row]]:
    return {
        f"{n} {adapter.name} {case.problem.id}": partial(stage_of, adapter, case)
        for n, (adapter, case) in enumerate(accepted(given.cases))
    }


def _conforming_kernels(given: argparse.Namespace) -> dict[str, Callable[[], Row]]:
    return {
        f"{name} {problem.id}": partial(conforming, name, problem)
        for dtype in ("bf16", "fp32")
        for problem in drawn(given.problems, dtype, SEED, CONFORMING_COST)
        for name in ("eager", "eager-recurrent", "backwards")
    }


def _pairs(given: argparse.Namespace) -> dict[str, Callable[[], Row]]:
    return {f"{a}+{b}": partial(paired, a, b) for a, b in pairs(given.pairs)}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("what", choices=("faults", "conforming", "pairs", "accepted"))
    add("--json", type=Path, required=True, help="what is done, by name")
    add("--kinds", default="AB", help="classes of faults (default AB)")
    whose = "whose faults, with commas between: kda, gdn, delta, short_conv, gated_rms_norm"
    add("--operators", default="kda", help=whose)
    dtypes = "bf16,fp32,fp16"
    add("--dtypes", default=dtypes, help=f"formats, in the order they are tried (default {dtypes})")
    number = "random problems, for each of bf16 and fp32 (default 75)"
    add("--problems", type=int, default=75, help=number)
    add("--unknown", action="store_true", help="without the fault itself in the catalogue")
    add("--cases", type=int, default=200, help="accepted cases (default 200)")
    add("--pairs", type=int, default=48, help="pairs of faults (default 48)")
    part = "K/N: every N-th from the K-th on, from 0 (default 0/1: all)"
    add("--part", default="0/1", help=part)
    add("--read", type=Path, nargs="+", default=[], help="what other parts have done")
    return parser.parse_args()


def main() -> None:
    given = _arguments()
    torch.set_num_threads(1)
    first, step = map(int, given.part.split("/"))
    jobs = [*jobs_of(given).items()]
    show(run(dict(jobs[first::step]), given.json, given.read))


if __name__ == "__main__":
    main()
