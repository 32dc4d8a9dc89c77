"""All rules, by name."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from kdaverify.checks.calls import (
    alternating,
    batch,
    crowd,
    edited,
    first,
    kept,
    keywords,
    padding,
    renumbered,
    repeated,
    streams,
    tuned,
    unwritten,
    views,
)

MODULES: Final = (repeated, kept, edited, alternating, first, views, padding, renumbered, unwritten, batch, crowd, keywords, streams, tuned)
RULES: Final = MappingProxyType({rule.name: rule for module in MODULES for rule in module.RULES})
