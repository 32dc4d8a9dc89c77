"""Which outputs an ensemble keeps finite: all of some kernels, or some of all kernels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from torch import Tensor

from oracles.arithmetic import is_finite

R = TypeVar("R")


class ContractOverflow(Exception):
    """No conforming kernel of the contract keeps this problem finite: it is inconclusive."""


class OutputRuns(NamedTuple):
    """One output of the reference kernels that round to nearest, of the stochastic-rounding
    samples, and of samples of kernels of another form.
    """

    rounded: list[Tensor]
    drawn: list[Tensor]
    apart: Sequence[Tensor] = ()


def finite_runs(
    runs: Mapping[str, R],
    outputs: Callable[[R], Iterable[Tensor]],
    *,
    deciding: Collection[str],
    single: bool,
) -> dict[str, R]:
    """The runs that are finite in all outputs, where all those of `deciding` are.

    Smaller chunks have smaller sums, and autograd stores no intermediate of a written backward. For
    their sake a right kernel with chunks of 64 was rejected for dk, dg and dbeta (fp16, K = 1,
    beta = 2), where every other one of that size overflows.

    Args:
        runs: by the name of the reference kernel.
        outputs: of one run.
        deciding: names of the runs that show what the declared formats hold.
        single: whether all runs are returned where one overflows, but others are finite.
    """
    finite = {name: [is_finite(output) for output in outputs(run)] for name, run in runs.items()}
    throughout = {name: run for name, run in runs.items() if all(finite[name])}
    if throughout.keys() >= set(deciding):
        return throughout
    shared = single and any(all(of_output) for of_output in zip(*finite.values(), strict=True))
    return dict(runs) if shared else {}


def finite_outputs(outputs: Mapping[str, OutputRuns]) -> list[str]:
    """The outputs that a conforming kernel has to keep finite, by name.

    Reference kernels that are finite in all outputs decide for all, whatever the samples do: see
    `finite_runs`. Elsewhere no reference kernel and no sample may overflow in an output: a
    conforming kernel in plain torch under autograd returned dq = inf in fp16 where others of the
    ensemble kept it finite.
    """
    if all(is_finite(x) for runs in outputs.values() for x in runs.rounded):
        return list(outputs)
    return [
        name for name, runs in outputs.items() if all(map(is_finite, (*runs.rounded, *runs.drawn)))
    ]
