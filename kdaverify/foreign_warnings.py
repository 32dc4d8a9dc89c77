"""Warnings of kernels' packages: shown, and never an error, whatever the session does."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def foreign_warnings() -> Generator[None]:
    """Shows warnings that would be raised as errors; leaves other filters alone.

    A package that sets filters of its own as it is imported keeps them in the second case.
    """
    if not any(action == "error" for action, *_ in warnings.filters):
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        yield
