"""Results of the operations beside the kernel against bounds of their own for every element."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kdaverify.checks.compare import Comparison
from kdaverify.checks.negative_controls import negative_controls
from kdaverify.checks.place import ElementPlace, first_true, index_of
from kdaverify.checks.status import Status
from kdaverify.operators.pointwise.call import ActivationArguments
from kdaverify.operators.pointwise.tolerance import ResultTolerance

AXES = {"dA_log": ("head",), "ddt_bias": ("head", "channel")}
ALL = ("batch entry", "token", "head", "channel")


def compare_elements(
    name: str, found: Tensor, allowed: ResultTolerance, x: ActivationArguments
) -> Comparison:
    """Every element within its bound; past the largest number where the bound is.

    Args:
        name: of the result.
        x: the call, to say what made the worst element.
    """
    actual, exact = found.detach().double(), allowed.exact
    tested = torch.isfinite(allowed.bound)
    highest = torch.finfo(allowed.format.dtype).max
    above, below = exact + allowed.bound > highest, exact - allowed.bound < -highest
    beyond = (above & (actual >= highest)) | (below & (actual <= -highest))
    error = torch.where(tested & ~beyond, (actual - exact).abs(), 0.0)
    ratios = torch.where(error == 0, 0.0, error / allowed.bound)
    lost = ~torch.isfinite(error)
    at = first_true(lost) if bool(lost.any()) else int(ratios.argmax())
    statistic = "element"
    value = float(error.flatten()[at])
    budget = float(allowed.bound.flatten()[at])
    ratio = float(ratios.flatten()[at])
    if bool(lost.any()):
        statistic, value, budget, ratio = "finite", float(lost.sum()), 0.0, math.inf
    elif math.isinf(ratio):
        statistic, value = "zero", float(ratios.isinf().sum())
    status = (
        Status.NONFINITE if statistic == "finite" else Status.PASS if ratio <= 1 else Status.FAIL
    )
    return Comparison(
        output=name,
        status=status,
        statistic=statistic,
        value=value,
        budget=budget,
        ratio=ratio,
        ratios={"element": ratio} if statistic == "element" else {},
        grade="A" if status is Status.PASS else "F",
        worst=_place(name, at, exact.shape, x),
        found=float(actual.flatten()[at]),
        exact=float(exact.flatten()[at]),
        vacuous=negative_controls(
            exact,
            torch.zeros_like(tested),
            lambda wrong: bool((wrong.abs() <= allowed.bound).all()),
        ),
    )


def two_measures(g: Tensor, allowed: ResultTolerance) -> str:
    """How far g is off relatively, and how far the decay is that it stands for."""
    exact = allowed.exact
    tested = torch.isfinite(allowed.bound) & torch.isfinite(g)
    error = torch.where(tested, (g.double() - exact).abs(), 0.0)
    relative = (error / exact.abs().clamp(min=allowed.format.min_normal)).max()
    decay = torch.where(tested, (g.double().exp() - exact.exp()).abs(), 0.0).max()
    return (
        f"g is off by {float(relative):.3g} of itself at most, the decay exp(g) by"
        f" {float(decay):.3g}; {float((error / allowed.kept).max()):.3g} times the tolerance of a"
        " kernel that keeps what is small beside 1"
    )


def _place(name: str, at: int, shape: torch.Size, x: ActivationArguments) -> ElementPlace:
    index = index_of(at, shape)
    where = ", ".join(f"{axis} {i}" for axis, i in zip(AXES.get(name, ALL), index, strict=False))
    tensors = x.tensors if x.cotangent is None else {**x.tensors, "cotangent": x.cotangent}
    return ElementPlace(
        index,
        where,
        ", ".join(f"{source} {_source(tensor, index, name)}" for source, tensor in tensors.items()),
    )


def _source(tensor: Tensor, index: tuple[int, ...], name: str) -> str:
    """The input's element that belongs to a result's; the range of those that a sum covers."""
    head = index if name in AXES else index[2:]
    parameter = tensor.ndim < 3
    own = (
        tensor[head[: tensor.ndim]]
        if parameter
        else tensor[:, :, *head]
        if name in AXES
        else tensor[index]
    )
    low, high = float(own.min()), float(own.max())
    return f"{low:.9g}" if low == high else f"in [{low:.3g}, {high:.3g}]"
