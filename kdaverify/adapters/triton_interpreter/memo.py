"""What the interpreter computes for every operation, worked out once: shapes, formats, promotions.

Everything here returns what the replaced function returns. It halves the time of kernels with small
blocks, where bookkeeping outweighs arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

COMMON: Final = frozenset({"int32", "int64", "fp32"})


def install(module: Any, tl: Any) -> None:
    """Replaces the bookkeeping of types, before the language is patched for interpretation."""
    core = tl.core
    _shapes(tl)
    _equality(core.dtype)
    core._unwrap_if_constexpr = _unwrapping(core._unwrap_if_constexpr, core)  # noqa: SLF001
    module._get_np_dtype = _by_name(module._get_np_dtype)  # noqa: SLF001
    module._validate_np_data_size = _fitting(core.pointer_type)  # noqa: SLF001
    semantic = module.interpreter_semantic
    semantic.computation_type_impl = _promotion(semantic.computation_type_impl)
    semantic.cast = _no_cast(semantic.cast)
    semantic.broadcast_impl_value = _no_broadcast(semantic.broadcast_impl_value)
    semantic.scalar_constant = _constants(semantic.scalar_constant)
    semantic.binary_op_type_checking_impl = _operands(semantic, core.tensor)
    builder = module.interpreter_builder
    # only a debugging builder acts on what the sanitizer computes in int64 beside every sum and
    # product of indices
    builder.options = replace(
        builder.options,
        sanitize_overflow=builder.options.sanitize_overflow and builder.options.debug,
    )


def _shapes(tl: Any) -> None:
    """Types of blocks and tensors share the objects that depend on nothing but their shape."""
    block_type = tl.core.block_type
    tensor = tl.core.tensor
    constexpr = tl.core.constexpr
    sequence = tl.core.tuple
    original: Callable[[Any, Any, Any], None] = block_type.__init__
    known: dict[tuple[int, ...], tuple[Any, int, str, tuple[Any, Any]]] = {}
    scalar = (constexpr(1), sequence([]))

    def block(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple(size.value if isinstance(size, constexpr) else size for size in shape)
        if sizes not in known:
            original(self, element_ty, shape)
            lengths = sequence([constexpr(size) for size in self.shape])
            known[sizes] = (
                self.shape,
                self.numel,
                f"<{self.shape}, ",
                (constexpr(self.numel), lengths),
            )
        self.element_ty = element_ty
        self.shape, self.numel, opening, self.of_tensors = known[sizes]
        self.name = f"{opening}{element_ty}>"

    def initialise(self: Any, handle: Any, type: Any) -> None:  # noqa: A002
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = type.of_tensors if type.is_block() else scalar

    with_element_ty: Callable[[Any, Any], Any] = block_type.with_element_ty

    def of_element(self: Any, element_ty: Any) -> Any:
        return self if element_ty is self.element_ty else with_element_ty(self, element_ty)

    def to_ir(self: Any, _builder: Any) -> Any:  # the interpreter's types are the language's own
        return self

    block_type.__init__, tensor.__init__ = block, initialise
    block_type.with_element_ty, block_type.to_ir = of_element, to_ir


def _equality(dtype: Any) -> None:
    original: Callable[[Any, Any], bool] = dtype.__eq__

    def equal(self: Any, other: Any) -> bool:
        if isinstance(other, dtype):
            return self is other or self.name == other.name
        return original(self, other)

    dtype.__eq__ = equal


def _unwrapping(original: Callable[[Any], Any], core: Any) -> Callable[[Any], Any]:
    constexpr, plain = (
        core.constexpr,
        frozenset({core.tensor, core.dtype, core.pointer_type, int, float, bool, str, type(None)}),
    )

    def unwrapped(value: Any) -> Any:
        kind = type(value)
        if kind is constexpr:
            return value.value
        return value if kind in plain else original(value)

    return unwrapped


def _by_name(numpy_dtype: Callable[[Any], Any]) -> Callable[[Any], Any]:
    known: dict[str, Any] = {}

    def found(dtype: Any) -> Any:
        name = dtype.name
        if name not in known:
            known[name] = numpy_dtype(dtype)
        return known[name]

    return found


def _fitting(pointer: type) -> Callable[[Any, Any], bool]:
    """Whether an array's elements are no wider than its stated format; called for every handle."""
    widths: dict[str, int] = {}

    def fits(array: Any, dtype: Any) -> bool:
        name = dtype.name
        if name not in widths:
            widths[name] = 64 if isinstance(dtype, pointer) else max(8, dtype.primitive_bitwidth)
        return 8 * array.itemsize <= widths[name]

    return fits


def _promotion(original: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[tuple[str, bool, str, bool, bool], Any] = {}

    def promoted(a: Any, a_is_scalar: Any, b: Any, b_is_scalar: Any, div_or_mod: Any) -> Any:
        key = (a.name, a_is_scalar, b.name, b_is_scalar, div_or_mod)
        if key not in known:
            known[key] = original(a, a_is_scalar, b, b_is_scalar, div_or_mod)
        return known[key]

    return promoted


def _no_cast(original: Callable[..., Any]) -> Callable[..., Any]:
    def cast(value: Any, dtype: Any, *rounding: Any, **options: Any) -> Any:
        return (
            value if value.dtype is dtype.scalar else original(value, dtype, *rounding, **options)
        )

    return cast


def _no_broadcast(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def broadcast(lhs: Any, rhs: Any) -> Any:
        return (lhs, rhs) if lhs.shape is rhs.shape else original(lhs, rhs)

    return broadcast


def _constants(original: Callable[..., Any]) -> Callable[..., Any]:
    """Constants of the common formats, made once and shared: their arrays are closed to writing."""

    @lru_cache(maxsize=4096)
    def constant(value: float, _kind: type, dtype: Any) -> Any:
        made = original(value, dtype)
        made.handle.data.flags.writeable = False
        return made

    def typed(value: float, dtype: Any) -> Any:
        if dtype is not None and dtype.name in COMMON:
            return constant(value, type(value), dtype)
        return original(value, dtype)

    return typed


def _operands(semantic: Any, tensor: type) -> Callable[..., Any]:
    """Operands that need no conversion go straight to broadcasting."""
    original: Callable[..., Any] = semantic.binary_op_type_checking_impl

    def fitted(lhs: Any, rhs: Any, *flags: bool) -> Any:
        if len(flags) > 2 or not isinstance(lhs, tensor):
            return original(lhs, rhs, *flags)
        if isinstance(rhs, tensor):
            a, b = lhs.dtype, rhs.dtype
            plain = b.is_int() and flags[:1] == (True,) if a.is_ptr() else a.name == b.name
            return semantic.broadcast_impl_value(lhs, rhs) if plain else original(lhs, rhs, *flags)
        if held(rhs, lhs.dtype.name):
            return semantic.broadcast_impl_value(
                lhs, semantic.scalar_constant(rhs, dtype=lhs.dtype)
            )
        return original(lhs, rhs, *flags)

    return fitted


def held(number: Any, name: str) -> bool:
    """Whether a Python number beside a tensor of format `name` becomes its constant."""
    kind = type(number)
    return (kind is int and 0 <= number < 2**31 and name in COMMON) or (
        kind is float and name == "fp32"
    )
