"""The adapters of flash-linear-attention's other delta rules:
one gate a head (Gated DeltaNet; its Ascend kernels too), none (DeltaNet), and products of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch

from kdaverify.adapters.base import Output, WrongKernelError
from kdaverify.adapters.conventions import Conventions
from kdaverify.adapters.delta_product import delta_product
from kdaverify.adapters.fla import ascend
from kdaverify.adapters.fla.functions import HEAD_FUNCTIONS, StageFunction
from kdaverify.adapters.fla.recurrence import FlaRecurrence, Form
from kdaverify.adapters.fla.runtime import Backend, Runtime, fixed, runtime
from kdaverify.adapters.fla.stages import imported, stage_call
from kdaverify.adapters.handover import Handover
from kdaverify.adapters.stages import StageArguments, StageCall
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.presets import preset
from kdaverify.problems import TORCH, Domain
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs
from oracles.stages import Named


@dataclass(frozen=True)
class PublicFunction:
    """A public function of the package.

    Args:
        module, name: where it is.
        own: what the names of the kernels begin with that only it launches.
        contract: the preset of its arithmetic.
        dtypes: of q, k, v, beta and o that it takes.
        backward: whether its outputs have a gradient.
        steps: Householder steps a token; more than one make a delta product.
    """

    module: str
    name: str
    own: str
    contract: str
    dtypes: tuple[str, ...] = ("fp32", "bf16", "fp16")
    backward: bool = True
    steps: int = 1

    def of_delta_rule(self, gates: str) -> Callable[..., Any]:
        """The function, or the delta rule that a product contains."""
        found = getattr(importlib.import_module(self.module), self.name)
        if self.steps == 1:
            return found
        return partial(delta_product(self.steps, gates=gates)(found), num_householder=self.steps)


GATED: Final[Mapping[str, PublicFunction]] = {
    "chunk": PublicFunction(
        "fla.ops.gated_delta_rule",
        "chunk_gated_delta_rule",
        "fla.ops.gated_delta_rule.chunk",
        "gdn64",
    ),
    # Its backward raises NotImplementedError: it is for inference.
    "recurrent": PublicFunction(
        "fla.ops.gated_delta_rule",
        "fused_recurrent_gated_delta_rule",
        "fla.ops.gated_delta_rule.fused_recurrent",
        "fla-recurrent",
        backward=False,
    ),
}
GATED_ASCEND: Final[Mapping[str, PublicFunction]] = {
    "chunk": replace(GATED["chunk"], own=ascend.OWN, contract="triton_npu-gdn"),
    # It has no Ascend kernel: on an NPU the same one runs.
    "recurrent": GATED["recurrent"],
}
UNGATED: Final[Mapping[str, PublicFunction]] = {
    # fp32 is refused by an assertion: the package wants bfloat16.
    "chunk": PublicFunction(
        "fla.ops.delta_rule",
        "chunk_delta_rule",
        "fla.ops.delta_rule.wy_fast",
        "gdn64",
        dtypes=("bf16", "fp16"),
    ),
    # In 16 bits its backward stores dk between its two passes, and sums its parts, in that format:
    # no contract has that.
    "recurrent": PublicFunction(
        "fla.ops.delta_rule",
        "fused_recurrent_delta_rule",
        "fla.ops.delta_rule.fused_recurrent",
        "fla-recurrent",
        dtypes=("fp32",),
    ),
}
PRODUCT: Final = PublicFunction(
    "fla.ops.gated_delta_product",
    "chunk_gated_delta_product",
    "fla.ops.gated_delta_product",
    "gdn64",
    dtypes=("bf16", "fp16"),
    steps=2,
)
GROUPED: Final = replace(PRODUCT, backward=False)
"""Gradients of shifted copies, each rounded to 16 bits, are no gradient of one call."""


class FlaDelta(FlaRecurrence):
    """One public function of fla.ops.gated_delta_rule or delta_rule; arguments go by name.

    Source: fla-core 0.6.0.

    Args:
        name: of the implementation.
        functions: what is called, by form.
        form: chunk or recurrent. Decoding is recurrent for both, as in the model's layer.
        gated: whether there is a gate of each head.
        backend: cuda or npu: whose kernels.
    """

    def __init__(
        self,
        name: str,
        functions: Mapping[str, PublicFunction],
        form: Form,
        *,
        gated: bool,
        backend: Backend = "cuda",
    ) -> None:
        super().__init__(backend, form)
        self.name, self._functions = name, functions
        self.dtypes, self.differentiable = functions[form].dtypes, functions[form].backward
        gates = "head" if gated else "none"
        # Rows past the last offset are not written: they hold what the memory held before.
        self.conventions = Conventions(packing="cu_seqlens", gates=gates, padding="undefined")
        # Without a gate, and in products, the package has one kind of heads.
        grouped = gated and functions[form].steps == 1
        self.domain = Domain(gates=gates, head_ratios=() if grouped else (1,))
        # DeltaNet has functions of its own, and a product is not cut where its tokens end.
        self._cut = grouped

    def contract(self, dtype: str) -> Contract:
        function = self._functions[self._form]
        found = preset(function.contract, dtype).of_steps(function.steps)
        if self._form == "recurrent" or not self._native or self._backend == "npu":
            return found
        # On NVIDIA's matrix units products of fp32 are products of TF32.
        tf32 = FORMATS["tf32"]
        return replace(found, operands=tf32) if dtype == "fp32" else replace(found, solve=tf32)

    def stages(self, dtype: str) -> Mapping[str, StageCall]:
        if self._form == "recurrent" or not self._cut:
            return {}
        return {name: self._stage(known, dtype) for name, known in HEAD_FUNCTIONS.items()}

    def _stage(self, known: StageFunction, dtype: str) -> StageCall:
        stage = stage_call(known, lambda: imported(known))

        def run(there: StageArguments) -> Named:
            kernels = self._runtime(TORCH[dtype])
            kernels.forget()
            return stage.call(there)

        return self._placed(stage, run)

    def gradients(self, inputs: Inputs, cotangents: Cotangents) -> Gradients[torch.Tensor]:
        found = super().gradients(inputs, cotangents)
        ran = self._runtime(inputs.q.dtype).kernels_run()
        _refuse_other_backends(ran, self._functions[self._form])
        return found

    def _run(self, inputs: Inputs, form: Form) -> Output:
        chosen, kernels = self._functions[form], self._runtime(inputs.q.dtype)
        handed = {
            name: value
            for name, value in self.conventions.arguments(inputs).items()
            if value is not None or name != "g"
        }
        del handed["segment_ids"]
        handover = Handover(self.conventions, inputs, {"g": None, **handed}, padding_undefined=True)
        kernels.forget()
        function = chosen.of_delta_rule(self.conventions.gates)
        o, final_state = function(**handed, output_final_state=True)
        self._ran = (
            _proof(kernels.kernels_run(), chosen) if any(inputs.lengths) else "no kernel: no tokens"
        )
        return handover.output(o, final_state)

    def _runtime(self, dtype: torch.dtype) -> Runtime:
        kernels = runtime(self._backend, fixed(self._backend), dtype)
        self._prepare()
        return kernels

    def _prepare(self) -> None:
        if self._backend == "npu" and not self._native:
            ascend.accept_interpreted_tensors()


def _proof(ran: tuple[str, ...], chosen: PublicFunction) -> str:
    """The kernels that ran, in words.

    Raises:
        WrongKernelError: the function's own are not among them, or one of another backend is.
    """
    if not any(name.startswith(chosen.own) for name in ran):
        raise WrongKernelError(f"wanted kernels of {chosen.own}, ran {', '.join(ran) or 'none'}")
    _refuse_other_backends(ran, chosen)
    return ", ".join(name.removeprefix("fla.ops.") for name in ran)


def _refuse_other_backends(ran: tuple[str, ...], chosen: PublicFunction) -> None:
    """Raises WrongKernelError where a kernel of another backend ran than the function's own."""
    wanted = ascend.MARK in chosen.own
    if others := [name for name in ran if (ascend.MARK in name) != wanted]:
        raise WrongKernelError(
            f"wanted kernels of one backend, as {chosen.own}, but {', '.join(others)} ran too"
        )


FLA_GDN: Final = FlaDelta("fla-gdn", GATED, "chunk", gated=True)
FLA_GDN_RECURRENT: Final = FlaDelta("fla-gdn-recurrent", GATED, "recurrent", gated=True)
TRITON_NPU_GDN: Final = FlaDelta("triton_npu-gdn", GATED_ASCEND, "chunk", gated=True, backend="npu")
FLA_DELTA: Final = FlaDelta("fla-delta", UNGATED, "chunk", gated=False)
FLA_DELTA_RECURRENT: Final = FlaDelta("fla-delta-recurrent", UNGATED, "recurrent", gated=False)
FLA_PRODUCT: Final = FlaDelta(
    "fla-delta-product", {"chunk": PRODUCT, "recurrent": PRODUCT}, "chunk", gated=True
)
FLA_PRODUCT_GROUPED: Final = FlaDelta(
    "fla-delta-product-grouped", {"chunk": GROUPED, "recurrent": GROUPED}, "chunk", gated=False
)
