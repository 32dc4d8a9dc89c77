"""`kdaverify oracle`: the exact answer of a problem, with its proven radius, in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from kdaverify.cli.complaint import Complaint, as_complaint
from kdaverify.cli.options import any_problem_from

if TYPE_CHECKING:
    from torch import Tensor

    from kdaverify.problems import Problem
    from oracles.enclosure import CertifiedOutputs, Enclosure
    from oracles.inputs import Inputs

MOST_DIGITS = 30


def oracle(
    problem: Annotated[str, typer.Argument(help="a problem's JSON, or a file that holds it")],
    output: Annotated[Path, typer.Option("--output", "-o", help="safetensors file to write")],
    digits: Annotated[
        int,
        typer.Option(
            min=1,
            max=MOST_DIGITS,
            help="proven decimal digits, relative to the largest element of every row",
        ),
    ] = 20,
) -> None:
    """Write inputs and certified outputs of a problem to a safetensors file.

    The exact o lies within o.radius of o.high + o.low, all float64; final_state likewise. The
    inputs are the rounded tensors a kernel gets.

    Example: kdaverify oracle problem.json -o exact.safetensors --digits 25
    """
    from safetensors.torch import save_file

    from oracles.certified import UncertifiedError, certify

    if not output.parent.is_dir():
        raise Complaint(f"--output: no folder {output.parent}; make it first")
    question = _problem_from(problem)
    inputs = question.inputs()
    console = Console(stderr=True)
    with (
        as_complaint(UncertifiedError, prefix=f"--digits {digits}: "),
        console.status(f"certifying {question.id} to {digits} digits"),
    ):
        answer = certify(
            inputs,
            accept=lambda found: _proven(found.o, digits) and _proven(found.final_state, digits),
        )
    about = {"problem": question.to_json(), "method": answer.method, "digits": str(digits)}
    save_file(_tensors(inputs, answer), output, metadata=about)
    Console().print(
        f"{output}: o and final_state of {question.id} to {digits} digits, {answer.method}",
        soft_wrap=True,
        highlight=False,
    )


def _proven(enclosure: Enclosure, digits: int) -> bool:
    """Whether every radius is at most 10^-digits of the largest element of its row."""
    if not enclosure.high.numel():
        return True
    allowed = enclosure.high.abs().amax(dim=-1, keepdim=True) * 10.0**-digits
    return bool(((enclosure.radius <= allowed) | enclosure.zero).all())


def _tensors(inputs: Inputs, answer: CertifiedOutputs) -> dict[str, Tensor]:
    names = ("q", "k", "v", "g", "beta", "initial_state", "cu_seqlens")
    given = {name: getattr(inputs, name) for name in names if getattr(inputs, name) is not None}
    exact = {
        f"{name}.{part}": getattr(enclosure, part)
        for name, enclosure in (("o", answer.o), ("final_state", answer.final_state))
        for part in ("high", "low", "radius")
    }
    return {name: tensor.contiguous() for name, tensor in {**given, **exact}.items()}


def _problem_from(text: str) -> Problem:
    """The problem of a whole call that `text`, a path or inline JSON, holds.

    Raises:
        Complaint: no such file, or no such problem in it.
    """
    from kdaverify.problems import Problem

    tested = any_problem_from(text)
    if not isinstance(tested, Problem):
        raise Complaint(
            f"problem: wanted one of op kda, got op {tested.op}; it has properties of its own"
        )
    return tested
