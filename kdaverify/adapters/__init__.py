"""Implementations under test: base class, decorator, conventions, and how to find one."""

from __future__ import annotations

from kdaverify.adapters.base import Adapter, AdapterError, Output, WrongKernelError
from kdaverify.adapters.convention_checks import ConventionError
from kdaverify.adapters.conventions import CANONICAL, Conventions
from kdaverify.adapters.kernel import kernel
from kdaverify.adapters.kernel_adapter import KernelAdapter
from kdaverify.adapters.registry import Listing, find, shipped

__all__ = [
    "CANONICAL", "Adapter", "AdapterError", "ConventionError", "Conventions", "KernelAdapter",
    "Listing", "Output", "WrongKernelError", "find", "kernel", "shipped",
]  # fmt: skip
