"""Kernels in a worker process: what ends the process ends one case, not the session."""

from __future__ import annotations

from kdaverify.adapters.isolation.fault import CallFailure, fault_of
from kdaverify.adapters.isolation.isolated import Isolated, housed

__all__ = ["CallFailure", "Isolated", "fault_of", "housed"]
