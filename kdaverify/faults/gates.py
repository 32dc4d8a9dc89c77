"""Faults of the gate activations and of beta (math.md 6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from torch import Tensor

from kdaverify.budgets.formats import FORMATS
from kdaverify.faults.fault import Fault
from kdaverify.faults.patches import activated, part_of
from kdaverify.operators.pointwise.call import (
    ActivationArguments,
    ActivationCall,
    torch_activations,
)

_gate = partial(Fault, stage="gates", dtypes=("fp32", "bf16", "fp16"))
_RIGHT: Final = torch_activations()


def _raw(x: ActivationArguments) -> Tensor:
    bias = x["dt_bias"]
    z = x.tensors["z"].float()
    return z if bias is None else z + bias.float()


def _unguarded(_: float) -> Mapping[str, ActivationCall]:
    def forward(x: ActivationArguments) -> Tensor:
        rate = x.tensors["A_log"].float().exp()[:, None]
        return -rate * (1 + _raw(x).exp()).log()

    return {
        "gate_softplus": replace(_RIGHT["gate_softplus"], forward=forward, beside_one="rounded")
    }


def left_out(strength: float) -> Mapping[str, ActivationCall]:
    def skipped(op: str) -> ActivationCall:
        def forward(x: ActivationArguments) -> Tensor:
            raw = x.tensors["logits"].float() if op == "beta_sigmoid" else _raw(x)
            return part_of(_RIGHT[op].forward(x), raw, strength)

        return replace(_RIGHT[op], forward=forward)

    return {op: skipped(op) for op in ("gate_softplus", "gate_bounded", "beta_sigmoid")}


def _in_16_bits(strength: float) -> Mapping[str, ActivationCall]:
    def narrow(op: str) -> ActivationCall:
        right = _RIGHT[op]

        def forward(x: ActivationArguments) -> Tensor:
            g = right.forward(x)
            return part_of(g, FORMATS["bf16"].round(g), strength)

        return replace(right, forward=forward)

    return {op: narrow(op) for op in ("gate_softplus", "gate_bounded")}


FAULTS: Final = (
    _gate("GA8", "softplus overflows", "dogkeeper886/ollama37#26 (a)", "A", "z above 88", ("g",),
          activated(_unguarded)),
    _gate("GA13", "the activation is declared and left out", "PrismML-Eng/llama.cpp#237", "A",
          "any logits", ("g", "beta"), activated(left_out), graded=True),
    _gate("H29", "the gate is computed in 16 bits", "vllm-project/vllm-ascend#6695 (comment)", "C",
          "any logits", ("g",), activated(_in_16_bits), graded=True),
)  # fmt: skip
