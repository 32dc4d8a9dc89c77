"""How calls are made, beside their arguments: what a worker process has to be told of the caller's own process."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

_UNWRITTEN: Final = frozenset({
    torch.empty, torch.empty_like, torch.empty_strided, torch.empty_permuted, torch.Tensor.new_empty, torch.Tensor.new_empty_strided,
})  # fmt: skip


@dataclass(frozen=True)
class Manner:
    """One way of calling.

    Args:
        as_they_lie: inputs reach a worker process with the gaps and the memory around them, at the same address but for a multiple of 64.
        poisoned: whatever floating-point tensor is allocated and not written holds NaN.
    """

    as_they_lie: bool = False
    poisoned: bool = False


_manner: ContextVar[Manner] = ContextVar("manner", default=Manner())  # noqa: B039 # frozen


def manner() -> Manner:
    """That of the calls made now."""
    return _manner.get()


@contextmanager
def calling(how: Manner) -> Generator[None]:
    """Makes the calls inside in this manner."""
    token = _manner.set(how)
    try:
        if how.poisoned:
            with _Poison():
                yield
        else:
            yield
    finally:
        _manner.reset(token)


class _Poison(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        made = func(*args, **(kwargs or {}))
        return made.fill_(float("nan")) if func in _UNWRITTEN and made.is_floating_point() else made
