"""NaN in what torch allocates and does not write, so that reads of unwritten memory show."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode  # the documented mode has no other name

_UNWRITTEN: Final = frozenset(
    {
        torch.empty, torch.empty_like, torch.empty_strided, torch.empty_permuted,
        torch.Tensor.new_empty, torch.Tensor.new_empty_strided,
    }
)  # fmt: skip
_BACKWARD: Final = frozenset({torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward})
_aten: Final = torch.ops.aten
_UNWRITTEN_IN_BACKWARD: Final = frozenset(
    {
        _aten.empty.memory_format, _aten.empty_like.default, _aten.empty_strided.default,
        _aten.empty_permuted.default, _aten.new_empty.default, _aten.new_empty_strided.default,
    }
)  # fmt: skip

_poisoned: ContextVar[bool] = ContextVar("poisoned", default=False)


def allocations_are_poisoned() -> bool:
    """Whether calls made now get NaN in fresh memory; a worker process has to be sent this."""
    return _poisoned.get()


@contextmanager
def poisoned_allocations(*, wanted: bool = True) -> Generator[None]:
    """Fills every floating-point tensor that is allocated inside, and not written, with NaN.

    Args:
        wanted: False leaves memory as it is.
    """
    token = _poisoned.set(wanted)
    try:
        if wanted:
            with _Poison():
                yield
        else:
            yield
    finally:
        _poisoned.reset(token)


class _Poison(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _BACKWARD:
            # this mode is off while it handles a function, here the whole backward: dk and dv that
            # came from torch.empty there were as memory held them
            with _PoisonInBackward():
                return func(*args, **(kwargs or {}))
        return _filled(func(*args, **(kwargs or {})), wanted=func in _UNWRITTEN)


class _PoisonInBackward(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: to be left out by torch's compiler, a mode imports it, 1.5 s of CPU."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return _filled(made, wanted=func in _UNWRITTEN_IN_BACKWARD)


def _filled(made: Any, *, wanted: bool) -> Any:
    if wanted and made.is_floating_point():
        # A checkpoint under autograd allocates a leaf, which only a detached view may fill.
        made.detach().fill_(float("nan"))
    return made
