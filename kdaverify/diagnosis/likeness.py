"""How near candidates come to a wrong answer, in spreads of conforming kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kdaverify.diagnosis.answer import KernelErrors
from kdaverify.diagnosis.tolerances import APART, Tolerances


@dataclass(frozen=True)
class Likeness:
    """One candidate beside the kernel, on one case.

    Args:
        residual: the unexplained share of the error, rms over outputs in tolerances.
        noise: an output's largest difference, in differences of two conforming kernels.
        mixed: the share that is left where every element may be right as well: of a mistake that is
            made in parts of the call.
    """

    residual: float
    noise: float
    mixed: float


def likenesses(
    kernel: KernelErrors, candidates: Mapping[str, Tensor], scales: Tolerances
) -> list[Likeness]:
    """Each candidate beside the kernel; infinitely far where one of the two is not finite.

    Math: as `tolerances.fit`, for many candidates at once.

    Args:
        kernel: finite outputs.
        candidates: [candidates, ...] float64, by output.
    """
    number = max((len(found) for found in candidates.values()), default=0)
    apart, mixed, noise = (torch.zeros(number, dtype=torch.float64) for _ in range(3))
    effect = 0.0
    for name, reported in scales.items():
        if name not in kernel.outputs or not reported.exact.numel():
            continue
        mine = kernel.outputs[name].flatten()
        theirs = candidates[name].flatten(1)
        exact = reported.exact.flatten()
        growth = (_rms(theirs) / (_rms(exact) or 1.0)).clamp(min=1.0)
        difference, error = (mine - theirs).abs(), (mine - exact).abs()
        apart += (_rms(difference) / reported.rms).square()
        mixed += (_rms(difference.minimum(error)) / reported.rms).square()
        effect += float(_rms(error) / reported.rms) ** 2
        whole = (_rms(difference) / reported.rms).maximum(difference.amax(-1) / reported.largest)
        noise = noise.maximum(whole / growth / APART)
    shares = ((x / effect if effect else x).sqrt().tolist() for x in (apart, mixed))
    rows = zip(*shares, noise.tolist(), strict=True)
    return [Likeness(_or_far(residual), _or_far(far), _or_far(mix)) for residual, mix, far in rows]


def _rms(x: Tensor) -> Tensor:
    return x.square().mean(-1).sqrt()


def _or_far(x: float) -> float:
    return math.inf if math.isnan(x) else x


def wrong_elements(kernel: KernelErrors, scales: Tolerances) -> int:
    """Elements that no conforming kernel has."""
    wrong = (
        ~((kernel.outputs[name] - reported.exact).abs() <= APART * reported.largest)
        for name, reported in scales.items()
        if name in kernel.outputs
    )
    return sum(int(found.sum()) for found in wrong)
