"""Laws."""

from typing import Any

DENSE_LAWS: Any = {}
DECODE_LAWS: Any = {}
MERGE_LAWS: Any = {}
