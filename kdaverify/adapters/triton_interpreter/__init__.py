"""Triton kernels on a plain CPU: Triton's own interpreter, with what it lacks added from outside.

Nothing of Triton or of the kernels' package is edited. What is replaced is replaced in the running
process, before the kernels are imported, so nothing has to be done after importing them. An access
out of bounds is a real access of this process: run kernels that are not trusted in a process of
their own.
"""

from __future__ import annotations

from kdaverify.adapters.triton_interpreter.activation import Backend, TritonInterpreter, activate
from kdaverify.adapters.triton_interpreter.installation import (
    InterpreterError,
    kernels_missing,
    missing,
)

__all__ = [
    "Backend",
    "InterpreterError",
    "TritonInterpreter",
    "activate",
    "kernels_missing",
    "missing",
]
