"""Ways to write a patch: wrong stages, calls or roundings; always, sometimes, at random."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, TypeVar

import torch
from torch import Tensor

from kdaverify.budgets.formats import FORMATS
from kdaverify.faults.fault import Make, Setting
from kdaverify.faults.kernel import Derive, Outputs, Patch, PatchedPipeline
from kdaverify.operators.pointwise.call import ActivationCall
from oracles.backward_stages import BACKWARD_SIGNATURES, HELD_AS
from oracles.chunk import STAGES, Chunk, Stage, Stages
from oracles.chunk_backward import BACKWARD, BackwardStage, BackwardStages, ChunkGradients
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs
from oracles.stages import SIGNATURES, Signature

X = TypeVar("X")
Condition = Callable[[Inputs], bool]
Call = Callable[[PatchedPipeline, Inputs], Outputs]
Derivation = Callable[[Derive, Inputs, Cotangents], Gradients[Tensor]]
RandomStage = Callable[[Chunk, torch.Generator], None]
RandomBackwardStage = Callable[[ChunkGradients, torch.Generator], None]

_HELD: Final = {**HELD_AS, "final_state": "S", "d_initial_state": "dS"}


def _held(signature: Signature) -> tuple[str, ...]:
    """Where a chunk, or its gradients, hold what a stage writes."""
    return tuple(dict.fromkeys(_HELD.get(name, name) for name in signature.writes))


def always(_: Inputs) -> bool:
    return True


def packed(x: Inputs) -> bool:
    return x.cu_seqlens is not None


def dense(x: Inputs) -> bool:
    return x.cu_seqlens is None


def part_of(right: Tensor, wrong: Tensor, strength: float) -> Tensor:
    """`right` with a share of what `wrong` adds to it."""
    return wrong if strength == 1.0 else right + strength * (wrong - right)


def staged(*, when: Condition = always, right: Stages = STAGES, **wrong: Stage) -> Make:
    """Stages of the forward replaced by name, on the calls that `when` holds for."""

    def make(setting: Setting) -> Patch:
        table = replace(
            right,
            **{name: _weakened(name, stage, setting.strength) for name, stage in wrong.items()},
        )
        return Patch(stages=lambda x: table if when(x) else right)

    return make


def per_call(build: Callable[[Inputs], Stages]) -> Make:
    """Stages made for every call: they have its inputs, and keep what lives as long as it."""
    return lambda _: Patch(stages=build)


def at_random(chance: float, *, when: Condition = always, **wrong: RandomStage) -> Make:
    """Stages replaced on some calls, with a probability."""

    def make(setting: Setting) -> Patch:
        random = setting.random
        table = replace(STAGES, **{name: _bound(stage, random) for name, stage in wrong.items()})
        return Patch(stages=lambda x: table if when(x) and strikes(random, chance) else STAGES)

    return make


def backwards(
    *, when: Condition = always, right: BackwardStages = BACKWARD, **wrong: BackwardStage
) -> Make:
    """Stages of the backward replaced by name; the gradients are then those of the stages."""

    def make(setting: Setting) -> Patch:
        table = replace(
            right,
            **{
                name: _weakened_backward(name, stage, setting.strength)
                for name, stage in wrong.items()
            },
        )
        return Patch(backward=lambda x: table if when(x) else right)

    return make


def backwards_per_call(build: Callable[[Inputs], BackwardStages]) -> Make:
    """Stages of the backward made for every call."""
    return lambda _: Patch(backward=build)


def backwards_at_random(chance: float, **wrong: RandomBackwardStage) -> Make:
    """Stages of the backward replaced on some calls."""

    def make(setting: Setting) -> Patch:
        random = setting.random
        table = replace(BACKWARD, **{name: _bound(stage, random) for name, stage in wrong.items()})
        return Patch(backward=lambda _: table if strikes(random, chance) else BACKWARD)

    return make


def called(wrong: Call, *, when: Condition = always) -> Make:
    """The call replaced, both entry points alike."""

    def make(setting: Setting) -> Patch:
        return Patch(forward=_weakened_call(wrong, when, setting.strength))

    return make


def stepped(wrong: Call) -> Make:
    """The decode entry point alone replaced."""
    return lambda setting: Patch(step=_weakened_call(wrong, always, setting.strength))


def struck(
    chance: float,
    wrong: Callable[[Outputs, Inputs, torch.Generator], Outputs],
    *,
    when: Condition = always,
) -> Make:
    """The outputs of some calls edited."""

    def make(setting: Setting) -> Patch:
        def call(kernel: PatchedPipeline, x: Inputs) -> Outputs:
            outputs = kernel(x)
            if when(x) and strikes(setting.random, chance):
                return wrong(outputs, x, setting.random)
            return outputs

        return Patch(forward=call)

    return make


def derived(
    wrong: Derivation, *, when: Condition = always, right: BackwardStages = BACKWARD
) -> Make:
    """The backward's call replaced."""

    def derivation(derive: Derive, x: Inputs, cotangents: Cotangents) -> Gradients[Tensor]:
        return wrong(derive, x, cotangents) if when(x) else derive(x, cotangents)

    return lambda _: Patch(backward=lambda _: right, gradients=derivation)


def rounded(fmt: str, *names: str) -> Make:
    """Named tensors stored in another format than the contract's."""

    def make(setting: Setting) -> Patch:
        def stored(name: str, tensor: Tensor) -> Tensor:
            if name in names:
                return part_of(tensor, FORMATS[fmt].round(tensor), setting.strength)
            return tensor

        return Patch(stored=stored)

    return make


def activated(make: Callable[[float], Mapping[str, ActivationCall]]) -> Make:
    """Operations beside the kernel replaced."""
    return lambda setting: Patch(activations=make(setting.strength))


def strikes(random: torch.Generator, chance: float) -> bool:
    return float(torch.rand((), generator=random)) < chance


def _bound(
    stage: Callable[[X, torch.Generator], None], random: torch.Generator
) -> Callable[[X], None]:
    return lambda x: stage(x, random)


def _weakened(name: str, wrong: Stage, strength: float) -> Stage:
    def stage(c: Chunk) -> None:
        right = copy.copy(c)
        getattr(STAGES, name)(right)
        wrong(c)
        for tensor in _held(SIGNATURES[name]):
            setattr(
                c,
                tensor,
                c.store(tensor, part_of(getattr(right, tensor), getattr(c, tensor), strength)),
            )

    return wrong if strength == 1.0 else stage


def _weakened_backward(name: str, wrong: BackwardStage, strength: float) -> BackwardStage:
    def stage(b: ChunkGradients) -> None:
        right = copy.copy(b)
        getattr(BACKWARD, name)(right)
        wrong(b)
        for tensor in _held(BACKWARD_SIGNATURES[name]):
            setattr(b, tensor, part_of(getattr(right, tensor), getattr(b, tensor), strength))

    return wrong if strength == 1.0 else stage


def _weakened_call(wrong: Call, when: Condition, strength: float) -> Call:
    def call(kernel: PatchedPipeline, x: Inputs) -> Outputs:
        if not when(x):
            return kernel(x)
        found = wrong(kernel, x)
        if strength == 1.0:
            return found
        o, final_state = (part_of(right, found[i], strength) for i, right in enumerate(kernel(x)))
        return o, final_state

    return call
