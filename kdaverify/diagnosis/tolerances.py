"""The exact outputs of a test, and how far two conforming kernels may lie apart in each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torch import Tensor

from kdaverify.budgets.statistics import rms
from kdaverify.checks.status import Status
from kdaverify.diagnosis.answer import KernelErrors

APART: Final = 2.0
"""Two kernels within tolerance of one value lie at most two tolerances apart."""
LEAST: Final = 2.0**-149
CLEAR: Final = 8.0
"""Where elements are not finite, an effect in the others counts only from so many times the
tolerance on."""
FINITE: Final = 1 / 8
"""Least share of the elements that must be finite in both outputs, for the two to be compared."""


@dataclass(frozen=True)
class Scale:
    """One output.

    Args:
        exact: float64.
        rms, largest: tolerances of these statistics; above 0.
        unit: what elements are counted in, where each has a tolerance of its own.
    """

    exact: Tensor
    rms: float
    largest: float
    unit: Tensor | None = None

    def counted(self, x: Tensor) -> Tensor:
        """`x` in units of the elements."""
        return x if self.unit is None else x / self.unit


def scale(exact: Tensor, rms_budget: float, largest_budget: float, *, least: float) -> Scale:
    """The scale of an output with a common tolerance; `least` for one that is exactly 0."""
    return Scale(exact.double(), rms_budget or least or LEAST, largest_budget or least or LEAST)


@dataclass(frozen=True)
class Fit:
    """How near two answers are.

    Args:
        distance: between them, as a fraction of the first's error; 1: a right kernel's.
        noise: the most that an output of theirs differs by, in units of the difference that two
            conforming kernels may have.
    """

    distance: float
    noise: float


Tolerances = dict[str, Scale]
FAR: Final = Fit(float("inf"), float("inf"))


def fit(
    kernel: KernelErrors,
    other: KernelErrors,
    scales: Tolerances,
    *,
    twin: KernelErrors | None = None,
) -> Fit:
    """How near `other` comes to the kernel.

    Math: with b the rms tolerance of an output, distance^2 = sum (rms(kernel - other) / b)^2 / sum
    (rms(kernel - exact) / b)^2 over finite elements; the share of elements of which only one is not
    finite, where that is more. Elements that are not finite in either are no likeness, since
    unrelated faults share them: without enough finite elements, and an error in them, the distance
    is infinite. Tolerances grow with the output of `other`, where that is larger than the exact
    one: so do its roundings.

    Args:
        kernel: the one that is wrong.
        other: who may be wrong in the same way.
        twin: `other` in another arithmetic: what lies between the two is noise as well.
    """
    if kernel.failed is not None or other.failed is not None:
        return Fit(0.0, 0.0) if kernel.failed is other.failed is not Status.SKIP else FAR
    if kernel.outputs.keys() != other.outputs.keys():
        return FAR
    twin = None if twin is None or twin.outputs.keys() != other.outputs.keys() else twin
    apart, effect, noise, nonfinite, unequal, compared = 0.0, 0.0, 0.0, 0, 0, 0
    for name, reported in scales.items():
        if name not in kernel.outputs:
            continue
        mine, theirs, exact = (
            reported.counted(x) for x in (kernel.outputs[name], other.outputs[name], reported.exact)
        )
        here, there = mine.isfinite(), theirs.isfinite()
        both = here & there
        nonfinite = nonfinite + int((~both).sum())
        unequal = unequal + int((here ^ there).sum())
        compared = compared + int(both.sum())
        difference = (mine - theirs)[both]
        apart += (rms(difference) / reported.rms) ** 2
        effect += (rms((mine - exact)[here]) / reported.rms) ** 2
        if twin is None:
            between = difference.new_zeros(1)
        else:
            between = (theirs - reported.counted(twin.outputs[name]))[both].nan_to_num(0, 0, 0)
        noise = max(noise, _noise(reported, difference, theirs[both], exact[both], between))
    noise = float("inf") if unequal else noise / APART
    if nonfinite and (effect < CLEAR**2 or compared < FINITE * (compared + nonfinite)):
        return Fit(float("inf"), noise)
    distance = (apart / effect) ** 0.5 if effect else (0.0 if not apart else float("inf"))
    return Fit(max(distance, unequal / nonfinite if nonfinite else 0.0), noise)


def _noise(
    scale: Scale, difference: Tensor, theirs: Tensor, exact: Tensor, between: Tensor
) -> float:
    """A difference in units of the tolerance, or of what lies between twins where that is more."""
    found = 0.0
    for size, allowed in ((rms, scale.rms), (_largest, scale.largest)):
        more = max(1.0, _ratio(size(theirs), size(exact)))
        found = max(found, size(difference) / max(allowed * more, size(between)))
    return found


def comparable(kernel: KernelErrors, scales: Tolerances) -> bool:
    """Whether the finite elements of an answer show what is wrong with it."""
    exact = {
        name: scales[name].exact if name in scales else tensor
        for name, tensor in kernel.outputs.items()
    }
    return kernel.failed is not None or fit(kernel, KernelErrors(exact), scales).distance < float(
        "inf"
    )


def _largest(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def _ratio(a: float, b: float) -> float:
    return a / b if b else 1.0
