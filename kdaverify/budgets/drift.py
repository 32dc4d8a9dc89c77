"""How conforming kernels' error grows with length, which a kernel's growth is held to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from kdaverify.budgets.accelerator import exp_approximate, exp_short
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.emulate import Emulator, multiplied_decays
from kdaverify.budgets.ensemble import ContractOverflow, ensemble, mapping, on_units
from kdaverify.budgets.formats import Format
from kdaverify.budgets.monte_carlo import SEED, MonteCarloArithmetic
from oracles.inputs import Inputs
from oracles.long_run import Truth
from oracles.tensors import OUTPUTS
from oracles.waypoints import Reached, walk


@dataclass(frozen=True)
class Curve:
    """The error of one output of one kernel, by length.

    Args:
        name: of the kernel.
        rms: [samples, lengths] of the error, as a fraction of the rms of the exact output.
        mean: [samples, lengths] common error: found ~ (1 + mean) exact, by least squares.
    """

    name: str
    rms: Tensor
    mean: Tensor


Curves = dict[str, Curve]
Run = Callable[[Inputs], tuple[Tensor, Tensor]]


def curves(
    name: str, reached: Sequence[Reached], truth: Truth, outputs: Sequence[str] = OUTPUTS
) -> Curves:
    """The error curve of every output of a run that was looked at where the truth was.

    Args:
        reached: rising lengths, those of the truth or the first of them.
    """
    points = list(zip(reached, truth.reached, strict=False))

    def of(output: str) -> Curve:
        found = [_errors(getattr(there, output), getattr(exact, output)) for there, exact in points]
        rms, mean = (torch.stack(part, dim=-1).cpu() for part in zip(*found, strict=True))
        return Curve(name, rms, mean)

    return {output: of(output) for output in outputs}


def _errors(found: Tensor, exact: Tensor) -> tuple[Tensor, Tensor]:
    error, exact = (found.to(exact.device).double() - exact).flatten(1), exact.flatten(1)
    power = exact.square().mean(1)
    return (error.square().mean(1) / power).sqrt(), (error * exact).mean(1) / power


def conforming_curves(
    inputs: Inputs,
    contract: Contract,
    io: Format,
    truth: Truth,
    *,
    cuts: Sequence[int] = (),
    outputs: Sequence[str] = OUTPUTS,
) -> list[Curves]:
    """Error curves of reference kernels that differ in the carried state, one stochastic.

    Args:
        inputs: what the kernel receives, dense sequences.
        io: format of q, k, v and o.
        cuts: tokens at which the run is cut and resumed from its stored state.
    Raises:
        ContractOverflow: every one of them overflows on these inputs.
    """
    at = [there.tokens for there in truth.reached]
    # Its roundings are draws, one after the other over all the calls of a run.
    drawn = partial(
        MonteCarloArithmetic(contract, io).once,
        rng=torch.Generator(inputs.q.device).manual_seed(SEED),
    )
    runs = [
        *((x.name, x.run, x.contract.chunk_size) for x in carriers(contract, io)),
        ("stochastic rounding", drawn, contract.chunk_size),
    ]
    found = [
        curves(name, _walked(run, inputs, at, cuts, chunk), truth, outputs)
        for name, run, chunk in runs
    ]
    finite = [
        by_output
        for by_output in found
        if all(bool(curve.rms.isfinite().all()) for curve in by_output.values())
    ]
    if not finite:
        raise ContractOverflow(
            f"every emulated kernel of {contract.name} overflows on this problem; choose milder"
            " values"
        )
    return finite


def _walked(
    run: Run, inputs: Inputs, at: Sequence[int], cuts: Sequence[int], chunk: int
) -> list[Reached]:
    """What a reference kernel has reached at every length, in runs that are cut where the kernel
    under test is: lengths within a chunk have a run of their own, as they have there.

    Pausing at 64 tokens, a chunk of 128 kept the roundings of its first half for the whole run. A
    right kernel, which had those at 64 tokens only, was rejected for a slope of 0.11.
    """
    within = [] if cuts else [tokens for tokens in at if tokens % chunk]
    reached = [there for tokens in within for there in walk(run, inputs, (tokens,))]
    whole = [tokens for tokens in at if tokens not in within]
    if whole:
        reached += walk(run, inputs, whole, cuts)
    return sorted(reached, key=lambda there: there.tokens)


def carriers(contract: Contract, io: Format) -> list[Emulator]:
    """Of the ensemble: the baseline, the smallest chunks, products of decays, units that round or
    cut operands to TF32, a one-sided exponential, and maps of the state.

    The others differ in how a chunk is solved or summed, which costs the same in every chunk. Where
    the reference ensemble has no such exponential, because a single chunk does not show it, the
    baseline gets one. Of operands that are cut all products are too small: FLA's kernels on an H200
    were rejected at 1.2 to 1.7 times their tolerance where that was none of the carriers.
    """
    plain, *others = ensemble(contract, io)
    smallest = min(others, key=lambda member: member.contract.chunk_size)
    one_sided = [member for member in others if member.exp in (exp_approximate, exp_short)]
    short = replace(plain, name="approximate exponential", exp=exp_short)
    products = multiplied_decays(contract.accumulate)
    return [
        plain,
        *on_units(plain),
        *([smallest] if smallest.contract != contract else []),
        *(member for member in others if member.stages.cumsum is products),
        *(one_sided or [short]),
        *mapping((plain,), contract),
    ]
