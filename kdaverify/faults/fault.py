"""A re-created real bug: what it is, where it shows, and the patch that makes it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import Tensor

from kdaverify.problems import DTYPES

if TYPE_CHECKING:
    from kdaverify.adapters.base import Adapter

Kind = Literal["A", "B", "C", "D", "E", "F"]
KINDS: Final[dict[str, str]] = {
    "A": "algebra",
    "B": "index or mask",
    "C": "rounding or cast",
    "D": "random stale tile",
    "E": "wrapper contract or call order",
    "F": "host guard or index width",
}
STRENGTHS: Final = (1.0, 0.5, 0.25, 0.125)
"""At which strengths a graded fault is tested: the share of what the bug adds to the right
value."""


@dataclass(frozen=True)
class Setting:
    """What one faulty implementation is made with.

    Args:
        strength: share of the effect, of (0, 1].
        random: decides when and where a random fault strikes; seeded by case, moved by calls.
    """

    strength: float
    random: torch.Generator


class _Altered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, change: Callable[..., Sequence[Tensor]], *tensors: Tensor) -> Any:
        ctx.change = change
        return tuple(tensor.clone() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Any:
        return None, *ctx.change(*given)


def with_gradients(change: Callable[..., Sequence[Tensor]], *tensors: Tensor) -> tuple[Tensor, ...]:
    """Copies of the tensors, whose gradients `change` makes of those of the copies."""
    altered: Any = _Altered  # autograd.Function has no types
    return altered.apply(change, *tensors)


def with_gradient(change: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """A copy of one tensor, likewise."""

    def of_one(given: Tensor) -> tuple[Tensor]:
        return (change(given),)

    return with_gradients(of_one, tensor)[0]


def squeezed(dy: Tensor) -> Tensor:
    """Each entry [B, ...] in fp16, under the power of two of its largest modulus."""
    largest = dy.float().abs().flatten(1).amax(1)
    exponent = torch.where(largest > 0, largest.log2().ceil(), 0.0)
    factor = exponent.exp2().view(-1, *[1] * (dy.ndim - 1))
    return ((dy.float() / factor).half().float() * factor).to(dy.dtype)


def summed(*given: Tensor) -> Sequence[Tensor]:
    """The sum of all gradients for each."""
    return [functools.reduce(torch.add, given)] * len(given)


Make = Callable[[Setting], Any]
"""Makes a `Patch` of a delta rule, or what the right kernel of another operator is made of."""


@dataclass(frozen=True)
class Fault:
    """One bug.

    Args:
        id: as in the survey of real faults this catalogue follows; DESIGN-a to DESIGN-h are the
            classes its design documents feared.
        title: what is wrong, in a few words.
        reference: repository and issue, pull request or commit.
        kind: A to F, see KINDS.
        trigger: on which inputs it shows.
        outputs: what it must change there: outputs, gradients, stage tensors, results of
            activations; "call" where the call fails.
        patch: makes the patch, once for each implementation: its closure keeps state.
        stage: where in the pipeline it sits.
        dtypes: of problems it can be tested on; roundings that a format lacks are left out.
        graded: whether it has a strength.
        operator: whose right kernel it is a patch of; a key of `faults.hosts.HOSTS`.
        varies: whether equal calls differ; None: those of class D do. A compiler's error, of class
            D, is the same on every call, and a rare tuning configuration, of class F, is not.
    """

    id: str
    title: str
    reference: str
    kind: Kind
    trigger: str
    outputs: tuple[str, ...]
    patch: Make
    stage: str
    dtypes: tuple[str, ...] = DTYPES
    graded: bool = False
    operator: str = "kda"
    varies: bool | None = None

    @property
    def random(self) -> bool:
        """Whether it strikes on some calls alone: no two runs of it are alike."""
        return self.kind == "D" if self.varies is None else self.varies

    @property
    def strengths(self) -> tuple[float, ...]:
        """The strengths it is tested at."""
        return STRENGTHS if self.graded else STRENGTHS[:1]

    def spec(self, strength: float = 1.0) -> str:
        """The faulty implementation, as `--impl` names it."""
        return f"fault:{self.id}" if strength == 1 else f"fault:{self.id}@{strength:g}"

    @property
    def conforming(self) -> tuple[str, ...]:
        """The conforming kernels that a rejection of it is held against, as `--impl` names them."""
        from kdaverify.faults.hosts import host_of

        return host_of(self).conforming

    def twin(self) -> Adapter:
        """The right kernel without the patch; it has the fault's options."""
        from kdaverify.faults.hosts import host_of

        return host_of(self).right(self)
