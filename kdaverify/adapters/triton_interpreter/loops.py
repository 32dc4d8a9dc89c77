"""Loop indices: compiled kernels get tensors, the interpreter hands out Python integers."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np


class Loops:
    """`range` of kernels, in its two spellings.

    `tl.range` always counts in tensors. Python's `range` does so if a bound is a tensor: kernels
    share it with the code that launches them.
    """

    def __init__(self, module: Any, tl: Any) -> None:
        self._tensor, self._constexpr, self._handle = tl.tensor, tl.constexpr, module.TensorHandle
        self._formats: tuple[tuple[Any, Any], ...] = ((tl.int32, np.int32), (tl.int64, np.int64))
        tl.range = tl.core.range = self.in_language
        self._everywhere(module.InterpretedFunction)

    def in_language(
        self, arg1: Any, arg2: Any = None, step: Any = None, **_pipelining: Any
    ) -> Iterator[Any]:
        """tl.range(stop), (start, stop) or (start, stop, step)."""
        start, stop = (0, arg1) if arg2 is None else (arg1, arg2)
        return self._tensors((start, stop, 1 if step is None else step))

    def in_python(self, *bounds: Any) -> Iterable[Any]:
        """range(...) in a module with kernels."""
        if any(isinstance(bound, self._tensor) for bound in bounds):
            return self._tensors(bounds)
        return builtins.range(*bounds)

    def _tensors(self, bounds: Iterable[Any]) -> Iterator[Any]:
        plain = [bound.value if isinstance(bound, self._constexpr) else bound for bound in bounds]
        wide = any(
            isinstance(bound, self._tensor) and bound.dtype.primitive_bitwidth > 32
            for bound in plain
        )
        dtype, numpy_dtype = self._formats[wide]
        for i in builtins.range(*(int(bound) for bound in plain)):
            yield self._tensor(self._handle(np.array([i], dtype=numpy_dtype), dtype), dtype)

    def _everywhere(self, interpreted: Any) -> None:
        original: Callable[[Any], Any] = interpreted.rewrite

        def rewrite(function: Any) -> Any:
            function.fn.__globals__.setdefault("range", self.in_python)
            return original(function)

        interpreted.rewrite = rewrite
