"""The language patched once: the interpreter patches and restores it at every launch."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np


class Standing:
    """A patch that stays: nothing in this process compiles."""

    def __call__(self, _function: Any) -> Standing:
        """Patches nothing for a function, as the kernel is patched already."""
        return self

    def restore(self) -> None:
        """Keeps the patch."""


def patch_for_good(module: Any, tl: Any) -> None:
    """Lets the interpreter patch `triton.language` a last time, for good."""
    module._patch_attr = _direct(module.interpreter_semantic)  # noqa: SLF001
    module._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))  # noqa: SLF001
    module._patch_lang = Standing()  # noqa: SLF001
    if not hasattr(tl.math, "tanh"):
        tl.math.tanh = _tanh(module, tl)


def _tanh(module: Any, tl: Any) -> Any:
    """The function of Ascend's Triton where modules beside attention import it from."""

    def tanh(x: Any) -> Any:
        return tl.tensor(module.TensorHandle(np.tanh(x.handle.data), x.dtype), x.type)

    return tanh


def _direct(semantic: Any) -> Any:
    """How the interpreter binds a builtin, without a copy of the arguments per call."""

    def bind(owner: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        del builder
        inner = inspect.unwrap(member)  # what wraps it checks that a semantic is given

        def bound(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            return inner(*args, **kwargs)

        scope.set_attr(owner, name, bound)

    return bind


def take_floats_as_fp32(module: Any, tl: Any) -> None:
    """Gives kernels floating-point arguments as the fp32 scalars that compiled ones get.

    A Python number beside a 16-bit tensor takes its format: q times the scale was a product with a
    rounded scale, off by up to 2^-9 everywhere, where a compiled kernel multiplies in fp32.
    """
    convert = module._implicit_cvt  # noqa: SLF001

    def converted(argument: Any) -> Any:
        if type(argument) is not float:
            return convert(argument)
        data = np.array([argument], dtype=np.float32)
        return tl.tensor(module.TensorHandle(data, tl.float32), tl.float32)

    module._implicit_cvt = converted  # noqa: SLF001


def take_any_extent(tl: Any, backend: str) -> None:
    """Lets kernels for Ascend have blocks of any extent; those for CUDA keep their limit."""
    if backend != "npu":
        return
    checked = tl.core.validate_block_shape

    def any_extent(shape: Sequence[int]) -> int:
        # types, and the limit of a block's size
        checked([1 << (extent - 1).bit_length() for extent in shape])
        return math.prod(shape)

    tl.core.validate_block_shape = any_extent


def let_numbers_beat_nan(module: Any) -> None:
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
