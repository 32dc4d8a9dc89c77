"""What a worker process costs: the same call there and in this process,
and what replacing the process takes.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, Final

import torch

from kdaverify.adapters import Adapter, find, kernel
from kdaverify.adapters.isolation import Isolated
from kdaverify.checks.execute import execute
from kdaverify.limits import Limits
from kdaverify.problems import Problem
from oracles.inputs import Inputs
from oracles.tensors import OUTPUTS

ROUNDS: Final = 45
WARM: Final = 5
LIMIT_MS: Final = 5.0
PROBLEM: Final = Problem(
    B=1,
    T=1024,
    H=4,
    HV=4,
    K=128,
    V=128,
    dtype="bf16",
    gate="mild",
    key="random",
    beta="uniform",
    state="random",
    value="normal",
    seed=1,
)


@kernel(name="trivial", dtypes=("bf16",))
def trivial(q: Any, k: Any, v: Any, g: Any, beta: Any, *, initial_state: Any) -> Any:
    """Reads nothing, writes both outputs."""
    del q, k, g, beta
    return torch.empty_like(v).zero_(), torch.empty_like(initial_state).zero_()


def main() -> None:
    torch.set_num_threads(1)
    print(f"{PROBLEM.describe()}, median of {ROUNDS - WARM} calls taken in turns, milliseconds")
    print(
        f"{'kernel':<10}{'here':>10}{'isolated':>10}{'overhead':>10}{'ratio':>8}{'first call':>12}"
    )
    inputs = PROBLEM.inputs()
    for name, spec in (("trivial", "benchmarks.isolation:trivial"), ("eager", "eager")):
        here = find(spec)
        there = Isolated(here, spec, limits=Limits())
        first = _milliseconds(there, inputs)
        own, apart = _medians(here, there, inputs)
        there.end()
        print(
            f"{name:<10}{own:>10.2f}{apart:>10.2f}{apart - own:>10.2f}{apart / own:>8.2f}"
            f"{first:>12.0f}"
        )
        if name == "trivial":
            print(
                f"overhead {apart - own:.2f} ms, {'within' if apart - own < LIMIT_MS else 'OVER'}"
                f" the limit of {LIMIT_MS:g} ms"
            )


def _medians(here: Adapter, there: Adapter, inputs: Inputs) -> tuple[float, float]:
    """In turns, so that whatever else the machine does strikes both alike."""
    pairs = [(_milliseconds(here, inputs), _milliseconds(there, inputs)) for _ in range(ROUNDS)]
    own, apart = zip(*pairs[WARM:], strict=True)
    return statistics.median(own), statistics.median(apart)


def _milliseconds(adapter: Adapter, inputs: Inputs) -> float:
    started = time.perf_counter()
    execute(adapter, inputs, OUTPUTS)
    return (time.perf_counter() - started) * 1e3


if __name__ == "__main__":
    main()
