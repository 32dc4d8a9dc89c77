"""Why a fault survives: equivalent, below what legal kernels differ by, or a gap with what it would take."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

SURVIVORS: Final[Mapping[str, str]] = MappingProxyType({})
"""By id; asked only where the matrix finds the fault alive."""
