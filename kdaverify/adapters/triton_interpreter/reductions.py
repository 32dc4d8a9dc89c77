"""Sums and scans of 16-bit floats, which compiled code adds in their own format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kdaverify.adapters.triton_interpreter.formats import narrow, widen

Array: TypeAlias = NDArray[Any]
Combine: TypeAlias = Callable[[Array, Array], Array]


def halving(values: Array, axis: int, combine: Combine) -> Array:
    """`values` reduced along `axis` by a balanced tree: the upper half onto the lower."""
    rows = np.moveaxis(values, axis, 0)
    while len(rows) > 1:
        half = len(rows) // 2
        rows = combine(rows[:half], rows[half:])  # blocks have a power of two of elements
    return rows[0]


def running(values: Array, axis: int, combine: Combine) -> Array:
    """Every prefix of `values` along `axis` combined, in order."""
    rows = np.moveaxis(values.copy(), axis, 0)
    for i in range(1, len(rows)):
        rows[i] = combine(rows[i - 1], rows[i])
    return np.moveaxis(rows, 0, axis)


def on_bits(operation: Callable[[Array, Array], Array]) -> Combine:
    """`operation` on bf16 kept as bits, rounded once."""
    return lambda a, b: narrow(operation(widen(a), widen(b)))


class Reductions:
    """The interpreter's reductions, corrected for formats of 16 bits; wider ones stay numpy's."""

    def __init__(self, module: Any, tl: Any) -> None:
        self._bf16, self._fp16 = tl.bfloat16, tl.float16
        reduce, scan = module.ReduceOps, module.ScanOps
        reduce.sum = self._sum(reduce.sum)
        reduce.min_max = self._extreme(reduce.min_max)
        scan.cumsum = self._scan(scan.cumsum, np.add)
        scan.cumprod = self._scan(scan.cumprod, np.multiply)

    def _sum(self, original: Any) -> Any:
        def summed(reduction: Any, tensor: Any) -> Any:
            if tensor.dtype is not self._bf16 and tensor.dtype is not self._fp16:
                return original(reduction, tensor)
            data, axis = tensor.handle.data, reduction.axis
            total = halving(
                data.reshape(-1) if axis is None else data,
                axis or 0,
                self._combine(tensor.dtype, np.add),
            )
            if reduction.keep_dims:
                total = (
                    total.reshape((1,) * data.ndim) if axis is None else np.expand_dims(total, axis)
                )
            return reduction.to_tensor(total, tensor.dtype)

        return summed

    def _extreme(self, original: Any) -> Any:
        def found(
            reduction: Any, tensor: Any, val_reduce_op: Any, idx_reduce_op: Any = None
        ) -> Any:
            tensor = tensor[0] if isinstance(tensor, tuple) else tensor
            if tensor.dtype is not self._bf16:
                return original(reduction, tensor, val_reduce_op, idx_reduce_op)

            def value(bits: Array, **how: Any) -> Any:
                return narrow(val_reduce_op(widen(bits), **how))

            def index(bits: Array, **how: Any) -> Any:
                return idx_reduce_op(widen(bits), **how)

            return original(reduction, tensor, val_reduce_op and value, idx_reduce_op and index)

        return found

    def _scan(self, original: Any, operation: Any) -> Any:
        def scanned(reduction: Any, tensor: Any) -> Any:
            if tensor.dtype is not self._bf16 and tensor.dtype is not self._fp16:
                return original(reduction, tensor)
            data = running(
                tensor.handle.data, reduction.axis, self._combine(tensor.dtype, operation)
            )
            return [reduction.to_tensor(data, tensor.dtype)]

        return scanned

    def _combine(self, dtype: Any, operation: Any) -> Combine:
        return on_bits(operation) if dtype is self._bf16 else operation
