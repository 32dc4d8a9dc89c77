"""Two tokens that show how a kernel reads its tensors: misread gates are finite, and wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.ascend.gates import GateForm
from kdaverify.adapters.base import WrongKernelError
from oracles.codecs import Map
from oracles.inputs import Inputs
from oracles.recurrence import recurrence

# A misread call is wrong by the size of the answer, a rounded one by a hundredth of it.
ALIKE: Final = 0.05
TOKENS: Final = 2
SCALE: Final = 0.45
SEED: Final = 1


def _same(x: Any) -> Any:
    return x


@dataclass(frozen=True)
class Reading:
    """One way to read a call and to write its results.

    Args:
        said: how it differs from what is declared, in words; "" for the declared one.
        call: from the call that is meant to the one that a kernel reading so computes.
        o: from o [B, T, HV, V] to what lies in memory.
        state: from the final state [N, HV, K, V] to what lies in memory.
        declarable: another declaration expresses it: the suite conventions names it, if it is run.
    """

    said: str
    call: Callable[[Inputs], Inputs] = _same
    o: Map = _same
    state: Map = _same
    declarable: bool = False


def question(*, H: int, HV: int, width: int, dtype: torch.dtype, state: bool) -> Inputs:
    """A call of two tokens on which every reading below gives another answer.

    Args:
        width: K and V.
        state: whether it starts from a state.
    """
    source = torch.Generator().manual_seed(SEED)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    def coherent(common: Tensor) -> Tensor:
        return torch.nn.functional.normalize(common + 0.7 * draw(1, TOKENS, H, width), dim=-1)

    # Decay shows in what the second token reads of the first: so they share a direction, the first
    # writes little, the second adds little. It decays more than the first, so that one token's
    # gates that are taken for sums still fall.
    common = draw(1, 1, H, width)
    weak_first = torch.tensor((0.3, 1.0), dtype=torch.float64).view(1, TOKENS, 1, 1)
    decay = -(0.3 + 0.3 * draw(1, 1, HV, width).sigmoid())
    return Inputs(
        q=(1.6 * weak_first * coherent(common)).to(dtype),
        k=(0.8 * coherent(common)).to(dtype),
        v=(weak_first.flip(1) * draw(1, TOKENS, HV, width) * width**-0.5).to(dtype),
        g=torch.cat((decay, 1.5 * decay), dim=1).float(),
        beta=(draw(1, TOKENS, HV).abs() % 0.95).to(dtype),
        scale=SCALE,
        initial_state=(draw(1, HV, width, width) / width).float() if state else None,
    )


def verdict(
    place: str, readings: Sequence[Reading], tested: Inputs, o: Any, final_state: Any
) -> str:
    """What the answer to `tested` shows about the kernel, in words.

    Args:
        place: of the kernel.
        readings: the declared one, then those it is distinguished from.
        o, final_state: the answer as the kernel laid it out; a final state of None is ignored.
    Returns:
        That the declared reading fits; or one that another declaration would express; or none: then
        the kernel is wrong in another way, for the suites to find.
    Raises:
        WrongKernelError: another reading fits best.
    """
    errors = [_error(reading, tested, o, final_state) for reading in readings]
    best = min(range(len(readings)), key=lambda i: errors[i])
    if not errors[best] <= ALIKE:
        return "two-token self-test fits no known reading"
    said = readings[best].said
    if said and not readings[best].declarable:
        raise WrongKernelError(
            f"{place}: the two-token self-test contradicts what is declared, but fits a kernel with"
            f" {said}; run the revision whose conventions these are, or correct the kernel"
        )
    return f"two-token self-test fits a kernel with {said}" if said else "two-token self-test fits"


def _error(reading: Reading, tested: Inputs, o: Any, final_state: Any) -> float:
    """How far the answer is from this reading's, relative to size; the worse output."""
    expected_o, expected_state = recurrence(reading.call(tested))
    written = [(o, reading.o(expected_o))]
    if final_state is not None:
        written.append((final_state, reading.state(expected_state)))
    return max(_distance(found, expected) for found, expected in written)


def _distance(found: Any, expected: Tensor) -> float:
    """Between numbers in memory order; infinite where counts differ or some are NaN."""
    if not isinstance(found, Tensor) or found.numel() != expected.numel():
        return math.inf
    distance = float(
        (found.detach().cpu().double().flatten() - expected.flatten()).norm() / expected.norm()
    )
    return math.inf if math.isnan(distance) else distance


def gates(
    handed: GateForm, others: Sequence[GateForm], *, declarable: Sequence[GateForm] = ()
) -> list[Reading]:
    """Gates handed over in one form and read in another."""

    def misread(form: GateForm) -> Reading:
        said = f"gates read as {form.said} (handed over in {handed.said})"
        return Reading(
            said,
            lambda x: replace(x, g=form.read(handed.hand(x, x.T), x, x.T)),
            declarable=form in declarable,
        )

    return [misread(form) for form in others]


def scales() -> list[Reading]:
    """A scale argument that is ignored."""
    return [
        Reading("the scale applied twice", lambda x: replace(x, scale=x.factor**2)),
        Reading("the scale ignored", lambda x: replace(x, scale=1.0)),
        Reading("a scale of K^-1/2 whatever scale is passed", lambda x: replace(x, scale=None)),
    ]


def values() -> list[Reading]:
    """Activations that nobody requested."""
    normalized = torch.nn.functional.normalize
    return [
        Reading("beta doubled", lambda x: replace(x, beta=2.0 * x.beta.double())),
        Reading(
            "q and k normalised inside",
            lambda x: replace(
                x, q=normalized(x.q.double(), dim=-1), k=normalized(x.k.double(), dim=-1)
            ),
        ),
    ]


def heads() -> list[Reading]:
    """Value heads that read the wrong key heads."""

    def interleaved(x: Inputs) -> Inputs:
        return replace(x, q=x.q.repeat(1, 1, x.HV // x.H, 1), k=x.k.repeat(1, 1, x.HV // x.H, 1))

    return [Reading("value head j reading key head j mod H (declared: j div HV/H)", interleaved)]


def states() -> list[Reading]:
    """One of the two states in the other order."""
    return [
        Reading("the initial state read in the other order of K and V", _transposed_start),
        Reading("the final state written in the other order of K and V", state=_transposed),
    ]


def _transposed(x: Tensor) -> Tensor:
    return x.mT.contiguous()


def _transposed_start(x: Inputs) -> Inputs:
    return replace(x, initial_state=x.state.mT.contiguous())


def logits() -> Reading:
    """A beta that is not activated yet."""
    return Reading(
        "beta read as a logit",
        lambda x: replace(x, beta=x.beta.double().sigmoid()),
        declarable=True,
    )


def both_states() -> Reading:
    """Both states in the other order."""
    return Reading(
        "both states in the other order of K and V",
        _transposed_start,
        state=_transposed,
        declarable=True,
    )


def head_major(x: Tensor) -> Tensor:
    """[B, T, H, ...] as it lies in memory head by head."""
    return x.transpose(1, 2).contiguous()


def laid_out_otherwise(name: str, *, declared_head_major: bool) -> Reading:
    """The input `name` read as if its tokens and heads lay in the other order."""

    def call(x: Inputs) -> Inputs:
        tensor = getattr(x, name)
        swapped = head_major(tensor)
        # Handed over head by head and read token by token, or the reverse: the same shuffle of
        # memory, from either end.
        if declared_head_major:
            shuffled = swapped.reshape(tensor.shape)
        else:
            shuffled = tensor.reshape(swapped.shape).transpose(1, 2).contiguous()
        return replace(x, **{name: shuffled})

    order = "token by token" if declared_head_major else "head by head"
    return Reading(f"{name} read {order}", call)
