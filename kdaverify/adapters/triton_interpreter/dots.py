"""Matrix products: which input precisions are taken, and what they do to the operands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from kdaverify.adapters.triton_interpreter.bfloat16 import Bfloat16
from kdaverify.adapters.triton_interpreter.formats import to_tf32
from kdaverify.adapters.triton_interpreter.launches import Settings

SPLIT: Final = ("bf16x3", "bf16x6")


class Dots:
    """Products accumulated in the format of the accumulator, bf16 operands widened first.

    The split precisions (tf32x3, bf16x3, bf16x6) recover fp32 from several passes and are computed
    in fp32. One-pass TF32 is too, unless the settings request its rounding of fp32 operands.
    """

    def __init__(self, module: Any, tl: Any, bf16: Bfloat16, settings: Settings) -> None:
        self._handle = module.TensorHandle
        self._fp32 = tl.float32
        self._bf16 = bf16
        self._settings = settings
        self._one_pass = module._ir.INPUT_PRECISION.TF32  # noqa: SLF001
        self._original = module.InterpreterBuilder.create_dot
        module.InterpreterBuilder.create_dot = self._dot()
        builder = module.interpreter_builder
        taken = builder.options.allowed_dot_input_precisions
        builder.options = replace(builder.options, allowed_dot_input_precisions=(*taken, *SPLIT))

    def _dot(self) -> Any:
        def dot(builder: Any, a: Any, b: Any, d: Any, precision: Any, *imprecise: Any) -> Any:
            a, b = self._bf16.wide(a), self._bf16.wide(b)
            if (
                self._settings.tf32
                and precision == self._one_pass
                and a.dtype.scalar is self._fp32
                and b.dtype.scalar is self._fp32
            ):
                a, b = (self._handle(np.asarray(to_tf32(x.data)), self._fp32) for x in (a, b))
            return self._original(builder, a, b, d, precision, *imprecise)

        return dot
