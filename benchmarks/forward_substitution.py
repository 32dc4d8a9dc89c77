"""Ways of the triangular solve, by keys, decay and beta: relative rms error of R, and the worst
statistic as a fraction of its tolerance.

    python -m benchmarks.forward_substitution [CONTRACT:PRODUCTS ...]

Columns: the way; per problem the rms error of the strictly lower part of R over its rms, the
fraction of tolerance of the worst statistic, and the residual of R (I + Akk) = I over its bound.
Above 1 is rejected.
"""

from __future__ import annotations

import itertools
import sys

import torch

from benchmarks.substitutions import substitutions
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.formats import FORMATS
from kdaverify.problems import Problem
from kdaverify.problems.axes import Dtype

DECLARED = (
    "chunk64-fp32:fp32",
    "chunk64-tf32:tf32",
    "chunk64-bf16-fp32solve:fp32",
    "chunk64-bf16-tf32solve:tf32",
    "chunk64-bf16:bf16",
)
KEYS, GATES, BETAS = (
    ("random", "coherent-0.9", "identical"),
    ("zero", "slow", "log-sigmoid"),
    ("uniform", "one"),
)
FORMATS_OF: dict[str, Dtype] = {"fp32": "fp32", "tf32": "fp32", "bf16": "bf16", "fp16": "fp16"}


def problems(dtype: Dtype) -> dict[str, Problem]:
    """One chunk for every combination of key coherence, decay and beta."""
    return {
        f"{key}, {gate}, beta {beta}": Problem(
            B=1,
            T=64,
            H=1,
            HV=2,
            K=16,
            V=4,
            dtype=dtype,
            gate=gate,
            key=key,
            beta=beta,
            state="absent",
            value="normal",
            seed=1,
        )
        for key, gate, beta in itertools.product(KEYS, GATES, BETAS)
    }


def main(declared: list[str]) -> None:
    torch.set_num_threads(1)
    for spec in declared or DECLARED:
        name, _, products = spec.partition(":")
        contract = contract_from_name(name)
        print(f"\n{name}, products in {products}")
        for problem_name, problem in problems(FORMATS_OF[contract.operands.name]).items():
            cells = [
                f"{row.way} {row.error:.1e}"
                f" {max(row.comparison.ratios.values(), default=float('inf')):.1e}"
                f" {row.residual:.1e}"
                for row in substitutions(problem, contract, FORMATS[products])
            ]
            print(f"{problem_name:36} | " + " | ".join(cells), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
