"""Numbers of heads, by which conventions give each head parameters of its own."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import torch
from torch import Tensor

_REVERSED: Final = ContextVar("heads are numbered from the last on", default=False)


@contextmanager
def heads_reversed() -> Generator[None]:
    """Within it the last head has the parameters of the first, and so on, as in a call with all
    heads in reverse.
    """
    before = _REVERSED.set(True)
    try:
        yield
    finally:
        _REVERSED.reset(before)


def head_numbers(count: int, device: torch.device | None = None) -> Tensor:
    """[count] 0 to count - 1; in reverse within `heads_reversed`."""
    found = torch.arange(count, device=device)
    return found.flip(0) if _REVERSED.get() else found
