"""How often the error alone names planted bugs of a kernel that is a plain function, when no
catalogue of bugs is compared with it.

    python -m benchmarks.error_analysis bugs --json FILE [--draw development|test]
    python -m benchmarks.error_analysis compared --json FILE
    python -m benchmarks.error_analysis nothing --json FILE

bugs: every bug of the sample is planted in a kernel of another arithmetic than the candidates',
without stages, and run on the inputs on which it shows in the catalogue's tests, at another seed.
What is named is compared with the stages that the bug replaces. The rules were written on the
development draw; figures that are quoted are those of the test draw.
compared: what comparing with all other known bugs names for them: the state before.
nothing: errors that no mistake has made (random in some elements, of the size of roundings, one
wrong element, one wrong row), and
conforming kernels taken for wrong: no mistake and no tensor may be named.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final

import torch
from rich.progress import track

from benchmarks.diagnosis import SEED, Planted, questions
from kdaverify.adapters import find
from kdaverify.adapters.base import Adapter, Output
from kdaverify.diagnosis.fault_comparison import FaultComparison
from kdaverify.diagnosis.minimise import failure
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.diagnosis.suspects import suspects
from kdaverify.faults.catalogue import FAULTS
from kdaverify.faults.fault import Fault, Setting
from kdaverify.faults.kernel import Patch
from kdaverify.operators.kda.mistakes.finding import ErrorFinding, finding
from kdaverify.problems import Problem
from oracles.backward_stages import BACKWARD_SIGNATURES
from oracles.chunk import STAGES
from oracles.chunk_backward import BACKWARD
from oracles.inputs import Inputs
from oracles.stages import SIGNATURES
from tests.faults.triggers import PLAIN, TRIGGERS

LOOKED_AT: Final = ("H1", "H2", "GA3", "O2", "O5", "H6", "DESIGN-c", "B2", "B3", "SO1", "A3")
"""The bugs on which the rules were first tried: always of the development draw."""
DEVELOPMENT, SECOND, TEST = 1, 2, 3
MISTAKE, TENSOR, STAGES_LISTED, NOTHING = (
    "a mistake named",
    "a tensor named",
    "stages excluded",
    "nothing named",
)
DRAWN: Final = 20
SECONDS: Final = 10.0
Row = dict[str, Any]


def eligible() -> list[str]:
    """Bugs that always strike, of a plain call or its gradients, and give numbers."""
    return [
        fault.id
        for fault in FAULTS.values()
        if fault.operator == "kda"
        and fault.kind in "ABCE"
        and TRIGGERS[fault.id].how in ("call", "gradients")
    ]


def draw(which: str) -> list[str]:
    """The bugs of a sample; the test sample has none of the others,
    on which the rules were written and mended.
    """
    looked_at = [*LOOKED_AT]
    for seed in (DEVELOPMENT, SECOND):
        looked_at += _drawn(seed, looked_at)
    return looked_at if which == "development" else _drawn(TEST, looked_at)


def _drawn(seed: int, but: list[str]) -> list[str]:
    # a sample
    names = [name for name in eligible() if name not in but]
    return Random(seed).sample(names, DRAWN)  # noqa: S311


def truth(fault: Fault, problem: Problem) -> tuple[str, ...]:
    """The stages that the bug replaces, and that of its entry in the catalogue; "call" where it is
    in what is around them.
    """
    patch, x = fault.patch(Setting(1.0, torch.Generator())), problem.inputs()
    there = replaced(patch.stages(x), STAGES)
    back = [] if patch.backward is None else replaced(patch.backward(x), BACKWARD)
    signatures, probe = {**SIGNATURES, **BACKWARD_SIGNATURES}, torch.full((1,), 1 / 3)
    changed = {
        name: bool((patch.stored(name, probe) != probe).any())
        for found in signatures.values()
        for name in (*found.writes, "S")
    }
    stored = [
        stage for stage, found in signatures.items() if any(changed[name] for name in found.writes)
    ]
    own = [fault.stage] if fault.stage in signatures else []
    return tuple(
        dict.fromkeys((*there, *back, *stored, *(["state"] if changed["S"] else []), *own))
    ) or ("call",)


def replaced(stages: object, right: object) -> list[str]:
    """The names of the stages that are not the right ones."""
    return [name for name, stage in vars(stages).items() if stage is not getattr(right, name)]


def bug(name: str) -> Row:
    """The analysis of one bug, on the first question that it fails with numbers."""
    fault = FAULTS[name]
    row: Row = {"title": fault.title, "said": "", "found": "not rejected"}
    for question in questions(fault, ("fp32", "bf16", "fp16")):
        adapter = Planted(fault)
        failed = failure(adapter, question)
        if failed is None:
            continue
        started = time.monotonic()
        found = finding(question, adapter, until=started + SECONDS)
        right = truth(fault, question.problem)
        kind = kind_of(found)
        reported = (
            f"{kind}, {'right' if {*right} & {*found.stages[:2]} else 'wrong'}"
            if kind in (MISTAKE, TENSOR)
            else kind
        )
        reported = (
            f"{reported}, the right one excluded"
            if {*right} & {*found.excluded} and not {*right} & {*found.within}
            else reported
        )
        seconds = round(time.monotonic() - started, 1)
        known = {
            "dtype": question.problem.dtype,
            "status": str(failed[1]),
            "stages": right,
            "seconds": seconds,
        }
        return row | known | {"named": found.stages, "said": str(found), "found": reported}
    return row


def kind_of(found: ErrorFinding) -> str:
    if not str(found):
        return NOTHING
    return MISTAKE if found.explanation is not None else TENSOR if found.possible else STAGES_LISTED


def compared(name: str) -> Row:
    """What the comparison with known bugs and simple mistakes names
    of a bug that is left out of them.
    """
    fault = FAULTS[name]
    for question in questions(fault, ("fp32", "bf16", "fp16")):
        adapter = Planted(fault)
        if failure(adapter, question) is None:
            continue
        known = [
            suspect for suspect in next(suspects(question, adapter)) if suspect.fault.id != name
        ]
        found = [
            match.suspect
            for match in FaultComparison(question, adapter).matches(known)
            if match.indistinguishable
        ]
        return {
            "title": fault.title,
            "found": "something named" if found else NOTHING,
            "said": "; ".join(map(str, found)),
        }
    return {"title": fault.title, "found": "not rejected", "said": ""}


@dataclass(frozen=True)
class Disturbance:
    """An error that no mistake has made."""

    words: str
    change: Callable[[torch.Tensor, torch.Generator], torch.Tensor]


def _some(share: float, size: float) -> Callable[[torch.Tensor, torch.Generator], torch.Tensor]:
    def change(x: torch.Tensor, random: torch.Generator) -> torch.Tensor:
        drawn, struck = (
            torch.randn(x.shape, generator=random),
            torch.rand(x.shape, generator=random) < share,
        )
        return x + (size * drawn * x.float().square().mean().sqrt() * struck).to(x.dtype)

    return change


def _relative(size: float) -> Callable[[torch.Tensor, torch.Generator], torch.Tensor]:
    return lambda x, random: x * (1 + size * torch.randn(x.shape, generator=random)).to(x.dtype)


def _one(kind: str) -> Callable[[torch.Tensor, torch.Generator], torch.Tensor]:
    def change(x: torch.Tensor, random: torch.Generator) -> torch.Tensor:
        x = x.clone()
        flat = x.view(-1) if kind == "element" else x.view(-1, x.shape[-1])
        row = int(torch.randint(len(flat), (), generator=random))
        flat[row] = flat[row] + torch.randn(flat[row].shape, generator=random).to(x.dtype)
        return x

    return change


DISTURBANCES: Final = (
    *(Disturbance(f"random in {share:.0%} of o", _some(share, 1.0)) for share in (0.05, 0.3, 1.0)),
    Disturbance("random, 10 %", _some(1.0, 0.1)),
    Disturbance("relative 1 %", _relative(0.01)),
    Disturbance("relative 0.1 %", _relative(0.001)),
    Disturbance("one element", _one("element")),
    Disturbance("one row", _one("row")),
)


class Disturbed(Planted):
    """A right kernel whose outputs are disturbed, the same way at the same call."""

    def __init__(self, of: Disturbance, seed: int, outputs: tuple[str, ...]) -> None:
        super().__init__(FAULTS["H1"], patch=Patch())
        self._of, self._seed, self._struck = of, seed, outputs

    def forward(self, inputs: Inputs) -> Output:
        right, random = super().forward(inputs), torch.Generator().manual_seed(self._seed)
        changed = {name: self._of.change(getattr(right, name), random) for name in self._struck}
        return replace(right, **changed)


def disturbances(number: int) -> Iterator[tuple[str, Adapter, PropertyCase]]:
    """Random errors of o, of S_T, of both, on plain problems of both formats."""
    outputs = (("o",), ("final_state",), ("o", "final_state"))
    for i in range(number):
        of = DISTURBANCES[i % len(DISTURBANCES)]
        problem = Problem.model_validate(
            {**PLAIN, "dtype": ("fp32", "bf16")[i // 3 % 2], "seed": SEED + i, "T": 20}
        )
        yield (
            f"{i}: {of.words} of {outputs[i % 3]}",
            Disturbed(of, i, outputs[i % 3]),
            PropertyCase("forward", problem),
        )


def conforming() -> Iterator[tuple[str, Adapter, PropertyCase]]:
    """Right kernels, analysed as if they had failed."""
    for dtype in ("fp32", "bf16"):
        for seed in range(5):
            problem = Problem.model_validate({**PLAIN, "dtype": dtype, "seed": SEED + seed})
            for adapter in (
                find("eager"),
                find("eager-recurrent"),
                Planted(FAULTS["H1"], patch=Patch()),
            ):
                for name, detail in (("forward", {}), ("gradients", {"of": "both"})):
                    yield (
                        f"{adapter.name} {name} {problem.id}",
                        adapter,
                        PropertyCase(name, problem, detail),
                    )


def nothing(adapter: Adapter, question: PropertyCase) -> Row:
    found: ErrorFinding = finding(question, adapter, until=time.monotonic() + SECONDS)
    return {"found": kind_of(found), "said": str(found)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("bugs", "compared", "nothing"))
    parser.add_argument(
        "--json",
        type=Path,
        required=True,
        help="what is done, by name; started again, only the rest is run",
    )
    parser.add_argument(
        "--draw", choices=("development", "test"), default="test", help="which bugs (default test)"
    )
    parser.add_argument("--number", type=int, default=220, help="random errors (default 220)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    jobs: dict[str, Callable[[], Row]]
    if given.what in ("bugs", "compared"):
        row = bug if given.what == "bugs" else compared
        jobs = {name: lambda name=name: row(name) for name in draw(given.draw)}
    else:
        every = [*disturbances(given.number), *conforming()]
        jobs = {
            name: lambda adapter=adapter, question=question: nothing(adapter, question)
            for name, adapter, question in every
        }
    done: dict[str, Row] = json.loads(given.json.read_text()) if given.json.exists() else {}
    for name in track([name for name in jobs if name not in done], description=given.what):
        done[name] = jobs[name]()
        given.json.write_text(json.dumps(done, indent=1) + "\n")
    for reported in sorted({row["found"] for row in done.values()}):
        print(f"{reported}: {sum(row['found'] == reported for row in done.values())}")


if __name__ == "__main__":
    main()
