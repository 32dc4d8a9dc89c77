"""bf16 in the interpreter: it keeps the bits as uint16, and must not compute with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from kdaverify.adapters.triton_interpreter.formats import narrow, widen
from kdaverify.adapters.triton_interpreter.installation import InterpreterError

Operation = Callable[..., Any]

ARITHMETIC: Final = (
    *("fadd", "fsub", "fmul", "fdiv", "frem", "precise_divf", "fneg"),
    *("minimumf", "maximumf", "minnumf", "maxnumf", "clampf", "fma"),
    *(
        "exp", "exp2", "log", "log2", "sqrt", "precise_sqrt", "rsqrt", "sin", "cos", "erf", "floor",
        "ceil",
    ),
)  # fmt: skip
COMPARISONS: Final = tuple(
    f"fcmp{order}{relation}" for order in "OU" for relation in ("LT", "GT", "LE", "GE", "EQ", "NE")
)


class Bfloat16:
    """The operations of the builder, done on bf16 as a compiler does them: in fp32, rounded once.

    For + - * / and square roots that equals rounding the exact result, since 24 bits hold more than
    twice 8 + 1.
    """

    def __init__(self, module: Any, tl: Any) -> None:
        self._handle = module.TensorHandle
        self._fp32 = tl.float32
        self._bf16 = tl.bfloat16
        self._int1 = tl.int1
        self._fp_add = module._ir.ATOMIC_OP.FADD  # noqa: SLF001
        self._install(module.InterpreterBuilder)

    def holds(self, handle: Any) -> bool:
        return handle.dtype.scalar is self._bf16

    def wide(self, handle: Any) -> Any:
        """`handle` in fp32 if it is bf16, itself if not."""
        return self._handle(widen(handle.data), self._fp32) if self.holds(handle) else handle

    def rounded(self, values: Any) -> Any:
        """fp32 `values` as a bf16 handle."""
        return self._handle(narrow(values), self._bf16)

    def _install(self, builder: Any) -> None:
        names = [name for name in ARITHMETIC if hasattr(builder, f"create_{name}")]
        for name in names:
            setattr(builder, f"create_{name}", self._arithmetic(getattr(builder, f"create_{name}")))
        for name in COMPARISONS:
            setattr(builder, f"create_{name}", self._comparison(getattr(builder, f"create_{name}")))
        builder.cast_impl = self._cast(builder.cast_impl)
        builder.create_fp_to_fp = self._cast(builder.create_fp_to_fp)
        builder.create_atomic_rmw = self._atomic(builder.create_atomic_rmw)
        builder.get_bf16 = self._constant()

    def _constant(self) -> Operation:
        def constant(_builder: Any, value: float) -> Any:
            return self.rounded(np.array([value], dtype=np.float32))

        return constant

    def _arithmetic(self, operation: Operation) -> Operation:
        def computed(builder: Any, *operands: Any) -> Any:
            if self.holds(operands[0]):
                wide = (self.wide(x) if isinstance(x, self._handle) else x for x in operands)
                return self.rounded(operation(builder, *wide).data)
            return operation(builder, *operands)

        return computed

    def _comparison(self, operation: Operation) -> Operation:
        def compared(builder: Any, lhs: Any, rhs: Any) -> Any:
            if self.holds(lhs):
                return self._handle(
                    operation(builder, self.wide(lhs), self.wide(rhs)).data, self._int1
                )
            return operation(builder, lhs, rhs)

        return compared

    def _cast(self, operation: Operation) -> Operation:
        def cast(builder: Any, source: Any, target: Any, *rounding: Any) -> Any:
            if target.scalar is not self._bf16:
                return operation(builder, self.wide(source), target, *rounding)
            if self.holds(source):
                return source
            # numpy casts to fp32 what is neither fp32 nor bf16, and so does the compiler
            return self.rounded(
                source.data
                if source.dtype.scalar is self._fp32
                else operation(builder, source, self._fp32, *rounding).data
            )

        return cast

    def _atomic(self, operation: Operation) -> Operation:
        def updated(builder: Any, kind: Any, pointer: Any, value: Any, *rest: Any) -> Any:
            if self.holds(value) and kind == self._fp_add:
                raise InterpreterError(
                    "atomic addition of bf16 is not emulated: wanted fp32 partial sums; interpret"
                    " the fp32 path instead"
                )
            return operation(builder, kind, pointer, value, *rest)

        return updated
