"""Adapters of flash-linear-attention: chunk_kda, fused_recurrent_kda on CUDA and Ascend."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import torch

from kdaverify.adapters.base import Adapter, Output
from kdaverify.adapters.conventions import Conventions
from kdaverify.adapters.fla.activations import FUNCTIONS as ACTIVATION_FUNCTIONS
from kdaverify.adapters.fla.activations import fla_activation
from kdaverify.adapters.fla.functions import ALL_FUNCTIONS
from kdaverify.adapters.fla.options import FlaOptions, variants_of
from kdaverify.adapters.fla.recurrence import FlaRecurrence, Form
from kdaverify.adapters.fla.runtime import Backend, proof, refuse_others, runtime
from kdaverify.adapters.fla.stages import Function, imported, stage_call
from kdaverify.adapters.handover import Handover
from kdaverify.adapters.stages import StageArguments, StageCall
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.contract_checks import Beta
from kdaverify.budgets.presets import preset
from kdaverify.operators.pointwise.call import ActivationArguments, ActivationCall
from kdaverify.problems import TORCH, Domain, Problem
from oracles.inputs import Inputs
from oracles.row_norm import GIVEN
from oracles.stages import Named

FUNCTIONS: Final[Mapping[Form, str]] = {"chunk": "chunk_kda", "recurrent": "fused_recurrent_kda"}
LACKING: Final[Mapping[Backend, tuple[str, ...]]] = {
    "cuda": ("dqkwg",),
    "npu": ("dv_local", "dqkwg", "wy_bwd"),
}
"""Stage functions that 0.6.0 has no longer, that have no Ascend kernel, or whose Ascend kernel
computes something else: chunk_bwd_dv_local there takes no notice of the scores it is handed
(`A`)."""
WIDEST_KEY: Final = 256
CONFIGURATIONS: Final = 8
"""Of its tuner that are forced one by one; kernels with fewer count round."""
SAFE: Final = -5.0


SIGMOIDS: Final[Mapping[str, Beta]] = {"value": "value", "sigmoid": "logit", "doubled": "doubled"}
"""What the recurrence makes beta of, by the option: on an H200 the sigmoid of one token and head
was 3 units off, and rejected for 2.4 times the tolerance of S_T."""


class Fla(FlaRecurrence):
    """One public function of fla.ops.kda, with the Triton kernels of one backend.

    Source: fla.ops.kda.chunk_kda, fla.ops.kda.fused_recurrent_kda, fla-core 0.6.0.

    Args:
        name: of the implementation.
        backend: cuda or npu: whose kernels.
        form: chunk or recurrent. Decoding is recurrent for both, as in the model's layer.
        options: what may be done otherwise.
    """

    dtypes = ("fp32", "bf16", "fp16")

    def __init__(
        self,
        name: str,
        backend: Backend,
        form: Form,
        options: FlaOptions = FlaOptions(),  # noqa: B008 # frozen
    ) -> None:
        self.name = f"{name}:{options.said()}" if options.said() else name
        super().__init__(backend, form)
        self._base, self._options = name, options
        # fused_recurrent_kda of fla-core 0.6.0 is for inference: its outputs carry no gradient
        # graph.
        self.differentiable = form != "recurrent"
        self.conventions = Conventions(
            packing="cu_seqlens",
            state=options.state,
            gate=options.gate,
            qk=self._normalised(options),
            gate_parameters="none" if options.gate == "log" else "A_log+dt_bias",
            beta="value" if options.beta == "value" else "logit",
        )

    def _normalised(self, options: FlaOptions) -> str:
        """Chunks store normalised rows in the format of q, the recurrence keeps them."""
        if options.l2norm == "no":
            return GIVEN
        return "l2norm-stored" if self._form == "chunk" else "l2norm"

    def contract(self, dtype: str) -> Contract:
        received = {"gate": self.conventions.gate_form, "qk": self.conventions.rows_form}
        if self._form == "recurrent":
            return replace(
                preset("fla-recurrent", dtype), beta=SIGMOIDS[self._options.beta], **received
            )
        tf32 = self._options.tf32 == "yes" or (self._native and self._backend == "cuda")
        return replace(
            self._with_beta(preset(self._preset(tf32=tf32), dtype)),
            chunk_size=int(self._options.chunk_size),
            anchored=self._options.safe_gate == "yes" and dtype != "fp32",
            **received,
        )

    def _preset(self, *, tf32: bool) -> str:
        if tf32:
            return "fla"
        return "fla-interpreted" if self._backend == "cuda" else "triton_npu"

    def _with_beta(self, contract: Contract) -> Contract:
        """A beta made in the kernel is fp32, and so is its product with k."""
        if self._options.beta == "value" or contract.solve is None:
            return contract
        return contract.storing(beta_k=contract.wide, beta_k_wy=contract.wide)

    def configured(self, options: Mapping[str, str]) -> Adapter:
        return Fla(
            self._base,
            self._backend,
            self._form,
            self._options.changed(self._base, self._form, options),
        )

    def variants(self) -> Mapping[str, Adapter]:
        return self._variants

    @cached_property
    def _variants(self) -> Mapping[str, Adapter]:
        return {name: self.configured(options) for name, options in variants_of(self._form).items()}

    def configurations(self) -> Mapping[str, Adapter]:
        # On a device a configuration is forced for the whole process, and the calls after it would
        # keep it.
        return {} if self._native else self._configurations

    @cached_property
    def _configurations(self) -> Mapping[str, Adapter]:
        return {
            f"autotune={n}": self.configured({"autotune": str(n)}) for n in range(CONFIGURATIONS)
        }

    def stages(self, dtype: str) -> Mapping[str, StageCall]:
        if self._form == "recurrent":
            return {}
        safe = {"safe_gate": self._options.safe_gate == "yes"}
        exposed = [name for name in ALL_FUNCTIONS if name not in LACKING[self._backend]]
        return {
            name: self._stage(name, dtype, safe if name.startswith("intra") else {})
            for name in exposed
        }

    def _stage(self, name: str, dtype: str, extra: Mapping[str, Any]) -> StageCall:
        def function() -> Function:
            return imported(ALL_FUNCTIONS[name])

        stage = stage_call(ALL_FUNCTIONS[name], function, extra=extra)

        def run(there: StageArguments) -> Named:
            kernels = runtime(self._backend, self._options, TORCH[dtype])
            kernels.forget()
            written = stage.call(there)
            refuse_others(kernels.kernels_run(), self._backend)
            return written

        return self._placed(stage, run)

    def activations(self, dtype: str) -> Mapping[str, ActivationCall]:
        if self._form == "recurrent":  # it activates inside
            return {}
        return {
            op: self._activation(fla_activation(op), TORCH[dtype]) for op in ACTIVATION_FUNCTIONS
        }

    def _activation(self, call: ActivationCall, dtype: torch.dtype) -> ActivationCall:
        def watched(
            run: Callable[[ActivationArguments], Any],
        ) -> Callable[[ActivationArguments], Any]:
            def there(x: ActivationArguments) -> Any:
                kernels = runtime(self._backend, self._options, dtype)
                kernels.forget()
                returned = run(x.mapped(lambda tensor: tensor.to(self.device)))
                ran = kernels.kernels_run()
                refuse_others(ran, self._backend)
                self._ran = ", ".join(name.removeprefix("fla.") for name in ran)
                return returned

            return there

        assert call.backward is not None
        return replace(call, forward=watched(call.forward), backward=watched(call.backward))

    def supports(self, problem: Problem) -> str | None:
        return next(self._limits(problem), None)

    def _limits(self, problem: Problem) -> Iterator[str]:
        options = self._options
        if problem.K > WIDEST_KEY:
            yield f"K <= {WIDEST_KEY}, wanted {problem.K}"
        if options.safe_gate == "yes" and problem.dtype == "fp32":
            yield (
                "safe_gate is judged in 16-bit formats: it anchors exponents 15 nats away, which no"
                " contract declares yet"
            )
        if options.safe_gate == "yes" and bool((problem.inputs().g < SAFE).any()):
            yield f"gates below {SAFE:g}: safe_gate promises there are none"
        if options.beta == "sigmoid" and bool((problem.inputs().beta > 1).any()):
            yield "no beta above 1 (a sigmoid)"
        activation = self.conventions.activation
        reached = None if activation is None else Domain(gate_range=activation.reach)
        if reached is not None and (refusal := reached.refuses(problem)):
            yield refusal

    def received(self, inputs: Inputs) -> Inputs:
        if self._options.beta == "doubled":
            halved = self.conventions.received(replace(inputs, beta=inputs.beta / 2))
            return replace(halved, beta=2 * halved.beta)
        return self.conventions.received(inputs)

    def _run(self, inputs: Inputs, form: Form) -> Output:
        kernels = runtime(self._backend, self._options, inputs.q.dtype)
        function = getattr(importlib.import_module("fla.ops.kda"), FUNCTIONS[form])
        handed = self._handed(inputs)
        handover = Handover(self.conventions, inputs, handed)
        kernels.forget()
        o, final_state = function(**{**handed, **self._flags(form)}, output_final_state=True)
        # Where there is no token nothing is launched.
        self._ran = (
            proof(kernels, self._backend, form) if any(inputs.lengths) else "no kernel: no tokens"
        )
        return handover.output(o, final_state)

    def _handed(self, inputs: Inputs) -> dict[str, Any]:
        options = self._options
        halved = replace(inputs, beta=inputs.beta / 2) if options.beta == "doubled" else inputs
        handed = self.conventions.arguments(halved)
        del handed["segment_ids"]
        if self.conventions.activation is not None:
            handed["dt_bias"] = handed["dt_bias"].flatten()
            handed["lower_bound"] = handed["lower_bound"] if options.gate == "bounded" else None
        return handed

    def _flags(self, form: Form) -> dict[str, Any]:
        options = self._options
        flags: dict[str, Any] = {
            "use_qk_l2norm_in_kernel": options.l2norm == "yes",
            "use_beta_sigmoid_in_kernel": options.beta != "value",
            "allow_neg_eigval": options.beta == "doubled",
            "state_v_first": options.state == "vk",
        }
        if self.conventions.activation is not None:
            flags["use_gate_in_kernel"] = True
        if form == "chunk":
            flags |= {
                "chunk_size": int(options.chunk_size),
                "safe_gate": options.safe_gate == "yes",
                "disable_recompute": options.recompute == "no",
            }
        return flags


FLA: Final = Fla("fla", "cuda", "chunk")
FLA_RECURRENT: Final = Fla("fla-recurrent", "cuda", "recurrent")
TRITON_NPU: Final = Fla("triton_npu", "npu", "chunk")
TRITON_NPU_RECURRENT: Final = Fla("triton_npu-recurrent", "npu", "recurrent")
