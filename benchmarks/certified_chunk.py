"""One chunk of KDA, C = 64, K = V = 128, in balls and in mpmath, in one run.

`python -m benchmarks.certified_chunk [--repeats N]`; the two take turns, so that a busy machine
slows both. The opponent is mpmath on its gmpy2 backend, written the way mpmath is fastest: plain
lists instead of `mp.matrix`, the factorised decay (mpmath's exponents are unbounded too, so one exp
per gate), and `fdot`, which adds exactly and rounds once, for every inner product. It proves
nothing about its error; the balls do. Exit code 1 where the balls are less than 15 times faster, or
disagree.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import mpmath
import torch
from mpmath.libmp import BACKEND

from oracles import certified
from oracles.enclosure import CertifiedOutputs
from oracles.inputs import Inputs

mp: Any = mpmath.mp
BITS = 128
WANTED = 15.0

Vector = list[Any]
Matrix = list[Vector]


def one_chunk(C: int = 64, K: int = 128, V: int = 128) -> Inputs:
    """Unit keys, log-sigmoid gates, a random state, all float32."""
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw)

    unit = torch.nn.functional.normalize
    q, k = unit(normal(1, C, 1, K), dim=-1), unit(normal(1, C, 1, K), dim=-1)
    g = torch.nn.functional.logsigmoid(normal(1, C, 1, K))
    beta = torch.rand(1, C, 1, generator=draw)
    return Inputs(q, k, normal(1, C, 1, V), g, beta, initial_state=normal(1, 1, K, V))


def mpmath_chunk(inputs: Inputs) -> tuple[Matrix, Matrix]:
    """o [C, V] and S_T [K, V] of one chunk of one head.
    Math: section 3, with w and u by substitution.
    """
    q, k, v, g = (numbers(x[0, :, 0]) for x in (inputs.q, inputs.k, inputs.v, inputs.g))
    beta, scale = [mp.mpf(x) for x in inputs.beta[0, :, 0].tolist()], mp.mpf(inputs.factor)
    h = numbers(inputs.state[0, 0].T)  # by columns, as every product reads it
    decay = [[mp.exp(x) for x in row] for row in cumsum(g)]
    inverse = [[1 / x for x in row] for row in decay]
    qg, kd, ki = (times(a, b) for a, b in ((q, decay), (k, decay), (k, inverse)))
    tokens = range(len(q))
    Akk = [[beta[i] * mp.fdot(kd[i], ki[j]) for j in range(i)] for i in tokens]
    Aqk = [[scale * mp.fdot(qg[i], ki[j]) for j in range(i + 1)] for i in tokens]
    w = list(zip(*(substitute(Akk, beta, column) for column in zip(*kd, strict=True)), strict=True))
    v_new: Matrix = []
    for column, state in zip(zip(*v, strict=True), h, strict=True):
        u = substitute(Akk, beta, column)
        v_new.append([u[i] - mp.fdot(w[i], state) for i in tokens])
    o = [
        [
            scale * mp.fdot(qg[i], s) + mp.fdot(Aqk[i], x[: i + 1])
            for s, x in zip(h, v_new, strict=True)
        ]
        for i in tokens
    ]
    kg = [
        [x * last for x in column]
        for column, last in zip(zip(*ki, strict=True), decay[-1], strict=True)
    ]
    final = [
        [e * s[d] + mp.fdot(kg[d], x) for s, x in zip(h, v_new, strict=True)]
        for d, e in enumerate(decay[-1])
    ]
    return o, final


def numbers(tensor: torch.Tensor) -> Matrix:
    return [[mp.mpf(x) for x in row] for row in tensor.tolist()]


def times(a: Matrix, b: Matrix) -> Matrix:
    return [
        [x * y for x, y in zip(row, other, strict=True)] for row, other in zip(a, b, strict=True)
    ]


def cumsum(g: Matrix) -> Matrix:
    sums = [g[0]]
    for row in g[1:]:
        sums.append([s + x for s, x in zip(sums[-1], row, strict=True)])
    return sums


def substitute(Akk: Matrix, beta: Vector, column: tuple[Any, ...]) -> Vector:
    """(I + Akk)^-1 (beta x) for one column x."""
    found: Vector = []
    for row, b, x in zip(Akk, beta, column, strict=True):
        found.append(b * x - mp.fdot(row, found))
    return found


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def largest_gap(answer: CertifiedOutputs, o: Matrix, final: Matrix) -> Any:
    """Distance of mpmath from the balls' midpoints,
    relative to the largest value, over both outputs.
    """
    gaps: Vector = []
    for enclosure, exact in ((answer.o, o), (answer.final_state, final)):
        flat = [x for row in exact for x in row]
        pairs = zip(
            flat, enclosure.high.flatten().tolist(), enclosure.low.flatten().tolist(), strict=True
        )
        gaps.append(max(abs(x - high - low) for x, high, low in pairs) / max(abs(x) for x in flat))
    return max(gaps)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--repeats", type=int, default=3, help="runs of mpmath; the balls get five times as many"
    )
    repeats: int = parser.parse_args().repeats
    backend = str(BACKEND)
    if backend != "gmpy":
        print(f"mpmath runs on its {backend} backend; install gmpy2 for a fair opponent")
        return 1
    torch.set_num_threads(1)
    inputs = one_chunk()
    slow: list[float] = []
    fast: list[float] = []
    with mp.workprec(BITS):
        for _ in range(repeats):
            slow.append(seconds(lambda: mpmath_chunk(inputs)))
            fast += [seconds(lambda: certified.chunk(inputs, bits=BITS)) for _ in range(5)]
        gap = largest_gap(certified.chunk(inputs, bits=BITS), *mpmath_chunk(inputs))
    opponent, balls = statistics.median(slow), statistics.median(fast)
    print(
        f"one chunk, C = 64, K = V = 128, {BITS} bits, medians of {repeats} and {5 * repeats} runs"
    )
    print(f"  mpmath {mpmath.__version__}, gmpy2   {opponent:8.3f} s")
    print(
        f"  balls, proven radii   {balls:8.3f} s   {opponent / balls:.1f} times faster (wanted:"
        f" {WANTED:.0f})"
    )
    print(f"  largest gap between them, relative: {mp.nstr(gap, 3)}")
    return 0 if opponent >= WANTED * balls and gap < 2.0 ** (24 - BITS) else 1


if __name__ == "__main__":
    sys.exit(main())
