"""What the float64 oracle costs against a plain float64 token loop, and over a long sequence.

    python benchmarks/float64_oracle.py

Prints the median ratio of the chunk form to a plain loop at T = 4096, H = 4, K = V = 128 (both in
one run, alternating), and seconds and peak memory of T = 131072, one head.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from oracles.chunk import chunk
from oracles.inputs import Inputs


def problem(T: int, H: int, width: int) -> Inputs:
    rng = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=rng)

    unit = torch.nn.functional.normalize
    q, k = (unit(normal(1, T, H, width), dim=-1) for _ in range(2))
    g = torch.nn.functional.logsigmoid(normal(1, T, H, width))
    return Inputs(q, k, normal(1, T, H, width), g, torch.rand(1, T, H, generator=rng))


def plain_loop(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """What a user would write: the definition, one token at a time, all heads at once."""
    x = inputs.to(torch.float64)
    state, o = x.state, torch.empty_like(x.v)
    for t in range(x.T):
        state = state * x.g[:, t].exp()[..., None]
        k = x.k[:, t]
        u = x.beta[:, t, :, None] * (x.v[:, t] - (k[..., None, :] @ state)[..., 0, :])
        state = state + k[..., None] * u[..., None, :]
        o[:, t] = x.factor * (x.q[:, t, :, None, :] @ state)[..., 0, :]
    return o, state


def seconds(call: Callable[[Inputs], object], inputs: Inputs) -> float:
    started = time.perf_counter()
    call(inputs)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5, help="alternating runs of each (default 5)")
    runs = parser.parse_args().runs
    inputs = problem(4096, 4, 128)
    chunk(inputs)  # the first call loads libraries
    pairs = [(seconds(chunk, inputs), seconds(plain_loop, inputs)) for _ in range(runs)]
    ours, loop = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    print(
        f"T = 4096, H = 4, K = V = 128, median of {runs}: chunk form {ours:.2f} s, plain token loop"
        f" {loop:.2f} s, ratio {ratio:.2f}"
    )
    long = seconds(chunk, problem(131072, 1, 128))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"T = 131072, one head, K = V = 128: {long:.1f} s, peak memory of the process"
        f" {peak:.2f} GiB"
    )


if __name__ == "__main__":
    main()
