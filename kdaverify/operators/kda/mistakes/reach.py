"""Which stages can have made some outputs wrong and left others right.

A stage is ruled out where whatever it has wrong would show in an output that is right. Of
infinities and NaN, which keep nothing of what made them, no more can be said. An error that cancels
in an output would rule out too much; with a wrong tensor that happens by chance alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kdaverify.diagnosis.tolerances import APART
from kdaverify.operators.kda.mistakes.copies import outcomes
from kdaverify.operators.kda.mistakes.places import FORWARD_PLACES, Place
from kdaverify.operators.kda.mistakes.places_backward import BACKWARD_PLACES
from kdaverify.operators.kda.mistakes.search import ObservedCase
from kdaverify.operators.kda.mistakes.spaces import STEP, spaces
from oracles.backward_stages import BACKWARD_SIGNATURES
from oracles.stages import SIGNATURES
from oracles.tensors import SIGNATURE

MOST: Final = 240
"""Elements of a tensor that are looked at one by one."""
TOUCHED: Final = 1e-9
"""Derivatives above it are none of roundings."""


@dataclass(frozen=True)
class Reach:
    """What tensors enter on a case of one sequence and one chunk.

    Args:
        wrong: [groups of heads, outputs], where the kernel is wrong.
        made: by tensor, the wrong outputs that those of its elements enter that cannot show in a
            right one; None: too many elements.
    """

    wrong: Tensor
    made: Mapping[Place, Tensor | None]

    def whole(self, place: Place) -> bool:
        """Whether the tensor alone can have made everything that is wrong."""
        made = self.made.get(place)
        return made is None or torch.equal(made, self.wrong)

    def stages(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Stages that can have made all that they write wrong, and the others, in order.

        "call" are the inputs.
        """
        within, every = list[str](), ("call", *SIGNATURES, *BACKWARD_SIGNATURES)
        own = {
            stage: [made for place, made in self.made.items() if stage in place.stages]
            for stage in every
        }
        for stage in (stage for stage, made in own.items() if made):
            found = [made for made in own[stage] if made is not None]
            if len(found) < len(own[stage]) or bool(
                (torch.stack(found).any(0) == self.wrong).all()
            ):
                within.append(stage)
        return tuple(within), tuple(
            stage for stage, made in own.items() if made and stage not in within
        )


def reach(case: ObservedCase) -> Reach:
    """The tensors of the pass, each moved element by element.

    Math: an error of an element that shows in a wrong output by e times its tolerance shows in a
    right one by e r, with r the ratio of what the element's derivatives are there, in tolerances.
    Where e r is above APART for the largest e that there is, it is not the element.
    """
    places = FORWARD_PLACES if case.of.cotangents is None else BACKWARD_PLACES
    group = group_of(case)
    errors = {
        name: _largest(name, (x - case.scales[name].exact) / case.scales[name].largest, group)
        for name, x in case.kernel.outputs.items()
    }
    size = torch.stack([*errors.values()], dim=-1).nan_to_num(torch.inf, torch.inf)
    return Reach(
        size > APART, {place: _made(case, place, size) for place in places if place.own_space}
    )


def _made(case: ObservedCase, place: Place, size: Tensor) -> Tensor | None:
    *_, every = spaces(place, case.of.call, case.of.chunk_size)
    if every.unknowns > MOST:
        return None
    wrong, group = size > APART, group_of(case)
    if not every.unknowns:  # no error of what has no elements shows anywhere
        return torch.zeros_like(wrong)
    still = torch.zeros(case.of.call.HV, every.unknowns, dtype=torch.float64)
    found = outcomes(
        case.of, place, [every.moved(still, one, 0, 1) for one in (None, *range(every.unknowns))]
    )
    # a kernel may leave out a gradient that the pass has
    moved = {
        name: (found[name][1:] - found[name][:1]) / STEP / case.scales[name].largest
        for name in case.kernel.outputs
    }
    by_element = [
        torch.stack([_largest(name, x[i], group) for name, x in moved.items()], dim=-1)
        for i in range(every.unknowns)
    ]
    shows = torch.stack(by_element)  # [elements, groups, outputs]
    shows = torch.where(shows > TOUCHED * shows.amax(), shows, 0.0)
    e = (
        (size / shows.where(wrong, 0.0))
        .where(wrong & (shows > 0), torch.inf)
        .amin(-1, keepdim=True)
    )
    hidden = ((e * shows).nan_to_num(torch.inf) <= APART) | wrong | (shows == 0)
    return ((shows > 0) & wrong & hidden.all(-1, keepdim=True)).any(0)


def _largest(name: str, x: Tensor, group: int) -> Tensor:
    """[groups], the largest element of an output of the heads of each."""
    return by_group({name: x.abs()}, group).amax(-1)


def group_of(case: ObservedCase) -> int:
    """Heads that are looked at together: those that share a gradient of q and k."""
    return 1 if case.of.cotangents is None else case.of.call.HV // case.of.call.H


def by_group(outputs: Mapping[str, Tensor], group: int) -> Tensor:
    """[groups, elements]: the outputs of a case of one sequence, of the heads that share them."""
    rows = list[Tensor]()
    for name, x in outputs.items():
        axes = SIGNATURE[name].axes
        axis = next(i for i, letter in enumerate(axes) if letter in ("H", "HV"))
        heads = x.movedim(axis, 0)
        rows.append((heads.unflatten(0, (-1, group)) if axes[axis] == "HV" else heads).flatten(1))
    return torch.cat(rows, dim=1)
