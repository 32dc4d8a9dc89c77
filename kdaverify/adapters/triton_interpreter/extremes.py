"""Minimum, maximum and clamp: a number beats NaN unless the kernel requests NaN, as in compiled
code and from Triton 3.8 on.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def install(module: Any) -> None:
    """Replaces the operations that let NaN through in the interpreter of Triton 3.7."""
    builder = module.InterpreterBuilder
    through = builder.create_clampf
    silent = module._ir.PROPAGATE_NAN.NONE  # noqa: SLF001

    def clamp(self: Any, value: Any, low: Any, high: Any, propagate_nan: Any) -> Any:
        if propagate_nan != silent:
            return through(self, value, low, high, propagate_nan)
        return self.binary_op(self.binary_op(value, low, np.fmax), high, np.fmin)

    def smaller(self: Any, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, np.fmin)

    def larger(self: Any, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, np.fmax)

    builder.create_clampf, builder.create_minnumf, builder.create_maxnumf = clamp, smaller, larger
