"""`kdaverify mailboxes`: which tensors between the cores of a design may be narrow."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from kdaverify.cli.complaint import Complaint, as_complaint
from kdaverify.cli.options import FoundFile, regimes_of
from kdaverify.report.summary import write_json

if TYPE_CHECKING:
    from kdaverify.budgets.designs import Design
    from kdaverify.checks.mailboxes.bench import DesignTest
    from kdaverify.checks.mailboxes.search import Study


# Forward and backward.
PARTS = 2


class Operands(StrEnum):
    """What the matrix cores multiply."""

    BF16 = "bf16"
    FP16 = "fp16"


Pipeline = Annotated[
    str,
    typer.Option(help="ascend_v3, ascend_v2, ascend_v1, triton_npu_state or triton_npu_gdn"),
]
Proposals = Annotated[
    bool,
    typer.Option("--proposals", help="judge P1 to P7 of the state kernel instead of searching"),
]
BudgetShare = Annotated[
    float,
    typer.Option(
        min=0.001, help="largest share of the contract's tolerance that an assignment may use"
    ),
]
JudgedBy = Annotated[
    str | None,
    typer.Option(
        help="contract of the tolerance; default: chunk64-OPERANDS, for the design's gates"
    ),
]
OperandFormat = Annotated[
    Operands, typer.Option(help="format of the inputs, and of 16-bit mailboxes as designed")
]
Regimes = Annotated[
    str | None,
    typer.Option(
        help="some of ordinary, one-gate, zero, memory, coherent, deep (a,b,...); default: all"
    ),
]
Tokens = Annotated[int, typer.Option(min=1, help="T of every problem")]
Width = Annotated[int, typer.Option(min=1, help="K = V of every problem")]
Seed = Annotated[
    int,
    typer.Option(min=0, help="seed of every problem; what is found is tried again on the next one"),
]
MostCombinations = Annotated[
    int, typer.Option(min=0, help="combinations tried for the forward, and for the backward")
]
FrontFile = Annotated[
    Path | None, typer.Option(help="draw the forward's Pareto front into this .svg file")
]


def mailboxes(
    pipeline: Pipeline,
    proposals: Proposals = False,
    budget: BudgetShare = 1.0,
    contract: JudgedBy = None,
    operands: OperandFormat = Operands.BF16,
    regimes: Regimes = None,
    tokens: Tokens = 256,
    width: Width = 128,
    seed: Seed = 0,
    most: MostCombinations = 60,
    json_file: FoundFile = None,
    plot: FrontFile = None,
) -> int:
    """Search the formats of a design's intermediate buffers (mailboxes), and print the Pareto front
    of bytes against error.

    One mailbox at a time in every format, then combinations, each of them run: forward and
    gradient, over all regimes, scored against the tolerance of the contract. Ctrl-C prints what is
    known so far.

    Example: kdaverify mailboxes --pipeline ascend_v3 --plot front.svg

    Exit codes: 0 an assignment stays within the tolerance (or every proposal was judged), 1 none
    does, 2 usage error.
    """
    sizes = {"tokens": tokens, "width": width, "seed": seed}
    bench, console = _bench(pipeline, contract, operands.value, regimes, sizes), Console()
    _prepare(bench, f"{bench.contract.name} under {len(bench.regimes)} regimes")
    if proposals:
        found, code = _proposals(bench, console)
    else:
        found, code = _search(bench, console, budget, most, plot)
    write_json(json_file, lambda: {"pipeline": pipeline, "contract": bench.contract.name, **found})
    return code


def _bench(
    pipeline: str, contract: str | None, operands: str, regimes: str | None, sizes: dict[str, int]
) -> DesignTest:
    from kdaverify.budgets.contract import contract_from_name
    from kdaverify.budgets.contract_checks import ContractError
    from kdaverify.budgets.designs import DESIGNS
    from kdaverify.budgets.formats import FORMATS
    from kdaverify.checks.mailboxes.bench import REGIMES, DesignTest

    names = regimes_of(regimes, REGIMES)
    if pipeline not in DESIGNS:
        raise Complaint(f"--pipeline: no design named {pipeline!r}; there are {', '.join(DESIGNS)}")
    with as_complaint(ContractError, prefix="--contract: "):
        judged_by = contract_from_name(contract or DESIGNS[pipeline].contract_name(operands))
    return DesignTest(DESIGNS[pipeline], FORMATS[operands], judged_by, names, **sizes)


def _prepare(bench: DesignTest, whose: str) -> None:
    with Console(stderr=True).status(f"computing tolerances of {whose}"):
        bench.prepare()


def _search(
    bench: DesignTest, console: Console, budget: float, most: int, plot: Path | None
) -> tuple[dict[str, Any], int]:
    from kdaverify.checks.mailboxes.search import Study
    from kdaverify.report.mailboxes import as_data, heading, show
    from kdaverify.report.plots import front_svg

    forward = Study(bench, "forward", budget, most)
    show(console, heading(forward))
    known: list[Study] = []
    finished = _reported(forward, console, known)
    if finished and forward.best is not None:
        finished = _reported(
            Study(bench, "backward", budget, most, beside=forward.best.formats), console, known
        )
    if known and finished:
        show(console, *_memories(bench, forward), *_held_out(bench, known[-1]))
    if known and plot is not None:
        plot.write_text(front_svg(forward))
    return {"studies": [as_data(study) for study in known]}, (
        0 if len(known) == PARTS and all(study.best for study in known) else 1
    )


def _reported(study: Study, console: Console, known: list[Study]) -> bool:
    """Runs a study with a bar and prints what it found; False if it was interrupted."""
    from kdaverify.report.mailboxes import answer, front_table, show, singles_table

    finished = _followed(study)
    if study.ends:
        known.append(study)
        show(console, singles_table(study), front_table(study))
    show(console, *answer(study))
    if not finished:
        show(console, "interrupted: this is what is known so far")
    return finished


def _followed(study: Study) -> bool:
    """Runs a study with a bar; False if it was interrupted."""
    try:
        for _ in track(
            study.run(),
            description=study.part,
            total=study.steps,
            console=Console(stderr=True),
            transient=True,
        ):
            pass
    except KeyboardInterrupt:
        return False
    return True


def _held_out(bench: DesignTest, last: Study) -> list[str]:
    """What the design, and the last study's best, come to on problems not searched on."""
    from dataclasses import replace

    from kdaverify.report.mailboxes import trial_line

    regimes = tuple(name for name in bench.regimes if name not in last.refused)
    fresh = replace(bench, regimes=regimes, seed=bench.seed + 1)
    _prepare(fresh, f"seed {fresh.seed}")
    kernels = {
        "as designed": fresh.design.formats(fresh.operands),
        **({} if last.best is None else {"fewest bytes": last.best.formats}),
    }
    return [
        trial_line(f"seed {fresh.seed}, {name}", fresh.trial(formats))
        for name, formats in kernels.items()
    ]


def _memories(bench: DesignTest, study: Study) -> list[str]:
    """What long memory makes of the design, the best assignment, narrow states, and an eps."""
    from dataclasses import replace

    from kdaverify.budgets.designs.ascend import BIASED
    from kdaverify.checks.mailboxes.memory import Memory
    from kdaverify.report.mailboxes import drift_line

    design, narrow = bench.design, bench.operands
    memory = Memory(narrow, design.gates)
    own = design.emulator(narrow)
    kernels = {
        "as designed": own,
        f"its state carried in {narrow.name}": replace(
            own, contract=replace(own.contract, carry=narrow)
        ),
    }
    if study.best is not None:
        kernels["fewest bytes"] = design.emulator(narrow, study.best.formats)
    if design.factored:
        kernels["log(alpha + 1e-6)"] = replace(own, stages=BIASED)
    lines = [drift_line(name, memory.drift(kernel)) for name, kernel in kernels.items()]
    return [*lines, *_own_check(design)]


def _own_check(design: Design) -> list[str]:
    from kdaverify.checks.mailboxes.own_check import ALLOWED, own_check

    if not design.factored:
        return []
    found = own_check()
    said = (
        f"allows {ALLOWED:g} and finds {found.apart:.2g}; against the definition v3 is off by"
        f" {found.definition:.2g}"
    )
    size = f"outputs up to {found.largest:.1e}, condition number {found.condition:.1e}"
    return [
        f"the designs' own check, v3 against v2 in fp32 on keys without a norm, {said} ({size})"
    ]


def _proposals(bench: DesignTest, console: Console) -> tuple[dict[str, Any], int]:
    from kdaverify.budgets.designs.catalogue import TRITON_NPU_STATE
    from kdaverify.checks.mailboxes.bench import REGIMES
    from kdaverify.checks.mailboxes.proposals import JUDGEMENTS, Judgement, judge
    from kdaverify.report.mailboxes import judgement_data, judgements_table, show

    if bench.design is not TRITON_NPU_STATE or bench.regimes != tuple(REGIMES):
        raise Complaint(
            f"--proposals: they were made for {TRITON_NPU_STATE.name} and are judged on every"
            " regime; leave --regimes out"
        )
    found: list[Judgement] = []
    try:
        for judgement in track(
            judge(bench),
            description="judging",
            total=JUDGEMENTS,
            console=Console(stderr=True),
            transient=True,
        ):
            found.append(judgement)  # noqa: PERF402 # one by one: an interruption keeps them
    except KeyboardInterrupt:
        show(console, "interrupted: the below is what is known so far")
    show(console, judgements_table(found))
    return {"proposals": [judgement_data(j) for j in found]}, 0
