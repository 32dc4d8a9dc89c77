"""Operators between tensors of one format, or with a number it holds: numpy's, no detour.

On the detour Triton finds that nothing has to be converted, spreads both operands to one shape and
then calls numpy, which spreads by the same rules. Everything else goes the old way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from kdaverify.adapters.triton_interpreter.memo import COMMON, held

ARITHMETIC: Final = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
ORDER: Final = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}

Operator = Callable[[Any, Any], Any]


class Operators:
    """The replaced operators of `tl.tensor`, installed over the patched language."""

    def __init__(self, module: Any, tl: Any) -> None:
        self._tensor = tl.core.tensor
        self._pointer = tl.core.pointer_type
        self._block = tl.core.block_type
        self._handle = module.TensorHandle
        self._semantic = module.interpreter_semantic
        for name, operation in (ARITHMETIC | ORDER).items():
            original = getattr(self._tensor, f"__{name}__")
            element = tl.int1 if name in ORDER else None
            self._replace(f"__{name}__", self._elementwise(operation, original, element))
        # a name the language gives, not Python
        self._replace("__add__", self._displaced(getattr(self._tensor, "__add__")))  # noqa: B009

    def _replace(self, name: str, operator: Operator) -> None:
        setattr(self._tensor, name, operator)

    def _elementwise(
        self, operation: Callable[[Any, Any], Any], original: Operator, element: Any
    ) -> Operator:
        """The operator; its result has the operands' format where `element` is None."""
        handle, tensor = self._handle, self._tensor

        def operator(lhs: Any, rhs: Any) -> Any:
            other = self._fitting(lhs, rhs)
            if other is None:
                return original(lhs, rhs)
            data = operation(lhs.handle.data, other.handle.data)
            spread = self._spread(lhs, other, data)
            return tensor(
                handle(data, lhs.dtype),
                spread if element is None else spread.with_element_ty(element),
            )

        return operator

    def _displaced(self, original: Operator) -> Operator:
        """Pointers moved by offsets."""
        pointer, tensor, builder = self._pointer, self._tensor, self._semantic.builder

        def operator(lhs: Any, rhs: Any) -> Any:
            if (
                type(lhs.dtype) is not pointer
                or type(rhs) is not tensor
                or rhs.dtype.name not in {"int32", "int64"}
            ):
                return original(lhs, rhs)
            moved = builder.create_addptr(lhs.handle, rhs.handle)
            return tensor(moved, self._spread(lhs, rhs, moved.data))

        return operator

    def _fitting(self, lhs: Any, rhs: Any) -> Any:
        """`rhs` in the format of `lhs` if it is one or holds its value; None if more is needed."""
        name = lhs.dtype.name
        if name not in COMMON:
            return None
        if type(rhs) is self._tensor:
            if rhs.dtype.name != name:
                return None
            other = rhs
        elif held(rhs, name):
            other = self._semantic.scalar_constant(rhs, dtype=lhs.dtype)
        else:
            return None
        # spreading a number would lay it out in rows: sums of the result must find the same order
        return other if lhs.shape is other.shape or self._in_rows(lhs, other) else None

    def _in_rows(self, lhs: Any, rhs: Any) -> bool:
        return (lhs.type.is_block() or rhs.handle.data.flags.c_contiguous) and (
            rhs.type.is_block() or lhs.handle.data.flags.c_contiguous
        )

    def _spread(self, lhs: Any, rhs: Any, data: Any) -> Any:
        """The type of what comes of `lhs` and `rhs`, of the elements of `lhs`."""
        if lhs.shape is rhs.shape or not rhs.type.is_block():
            return lhs.type
        if not lhs.type.is_block():
            return rhs.type.with_element_ty(lhs.dtype)
        return self._block(lhs.dtype, list(data.shape))
