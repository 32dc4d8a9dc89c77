"""flash-linear-attention in an interpreting process, against the float64 recurrence; prints JSON.

Arguments: the backend, the formats, and "plain" to leave the interpreter's own bookkeeping in
place.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from kdaverify.adapters.triton_interpreter import activate, memo
from oracles.inputs import Inputs
from oracles.recurrence import recurrence

FORMATS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
PACKED = (0, 0, 9, 9, 10, 24, 24)


def call(dtype: torch.dtype, *, packed: bool = False) -> Inputs:
    """A small call with more value than key heads and K != V,
    packed with empty sequences on request.
    """
    torch.manual_seed(0)
    T, H, HV, K, V = 24, 1, 2, 16, 12
    q, k = (
        torch.nn.functional.normalize(torch.randn(1, T, H, K), dim=-1).to(dtype) for _ in range(2)
    )
    v, beta = torch.randn(1, T, HV, V).to(dtype), torch.rand(1, T, HV).to(dtype)
    g = torch.nn.functional.logsigmoid(torch.randn(1, T, HV, K)).clamp(min=-5)
    offsets = torch.tensor(PACKED) if packed else None
    return Inputs(
        q, k, v, g, beta, None, torch.randn(len(PACKED) - 1 if packed else 1, HV, K, V), offsets
    )


def error(got: Tensor, wanted: Tensor) -> float:
    """Relative root mean square."""
    return float((got.double() - wanted.double()).norm() / wanted.double().norm())


def forward(x: Inputs, function: Any, **options: Any) -> tuple[Tensor, Tensor]:
    return function(
        x.q,
        x.k,
        x.v,
        x.g,
        x.beta,
        initial_state=x.initial_state,
        output_final_state=True,
        cu_seqlens=x.cu_seqlens,
        **options,
    )


def backward(x: Inputs, function: Any) -> tuple[Tensor, ...]:
    """Gradients of q, k, v, g, beta and the initial state along fixed directions."""
    assert x.initial_state is not None
    leaves = [
        tensor.detach().requires_grad_() for tensor in (x.q, x.k, x.v, x.g, x.beta, x.initial_state)
    ]
    q, k, v, g, beta, state = leaves
    outputs = function(Inputs(q, k, v, g, beta, None, state))
    torch.manual_seed(1)
    along = [torch.randn(output.shape, dtype=torch.float64) for output in outputs]
    return torch.autograd.grad([output.double() for output in outputs], leaves, along)


class Runs:
    """The calls in one format: errors and kernels by case, and a digest of all results."""

    def __init__(self, dtype: torch.dtype, interpreter: Any) -> None:
        from fla.ops.kda import chunk_kda, fused_recurrent_kda

        self.errors: dict[str, float] = {}
        self.kernels: dict[str, tuple[str, ...]] = {}
        self._digest = hashlib.sha256()
        cases = {
            "chunk": (chunk_kda, {}),
            "safe": (chunk_kda, {"safe_gate": True, "chunk_size": 32}),
            "recurrent": (fused_recurrent_kda, {}),
        }
        for case, (function, options) in cases.items():
            interpreter.forget()
            for packed in (False, True):
                x = call(dtype, packed=packed)
                self._compare(
                    f"{case}{' packed' * packed}",
                    ("o", "state"),
                    forward(x, function, **options),
                    recurrence(x),
                )
            self.kernels[case] = interpreter.kernels_run()
        got = backward(call(dtype), functools.partial(forward, function=chunk_kda))
        self._compare(
            "gradient",
            ("q", "k", "v", "g", "beta", "state"),
            got,
            backward(call(dtype), recurrence),
        )

    def _compare(
        self, case: str, names: tuple[str, ...], got: tuple[Tensor, ...], wanted: tuple[Tensor, ...]
    ) -> None:
        for name, one, other in zip(names, got, wanted, strict=True):
            self.errors[f"{case} {name}"] = error(one, other)
            self._digest.update(one.contiguous().view(torch.uint8).numpy().tobytes())

    def said(self) -> dict[str, Any]:
        return {"errors": self.errors, "kernels": self.kernels, "digest": self._digest.hexdigest()}


def main(backend: Any, *formats: str) -> dict[str, Any]:
    with mock.patch.object(memo, "install") if "plain" in formats else nullcontext():
        interpreter = activate(backend=backend, autotune=-1)
    seen = {name: Runs(FORMATS[name], interpreter).said() for name in formats if name in FORMATS}
    if backend == "cuda" and "fp32" in formats:
        interpreter.tf32 = True
        seen["tf32"] = Runs(torch.float32, interpreter).said()
    return seen


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(main(*sys.argv[1:])))
