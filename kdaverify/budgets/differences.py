"""What differences of a low-precision kernel's own outputs may miss its own derivative by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kdaverify.budgets.backward import emulate_gradients
from kdaverify.budgets.budget import DEVIATIONS, RMS_FACTOR
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.family import emulate
from kdaverify.budgets.formats import Format
from kdaverify.budgets.parts import Outputs
from kdaverify.problems.directions import Pair
from oracles.adjoint import adjoint
from oracles.gradients import GRADIENTS, Cotangents, Gradients
from oracles.inputs import Inputs
from oracles.recurrence import recurrence
from oracles.together import states_apart, together, tokens_apart

# Pairs whose outputs are emulated: the noise hardly depends on the direction.
EMULATED = 2


def step(contract: Contract, io: Format, longest: int) -> float:
    """The step of a difference at which rounding noise and curvature balance, relative to the size of what is moved.

    Math: every token's factor moves by a random h, so over L tokens an output moves by about h sqrt(L) of its size, call that s. The
    noise of both outputs is about u of their size, u the unit roundoff, so u / s of the difference; the third derivative leaves s^2 of
    it. The sum u / s + s^2 is least near s = u^(1/3), hence h = u^(1/3) / sqrt(L).

    Args:
        longest: tokens of the longest sequence.
    """
    return max(contract.operands.unit, io.unit) ** (1 / 3) / math.sqrt(max(1, longest))


def loss(outputs: Outputs, weights: Outputs) -> float:
    """The loss whose derivative is asked for: <do, o> + <dS_T, S_T>, in float64."""
    return sum(float((y.double() * c).sum()) for y, c in zip(outputs, weights, strict=True))


def along(gradients: dict[str, Tensor], pair: Pair) -> float:
    """The derivative of the loss along a pair, by `gradients`."""
    return sum(float((gradients[name].double() * pair.along(source)).sum()) for name, source in _present(pair).items())


def _present(pair: Pair) -> dict[str, str]:
    return {name: source for name, source in GRADIENTS.items() if getattr(pair.up, source) is not None}


@dataclass(frozen=True)
class Allowance:
    """What the differences may miss.

    Args:
        curvature: [pairs] what the difference of the exact outputs itself misses its derivative by; each may miss that much.
        noise: the rms, over all pairs, of what may be missed beside it.
    """

    curvature: Tensor
    noise: float

    def excess(self, missed: Tensor) -> Tensor:
        """What is missed beyond curvature."""
        return (missed.abs() - self.curvature).clamp(min=0.0)


def allowance(inputs: Inputs, pairs: Sequence[Pair], given: Cotangents, contract: Contract, io: Format) -> Allowance:
    """The allowance for the difference quotients of one problem.

    Math: with e the error of a kernel's outputs, d that of its gradients and D = up - down, a kernel whose backward is the derivative of
    its forward misses <c, e(up) - e(down)> - <d, D> beside curvature. The signs of c and D are random and independent of the errors:
    both terms have mean 0 and variances |c (e(up) - e(down))|^2 and |d D|^2, elements multiplied. E is the worst over the family of the
    root of either; noise = 1.25 (1 + 3 deviation / mean of the draws) (1 + 3 / sqrt(2 pairs)) rms(E), the last factor for an rms of few.

    Args:
        inputs: what the kernel receives; pairs: the same, moved.
        given: cotangents of its outputs.
    Raises:
        ContractOverflow: every member of the family overflows on these inputs.
    """
    weights = given.of(inputs)
    exact = adjoint(inputs, given)
    rounded, drawn = _forward_noise(pairs[:EMULATED], weights, contract, io)
    emulated = emulate_gradients(inputs, given, contract, io)
    back_rounded, back_drawn = (
        [_gradient_noise(found, exact, pairs) for found in many] for many in ([*emulated.rounded.values()], emulated.drawn)
    )
    E = math.hypot(max(*rounded, *drawn), max(*back_rounded, *back_drawn))
    margin = (1 + DEVIATIONS * max(_variation(drawn), _variation(back_drawn))) * (1 + DEVIATIONS / math.sqrt(2 * len(pairs)))
    return Allowance(_curvature(pairs, weights, exact), RMS_FACTOR * margin * E)


def _forward_noise(pairs: Sequence[Pair], weights: Outputs, contract: Contract, io: Format) -> tuple[list[float], list[float]]:
    """|c (e(up) - e(down))|, rms over the pairs, of every member of the family and of every draw."""
    one = pairs[0].up
    points = _points(pairs)
    exact = _apart(recurrence(together(points)), one, len(points))
    emulation = emulate(together(points), contract, io)

    def noise(run: Outputs) -> float:
        errors = [tuple(y - z for y, z in zip(*both, strict=True)) for both in zip(_apart(run, one, len(points)), exact, strict=True)]
        moved = [
            math.hypot(*(float(((a - b) * c).norm()) for a, b, c in zip(up, down, weights, strict=True)))
            for up, down in zip(errors[::2], errors[1::2], strict=True)
        ]
        return math.hypot(*moved) / math.sqrt(len(pairs))

    return [noise(run) for run in emulation.rounded.values()], [noise(run) for run in emulation.drawn]


def _gradient_noise(found: Gradients[Tensor], exact: Gradients[Tensor], pairs: Sequence[Pair]) -> float:
    """|d D|, rms over the pairs."""
    errors = {name: x - exact.named()[name] for name, x in found.named().items()}
    sizes = [float((errors[name] * pair.along(source)).norm()) for pair in pairs for name, source in _present(pair).items()]
    return math.hypot(*sizes) / math.sqrt(len(pairs))


def _curvature(pairs: Sequence[Pair], weights: Outputs, exact: Gradients[Tensor]) -> Tensor:
    points = _points(pairs)
    values = [loss(y, weights) for y in _apart(recurrence(together(points)), pairs[0].up, len(points))]
    linear = [along(exact.named(), pair) for pair in pairs]
    missed = [abs(up - down - by) for up, down, by in zip(values[::2], values[1::2], linear, strict=True)]
    return torch.tensor(missed, dtype=torch.float64)


def _points(pairs: Sequence[Pair]) -> list[Inputs]:
    return [point for pair in pairs for point in (pair.up, pair.down)]


def _apart(outputs: Outputs, one: Inputs, number: int) -> list[Outputs]:
    o, final = outputs
    return list(zip(tokens_apart(o, one, number), states_apart(final, one, number), strict=True))


def _variation(draws: list[float]) -> float:
    values = torch.tensor(draws, dtype=torch.float64)
    return float(values.std(0) / values.mean()) if float(values.mean()) else 0.0
