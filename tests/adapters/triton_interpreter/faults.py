"""Ways to get bf16 wrong, one at a time. Imported by a process that interprets."""

from __future__ import annotations

import operator
from typing import Any

from triton.runtime import interpreter as module

from kdaverify.adapters.triton_interpreter import bfloat16, formats, reductions

Plant = tuple[Any, str, Any]


def truncating(values: Any) -> Any:
    return (values.astype("float32").view("uint32") >> 16).astype("uint16")


def ties_away(values: Any) -> Any:
    return ((values.astype("float32").view("uint32") + 0x8000) >> 16).astype("uint16")


def flushing(bits: Any) -> Any:
    return formats.widen(bits) * (bits & 0x7F80 != 0)


def untouched(bits: Any) -> Any:
    return bits


def sum_of_bits(builder: Any, a: Any, b: Any) -> Any:
    return builder.binary_op(a, b, operator.add)


def order_of_bits(builder: Any, a: Any, b: Any) -> Any:
    return builder.binary_op(a, b, operator.lt)


def zero(builder: Any, _value: Any) -> Any:
    return builder.get_null_value(module.tl.bfloat16)


def late_sum(reduction: Any, tensor: Any) -> Any:
    wide = formats.widen(tensor.handle.data).sum(axis=reduction.axis)
    return reduction.to_tensor(formats.narrow(wide), tensor.dtype)


def planted() -> dict[str, Plant]:
    """Faults by name: what to replace where."""
    builder = module.InterpreterBuilder
    return {
        "truncating cast": (bfloat16, "narrow", truncating),
        "ties away from zero": (bfloat16, "narrow", ties_away),
        "flushed subnormals": (bfloat16, "widen", flushing),
        "sums of bits": (builder, "create_fadd", sum_of_bits),
        "order of bits": (builder, "create_fcmpOLT", order_of_bits),
        "a constant of 0": (builder, "get_bf16", zero),
        "sum rounded once": (module.ReduceOps, "sum", late_sum),
        "largest of bits": (reductions, "widen", untouched),
    }
