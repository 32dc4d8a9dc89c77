"""How well the forms of the gradients agree with each other, on problems sampled as the suites
sample them.

    python -m benchmarks.gradient_agreement --problems 500

For every problem: the token adjoint and the chunk backward in float64, torch's autograd of the
recurrence, the adjoint in balls, and the certified slope of the chunk form along a direction of
random signs. Cotangents are of o, of S_T, of both, and of both scaled by 2^-25 and 2^20, in turn. A
difference is relative to the largest element of the gradient, and where terms cancel to the largest
of them (`oracles.gradients.scales`; dq to a thousandth of scale |do| |S_0| where the tokens erase
the state). Prints the worst of every pair and gradient; exit code 1 where one is past 1e-13, or two
enclosures do not overlap. The chunk form takes decays as differences of summed gates, and keeps
what the rounding of the sums leaves out.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from dataclasses import replace

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from benchmarks.false_alarms import DTYPES, drawn
from kdaverify.problems import Problem
from oracles import certified
from oracles.adjoint import adjoint
from oracles.chunk import COMPENSATED
from oracles.chunk_backward import chunk_backward
from oracles.gradients import Cotangents, GradientAnswer, Gradients, scales
from oracles.inputs import Inputs
from oracles.recurrence import recurrence
from oracles.tensors import GRADIENTS

WANTED = 1e-13
SHARP = 2.0**-80
# Below this float64 keeps fewer bits: a gradient that has all but vanished is compared at this
# size.
SMALLEST = 1e-280
# Largest estimated cost of a problem, in seconds of certifying its outputs; the gradients take some
# twenty times as long.
COST = 0.02
CEILING_BITS = 4096
SIZES = (("o", 1.0), ("S_T", 1.0), ("both", 1.0), ("both", 2.0**-25), ("both", 2.0**20))
Worst = dict[tuple[str, str], tuple[float, str]]  # by pair and gradient, with the problem


def weights(inputs: Inputs, number: int) -> Cotangents:
    which, size = SIZES[number % len(SIZES)]
    rng = torch.Generator().manual_seed(number)
    do, dS = (
        torch.randn(shape, generator=rng, dtype=torch.float64) * size
        for shape in (inputs.v.shape, inputs.state.shape)
    )
    return Cotangents(None if which == "S_T" else do, None if which == "o" else dS)


def anywhere(inputs: Inputs, number: int) -> Gradients[Tensor]:
    rng = torch.Generator().manual_seed(number)
    given = (inputs.q, inputs.k, inputs.v, inputs.g, inputs.beta, inputs.state)
    dq, dk, dv, dg, dbeta, state = (
        torch.randint(2, x.shape, generator=rng).double() * 2 - 1 for x in given
    )
    return Gradients(dq, dk, dv, dg, dbeta, state)


def autograd(inputs: Inputs, cotangents: Cotangents) -> Gradients[Tensor]:
    given = {
        "q": inputs.q,
        "k": inputs.k,
        "v": inputs.v,
        "g": inputs.g,
        "beta": inputs.beta,
        "initial_state": inputs.state,
    }
    leaves = {name: tensor.double().clone().requires_grad_() for name, tensor in given.items()}
    pairs = zip(recurrence(replace(inputs, **leaves)), cotangents.of(inputs), strict=True)
    outputs, given_weights = zip(*(pair for pair in pairs if pair[0].requires_grad), strict=True)
    found = torch.autograd.grad(
        outputs, list(leaves.values()), given_weights, materialize_grads=True
    )
    dq, dk, dv, dg, dbeta, state = found
    return Gradients(dq, dk, dv, dg, dbeta, state)


def exact(answer: GradientAnswer) -> Gradients[Tensor]:
    return Gradients(**{name: x.high for name, x in answer.named().items()})


def judge(problem: Problem, number: int, worst: Worst) -> tuple[bool, float]:
    """Notes the differences; whether the enclosures of the slope overlap,
    and how wide they are relative to it.
    """
    inputs = problem.inputs()
    given, direction = weights(inputs, number), anywhere(inputs, number)
    answer = certified.certify_gradients(inputs, given, accept=sharp)
    forms = {
        "adjoint": adjoint(inputs, given),
        "chunk backward": chunk_backward(inputs, given, stages=COMPENSATED),
        "autograd": autograd(inputs, given),
        "balls": exact(answer),
    }
    sizes = scales(forms["balls"], answer.terms)
    erased = (
        1e-3
        * abs(inputs.factor)
        * float(given.of(inputs)[0].abs().max())
        * float(inputs.state.abs().max())
    )
    sizes["dq"] = max(sizes["dq"], erased)
    for one, other in (
        ("adjoint", "balls"),
        ("chunk backward", "balls"),
        ("autograd", "balls"),
        ("adjoint", "chunk backward"),
    ):
        for name in GRADIENTS:
            a, b = (forms[form].named()[name] for form in (one, other))
            gap = float((a - b).abs().max()) if a.numel() else 0.0
            found = gap / max(sizes[name], SMALLEST)
            if not found <= worst[f"{one}, {other}", name][0]:
                worst[f"{one}, {other}", name] = (found, problem.to_json())
    found = certified.slope(answer.gradients, direction, bits=512)
    bits = 256 + 4 * max(inputs.lengths, default=0)
    while True:
        wanted = certified.directional(inputs, given, direction, bits=bits)
        width = float(wanted.radius) / max(abs(float(wanted.high)), SMALLEST)
        if width <= SHARP or bits > CEILING_BITS:
            return bool(found.overlaps(wanted)), width
        bits *= 2


def sharp(answer: GradientAnswer) -> bool:
    return all(
        bool((x.radius <= SHARP * x.high.abs().max().clamp(min=SMALLEST)).all())
        for x in answer.named().values()
        if x.high.numel()
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--problems",
        type=int,
        default=500,
        help="problems in all, a quarter per dtype (default 500)",
    )
    parser.add_argument("--seed", type=int, default=2, help="of the random problems (default 2)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tested = [
        p
        for i, dtype in enumerate(DTYPES)
        for p in drawn(arguments.problems // len(DTYPES), dtype, arguments.seed + i, COST)
    ]
    worst: Worst = defaultdict(lambda: (0.0, ""))
    apart, widths = list[str](), list[float]()
    for number, problem in enumerate(track(tested, description="differentiating")):
        together, width = judge(problem, number, worst)
        widths.append(width)
        if not together:
            apart.append(problem.to_json())
    show(worst)
    print(
        f"{len(tested)} problems: enclosures of the slope overlap on {len(tested) - len(apart)},"
        f" widest {max(widths):.1e} of the slope"
    )
    for name, (gap, problem) in worst.items():
        if not gap <= WANTED:
            print(f"{gap:.1e} {name}: {problem}")
    for problem in apart:
        print(f"NO OVERLAP: {problem}")
    return 0 if not apart and all(gap <= WANTED for gap, _ in worst.values()) else 1


def show(worst: Worst) -> None:
    table = Table("pair", *GRADIENTS, title="worst relative difference")
    for pair in dict.fromkeys(pair for pair, _ in worst):
        table.add_row(pair, *(f"{worst[pair, name][0]:.1e}" for name in GRADIENTS))
    Console(width=120).print(table)


if __name__ == "__main__":
    sys.exit(main())
