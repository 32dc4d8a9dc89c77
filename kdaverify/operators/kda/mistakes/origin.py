"""Which hidden tensor is wrong: the one whose change reproduces all outputs together.

Changes of one tensor move the outputs within a space of few dimensions. An error outside of that
space cannot come from the tensor, whatever is wrong with it; one inside of a space of far fewer
dimensions than there are outputs is no accident.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import torch

from kdaverify.diagnosis.answer import KernelErrors
from kdaverify.diagnosis.likeness import likenesses
from kdaverify.diagnosis.tolerances import APART, Scale
from kdaverify.operators.kda.mistakes.copies import outcomes
from kdaverify.operators.kda.mistakes.places import Place
from kdaverify.operators.kda.mistakes.reach import MOST, Reach, by_group, group_of
from kdaverify.operators.kda.mistakes.search import RIVAL, ObservedCase
from kdaverify.operators.kda.mistakes.spaces import STEP, ErrorSpace, spaces

ROUNDS: Final = 4
"""Steps of Gauss and Newton: one is exact where outputs are linear in the tensor."""
SPARE: Final = 8
"""Equations beyond the unknowns that an error must satisfy, at least, to be evidence."""


@dataclass(frozen=True)
class Origin:
    """One tensor that may be wrong.

    Args:
        unknowns: dimensions in which its changes move the outputs of a head.
        equations: elements of the outputs of a head that are wrong: all of o, all of S_T, or both.
        noise: what the best change leaves, in units of what two conforming kernels may differ by.
    """

    place: Place
    space: ErrorSpace
    unknowns: int
    equations: int
    noise: float

    @property
    def possible(self) -> bool:
        """Whether it is not ruled out."""
        return self.noise <= RIVAL

    @property
    def conclusive(self) -> bool:
        """Whether it accounts for the error, and that is more than a matter of course."""
        return self.noise <= 1.0 and self.equations - self.unknowns >= SPARE


def origins(case: ObservedCase, entered: Reach, *, until: float = math.inf) -> Iterator[Origin]:
    """Every tensor that enters what is wrong, and the share of the error it can explain.

    Args:
        case: of one sequence and one chunk, finite.
        until: of the monotonic clock; tensors that come later are left out.
    """
    for place in (place for place in entered.made if entered.whole(place)):
        if time.monotonic() > until:
            return
        *factors, every = spaces(place, case.of.call, case.of.chunk_size)
        whole = _origin(case, place, every) if every.unknowns <= MOST else None
        if whole is not None:
            yield whole
        # A factor of a row is a change of its elements: what no change of them accounts for, no
        # factor does.
        if whole is None or whole.possible:
            yield from (_origin(case, place, space) for space in factors)


def _origin(case: ObservedCase, place: Place, space: ErrorSpace) -> Origin:
    call = case.of.call
    group = group_of(case)
    unknowns = [(one, head) for head in range(group) for one in range(space.unknowns)]
    weights = by_group(
        {
            name: torch.full_like(case.scales[name].exact, 1 / case.scales[name].rms)
            for name in case.kernel.outputs  # it may leave out the gradient of an absent state
        },
        group,
    )
    wanted = by_group(case.kernel.outputs, group)
    delta = call.v.new_zeros(call.HV, space.unknowns).double()
    rank = 0
    noise = float("inf")
    for _ in range(ROUNDS):
        tried = [
            space.moved(delta, None, 0, group),
            *(space.moved(delta, one, head, group) for one, head in unknowns),
        ]
        found = outcomes(case.of, place, tried)
        first = {name: x[:1] for name, x in found.items()}
        before, noise = noise, likenesses(case.kernel, first, case.scales)[0].noise
        if noise > before / 2:
            break
        moved = torch.stack(
            [
                by_group({name: found[name][i] for name in case.kernel.outputs}, group)
                for i in range(len(tried))
            ]
        )
        slope = ((moved[1:] - moved[0]) / STEP * weights).movedim(0, -1)
        if (noise <= 1.0 and rank) or not bool(slope.isfinite().all()):
            break
        rank = rank or int(torch.linalg.matrix_rank(slope, rtol=1e-9).max())
        step = torch.linalg.pinv(slope, rtol=1e-9) @ ((wanted - moved[0]) * weights)[..., None]
        delta = delta + step.squeeze(-1).unflatten(-1, (group, space.unknowns)).flatten(0, 1)
    return Origin(place, space, rank, _equations(case, group), noise)


def _equations(case: ObservedCase, group: int) -> int:
    """Outputs that are right are evidence against other tensors, not for this one."""
    scales = case.scales
    wrong = {
        name: x
        for name, x in case.kernel.outputs.items()
        if bool(((x - scales[name].exact).abs() > APART * scales[name].largest).any())
    }
    return by_group(wrong, group).shape[-1]


def narrowed(case: ObservedCase, columns: int) -> ObservedCase:
    """The case of the first value columns alone: no column of a right kernel depends on another."""
    call = case.of.call
    if columns >= call.V or case.of.cotangents is not None:
        return case
    cut = replace(
        call,
        v=call.v[..., :columns],
        initial_state=None if call.initial_state is None else call.initial_state[..., :columns],
    )
    kernel = KernelErrors({name: x[..., :columns] for name, x in case.kernel.outputs.items()})
    scales = {
        name: Scale(reported.exact[..., :columns], reported.rms, reported.largest)
        for name, reported in case.scales.items()
    }
    return ObservedCase(replace(case.of, call=cut), kernel, scales)
