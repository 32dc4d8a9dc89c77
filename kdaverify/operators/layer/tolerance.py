"""What the tokens of a layer may differ by between two ways of computing the same.

There is no oracle of a layer. Its plain call is the reference: every sequence alone, without
padding, without a cache, in one call, in float64 where the layer takes float64. The tolerance of a
token is FACTOR times the largest error, rms over the width, that plain evaluations of it have:

- the plain call in the format of the problem,
- SAMPLES plain calls whose hidden is changed by at most a unit in the last place: what roundings
  of that size come to at the output (Monte Carlo arithmetic, Parker 1997),
- plain calls of prefixes, which by causality end in the same tokens: a layer that chooses its
  kernel by the length, or sums in another order, is sampled in each form,

and at least FACTOR times the median of these errors over all tokens, and FACTOR times the unit
roundoff of the output.
None of these calls uses a cache, a mask or offsets, so that no fault of theirs widens it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.formats import FORMATS
from kdaverify.checks.execute import execute, watched
from kdaverify.operators.layer.call import LayerCall
from kdaverify.operators.layer.problem import LayerProblem
from kdaverify.problems.portable import Stream

FACTOR: Final = 8.0
"""The recurrent and the chunk form of one delta rule differ in their errors by up to 5 (measured:
1.0e-7 and 4.8e-7 in fp32), and the rms of one token over a width of 64 scatters by 1.6 between
seeds. Faults of caches, masks and offsets are 1e3 and more times a tolerance in fp32, 6 and more
in bf16."""
SAMPLES: Final = 3
PREFIXES: Final = (1, 2, 5, 16, 33, 63, 64, 65)
"""Lengths around those at which layers change their kernel or their tiles."""
WIDE: Final = "fp64"
"""The format of the reference, where a layer takes it."""


@dataclass(frozen=True)
class PlainCall:
    """Args: truth: [B, T, D] in float64; allowed: [B, T], rms over D."""

    truth: Tensor
    allowed: Tensor


def rms_of(rows: Tensor) -> Tensor:
    """Over the width."""
    return rows.double().square().mean(-1).sqrt()


def run(adapter: Adapter, call: LayerCall, cotangents: Tensor | None = None) -> Tensor:
    """out, or the gradient of hidden, in float64."""
    if cotangents is None:
        return execute(adapter, call, ("out",)).outputs["out"].double()
    found = watched(lambda: adapter.gradients(call, {"dout": cotangents}), "dhidden")
    return found["dhidden"].double()


@lru_cache(maxsize=4)
def plain_call(
    adapter: Adapter, problem: LayerProblem, lengths: tuple[int, ...] | None = None
) -> PlainCall:
    """Of out; of the gradient of hidden where `lengths` are given, of what the loss sees."""
    hidden = problem.inputs().hidden
    loss = None if lengths is None else cotangents(problem, lengths)
    exact = hidden.double() if adapter.takes.words["reference"] == WIDE else hidden
    truth = alone(adapter, exact, None if loss is None else loss.to(exact.dtype))
    samples = [alone(adapter, x, loss) for x in (hidden, *_perturbed(problem, hidden))]
    errors = torch.stack([rms_of(sample - truth) for sample in samples]).amax(0)
    if loss is None:
        errors = _with_prefixes(adapter, hidden, truth, errors)
    floor = torch.maximum(errors.median(), FORMATS[problem.dtype].unit * rms_of(truth))
    return PlainCall(truth, FACTOR * torch.maximum(errors, floor))


def cotangents(problem: LayerProblem, lengths: tuple[int, ...]) -> Tensor:
    """Normal ones [B, T, D], 0 past the length of each sequence."""
    seen = torch.arange(problem.T) < torch.tensor(lengths)[:, None]
    return problem.normal("dout", problem.B, problem.T) * seen[..., None]


def alone(adapter: Adapter, hidden: Tensor, loss: Tensor | None) -> Tensor:
    """out of every row alone; of the gradient of hidden where there is a loss."""
    calls = [LayerCall(row.contiguous()) for row in hidden.split(1)]
    losses = [None] * len(calls) if loss is None else [row.contiguous() for row in loss.split(1)]
    return torch.cat([run(adapter, *one) for one in zip(calls, losses, strict=True)])


def _perturbed(problem: LayerProblem, hidden: Tensor) -> list[Tensor]:
    spacing = 2 * FORMATS[problem.dtype].unit
    streams = [Stream(problem.seed, "perturbed", str(turn)) for turn in range(SAMPLES)]
    drawn = [torch.from_numpy(stream.normal(*hidden.shape)).clamp(-1, 1) for stream in streams]
    return [(hidden.double() * (1 + spacing * x)).to(hidden.dtype) for x in drawn]


def _with_prefixes(adapter: Adapter, hidden: Tensor, truth: Tensor, errors: Tensor) -> Tensor:
    found = errors.clone()
    for length in (n for n in PREFIXES if n < hidden.shape[1]):
        own = alone(adapter, hidden[:, :length].contiguous(), None)
        found[:, :length] = torch.maximum(found[:, :length], rms_of(own - truth[:, :length]))
    return found
