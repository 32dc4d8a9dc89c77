"""The eager pipeline with some of its parts replaced: what every fault runs on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from kdaverify.adapters.eager import arithmetic_of, run_eager, stages_of
from kdaverify.budgets.contract import Contract
from kdaverify.operators.pointwise.call import ActivationCall
from oracles.arithmetic import Arithmetic, keep
from oracles.autograd import differentiate
from oracles.chunk import STAGES, Stage, Stages
from oracles.chunk_backward import BackwardStages, chunk_backward
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs

Outputs = tuple[Tensor, Tensor]
Derive = Callable[[Inputs, Cotangents], Gradients[Tensor]]


def right_stages(_: Inputs) -> Stages:
    """Of KDA; kernels whose channels share a gate have others: see `PatchedPipeline.stages`."""
    return STAGES


def _plain(kernel: PatchedPipeline, inputs: Inputs) -> Outputs:
    return kernel(inputs)


@dataclass(frozen=True)
class Patch:
    """What is replaced; by default nothing.

    Args:
        stages: of a call, the stages of the forward; by default those of the contract.
        backward: of a call, the backward's stages; None: autograd of the patched forward.
        stored: (name, tensor) -> tensor, after the contract's rounding.
        forward: the call: (kernel, inputs) -> (o, final_state).
        step: the same of the decode entry point; None: `forward`.
        gradients: (backward, inputs, cotangents) -> gradients.
        activations: operations beside the kernel, by name.
        chunk_size: C; None: the contract's own.
        variants: patches of the same kernel under options without effect on results.
        exposes: the outputs returned.
    """

    stages: Callable[[Inputs], Stages] = right_stages
    backward: Callable[[Inputs], BackwardStages] | None = None
    stored: Callable[[str, Tensor], Tensor] = keep
    forward: Callable[[PatchedPipeline, Inputs], Outputs] = _plain
    step: Callable[[PatchedPipeline, Inputs], Outputs] | None = None
    gradients: Callable[[Derive, Inputs, Cotangents], Gradients[Tensor]] | None = None
    activations: Mapping[str, ActivationCall] = field(default_factory=dict[str, ActivationCall])
    chunk_size: int | None = None
    variants: Mapping[str, Patch] = field(default_factory=dict[str, "Patch"])
    exposes: tuple[str, ...] = ("o", "final_state")


@dataclass(frozen=True)
class PatchedPipeline:
    """The pipeline of one contract under a patch, without what the patch wraps around the call."""

    contract: Contract
    patch: Patch

    def __call__(self, inputs: Inputs, **stages: Stage) -> Outputs:
        """o and S_T; stages named here replace those of the patch."""
        table = replace(self.stages(inputs), **stages)
        return run_eager(self._sized, inputs, stages=table, arithmetic=self.arithmetic)

    def stages(self, inputs: Inputs) -> Stages:
        """Of the forward of a call."""
        own = self.patch.stages
        return stages_of(self.contract) if own is right_stages else own(inputs)

    @property
    def arithmetic(self) -> Arithmetic:
        return self.changed(arithmetic_of(self.contract))

    def changed(self, arithmetic: Arithmetic) -> Arithmetic:
        """Another arithmetic as the patch changes it."""

        def store(name: str, tensor: Tensor) -> Tensor:
            return self.patch.stored(name, arithmetic.store(name, tensor))

        return replace(arithmetic, store=store)

    def gradients(self, inputs: Inputs, cotangents: Cotangents) -> Gradients[Tensor]:
        """By the patch's backward stages if it has some, else by autograd of the wrapped call."""
        patch = self.patch
        if patch.backward is None:
            return differentiate(lambda x: patch.forward(self, x), inputs, cotangents)
        found = chunk_backward(
            inputs,
            cotangents,
            chunk_size=self._sized.chunk_size,
            dtype=self.contract.work,
            arithmetic=self.arithmetic,
            stages=self.stages(inputs),
            backward=patch.backward(inputs),
        )
        return _as_received(found, inputs)

    @property
    def _sized(self) -> Contract:
        return replace(self.contract, chunk_size=self.patch.chunk_size or self.contract.chunk_size)


def _as_received(found: Gradients[Tensor], x: Inputs) -> Gradients[Tensor]:
    like = (x.q, x.k, x.v, x.g, x.beta, x.state)
    return Gradients(
        *(
            gradient.to(tensor.dtype)
            for gradient, tensor in zip(found.named().values(), like, strict=True)
        )
    )
