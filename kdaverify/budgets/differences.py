"""What differences of a low-precision kernel's own outputs may differ from its own derivative."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from kdaverify.budgets.backward import GradientEmulation, emulate_gradients
from kdaverify.budgets.constants import DEVIATIONS, RMS_FACTOR
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.conversions import as_handed, as_it_is, received_gradients
from kdaverify.budgets.ensemble import emulate
from kdaverify.budgets.formats import Format
from kdaverify.budgets.parts import Outputs
from kdaverify.problems.directions import Pair
from oracles.adjoint import adjoint
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs
from oracles.recurrence import recurrence
from oracles.tensors import GRADIENTS
from oracles.together import states_apart, together, tokens_apart

# Pairs whose outputs are emulated: the noise hardly depends on the direction.
EMULATED = 2
# How many times the first step may be too short or too long. Chosen: a tolerance past the
# derivative itself, where a longer step would leave less, would show it too small.
FURTHEST = 16.0


def first_step(contract: Contract, io: Format, longest: int) -> float:
    """A step, relative to what is moved, at which rounding noise and curvature may balance.

    Math: every token's factor moves by a random h, so over L tokens an output moves by about s = h
    sqrt(L) of its size. The noise of both outputs is about u of their size, u the unit roundoff, so
    u / s of the difference; the third derivative leaves s^2 of it. The sum u / s + s^2 is least
    near s = u^(1/3), hence h = u^(1/3) / sqrt(L).

    Args:
        longest: tokens of the longest sequence.
    """
    return max(contract.operands.unit, io.unit) ** (1 / 3) / math.sqrt(max(1, longest))


def balanced_step(h: float, noise: float, curvature: Tensor) -> float:
    """The step at which they do, from what was found at h: noise N does not depend on the step,
    curvature R grows with its cube.

    Math: relative to the difference, N / x + (R / h^3) x^2 is least at x = h (N / 2R)^(1/3). At
    most FURTHEST times h either way, and never more than half the size of what is moved.
    """
    R = float(curvature.square().mean().sqrt())
    factor = (noise / (2 * R)) ** (1 / 3) if R else FURTHEST
    return min(h * min(max(factor, 1 / FURTHEST), FURTHEST), 0.5)


def loss(outputs: Outputs, weights: Outputs) -> float:
    """The loss whose derivative is tested: <do, o> + <dS_T, S_T>, in float64."""
    return sum(float((y.double() * c).sum()) for y, c in zip(outputs, weights, strict=True))


def along(gradients: dict[str, Tensor], pair: Pair, contract: Contract) -> float:
    """The loss's derivative along a pair of received calls, by `gradients` of those."""
    return sum(
        float((gradients[name].double() * moved(pair, source, contract)).sum())
        for name, source in _present(pair).items()
    )


def moved(pair: Pair, source: str, contract: Contract) -> Tensor:
    """up - down of one input as received, float64; 0 where it stays at an infinite value."""
    up, down = (as_handed(contract, source, getattr(end, source)) for end in (pair.up, pair.down))
    return (up - down).nan_to_num(nan=0.0)


def kept_finite(pair: Pair, start: Inputs, contract: Contract) -> Pair:
    """The pair without the moves that begin or end where the kernel receives an infinite value, as
    the logit of 0 and of 1 is.
    """
    for source in ("g", "beta"):
        ends = [getattr(end, source) for end in (pair.up, pair.down)]
        infinite = torch.stack(
            [~torch.isfinite(as_handed(contract, source, end)) for end in ends]
        ).any(0)
        up, down = (torch.where(infinite, getattr(start, source), end) for end in ends)
        pair = Pair(replace(pair.up, **{source: up}), replace(pair.down, **{source: down}))
    return pair


def _present(pair: Pair) -> dict[str, str]:
    return {name: source for name, source in GRADIENTS.items() if pair.up.holds(source)}


@dataclass(frozen=True)
class DifferenceTolerance:
    """Pairs of moved calls, and the tolerance of differences along them.

    Args:
        pairs: as they are tested; received: as the kernel effectively gets them.
        curvature: [pairs] how far the exact outputs' difference is from its derivative.
        noise: the rms, over all pairs, of the tolerance besides.
        outputs: the part of it that the outputs alone make, before the factors for few pairs.
    """

    pairs: list[Pair]
    received: list[Pair]
    curvature: Tensor
    noise: float
    outputs: float

    def excess(self, missed: Tensor) -> Tensor:
        """What is missed beyond curvature."""
        return (missed.abs() - self.curvature).clamp(min=0.0)


@dataclass(frozen=True)
class Differences:
    """Directions of balanced length for one problem, and the tolerances along them.

    Math: with e the error of a kernel's outputs, d that of its gradients and D = up - down, a
    kernel whose backward is the derivative of its forward is off by <c, e(up) - e(down)> - <d, D>
    beside curvature. The signs of c and D are random and independent of the errors: both terms have
    mean 0 and variances |c (e(up) - e(down))|^2 and |d D|^2, elements multiplied. E is the worst
    over the reference ensemble of the root of either; noise = 1.25 (1 + 3 deviation / mean of the
    samples) (1 + 3 / sqrt(2 pairs)) |E|, the last factor for an rms of few.

    Args:
        inputs: the call as the kernel effectively gets it.
        given: cotangents of its outputs.
        contract, backward, io: the arithmetic declared, of outputs and of gradients.
        received: what the kernel effectively gets of a moved call.
    """

    inputs: Inputs
    given: Cotangents
    contract: Contract
    backward: Contract
    io: Format
    received: Callable[[Inputs], Inputs]

    def allowance(
        self, pairs_at: Callable[[float], list[Pair]], outputs: float | None = None
    ) -> DifferenceTolerance:
        """Pairs at the balanced step, and what may be missed along them.

        Args:
            pairs_at: pairs of moved calls by their step.
            outputs: the outputs' noise, where known from other pairs of the problem.
        Raises:
            ContractOverflow: a deciding reference kernel overflows on these inputs.
        """
        h = first_step(self.contract, self.io, max(self.inputs.lengths))
        taken = self._taken(pairs_at(h))
        outputs = self._outputs_noise(taken[:EMULATED]) if outputs is None else outputs
        few = RMS_FACTOR * (1 + DEVIATIONS / math.sqrt(2 * len(taken)))
        pairs = pairs_at(balanced_step(h, few * outputs, self._curvature(taken)))
        taken = self._taken(pairs)
        noise = few * math.hypot(outputs, self._gradients_noise(taken))
        return DifferenceTolerance(pairs, taken, self._curvature(taken), noise, outputs)

    def _taken(self, pairs: list[Pair]) -> list[Pair]:
        return [Pair(self.received(pair.up), self.received(pair.down)) for pair in pairs]

    @cached_property
    def _weights(self) -> Outputs:
        return self.given.of(self.inputs)

    @cached_property
    def _exact(self) -> Gradients[Tensor]:
        return received_gradients(
            adjoint(self.inputs, self.given), self.inputs, self.inputs, self.backward, as_it_is
        )

    @cached_property
    def _emulated(self) -> GradientEmulation:
        return emulate_gradients(self.inputs, self.given, self.backward, self.io)

    def _outputs_noise(self, pairs: list[Pair]) -> float:
        """|c (e(up) - e(down))|, rms over the pairs, of the worst of the reference ensemble."""
        points = _points(pairs)
        exact = self._apart(recurrence(together(points)), len(points))
        emulation = emulate(together(points), self.contract, self.io)

        def noise(run: Outputs) -> float:
            errors = [
                tuple(y - z for y, z in zip(*both, strict=True))
                for both in zip(self._apart(run, len(points)), exact, strict=True)
            ]
            moved = [
                math.hypot(
                    *(
                        float(((a - b) * c).norm())
                        for a, b, c in zip(up, down, self._weights, strict=True)
                    )
                )
                for up, down in zip(errors[::2], errors[1::2], strict=True)
            ]
            return math.hypot(*moved) / math.sqrt(len(pairs))

        return _worst(
            [noise(run) for run in emulation.rounded.values()],
            [noise(run) for run in emulation.drawn],
        )

    def _gradients_noise(self, pairs: list[Pair]) -> float:
        """|d D|, likewise."""

        def noise(found: Gradients[Tensor]) -> float:
            errors = {name: x - self._exact.named()[name] for name, x in found.named().items()}
            sizes = [
                float((errors[name] * moved(pair, source, self.backward)).norm())
                for pair in pairs
                for name, source in _present(pair).items()
            ]
            return math.hypot(*sizes) / math.sqrt(len(pairs))

        return _worst(
            [noise(run) for run in self._emulated.members],
            [noise(run) for run in self._emulated.drawn],
        )

    def _curvature(self, pairs: list[Pair]) -> Tensor:
        points = _points(pairs)
        values = [
            loss(y, self._weights) for y in self._apart(recurrence(together(points)), len(points))
        ]
        linear = [along(self._exact.named(), pair, self.backward) for pair in pairs]
        missed = [
            abs(up - down - by)
            for up, down, by in zip(values[::2], values[1::2], linear, strict=True)
        ]
        return torch.tensor(missed, dtype=torch.float64)

    def _apart(self, outputs: Outputs, number: int) -> list[Outputs]:
        o, final = outputs
        return list(
            zip(
                tokens_apart(o, self.inputs, number),
                states_apart(final, self.inputs, number),
                strict=True,
            )
        )


def _points(pairs: list[Pair]) -> list[Inputs]:
    return [point for pair in pairs for point in (pair.up, pair.down)]


def _worst(rounded: list[float], drawn: list[float]) -> float:
    """The worst of the reference ensemble, with a margin for the spread of the samples."""
    draws = torch.tensor(drawn, dtype=torch.float64)
    spread = float(draws.std(0) / draws.mean()) if float(draws.mean()) else 0.0
    return max(*rounded, *drawn) * (1 + DEVIATIONS * spread)
