"""The name of a verdict, by which waivers and the ledger find it from run to run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

FIELDS: Final = ("property", "dtype", "regime", "case", "output", "detail")
"""The fields of a row that make its name; `detail` as JSON."""


def identity(about: Sequence[str]) -> str:
    """PROPERTY/DTYPE/REGIME/CASE/OUTPUT, then /NAME=VALUE,... for the property's own choices.

    Args:
        about: the values of FIELDS.
    """
    *named, detail = about
    chosen: dict[str, Any] = json.loads(detail)
    reported = ",".join(f"{name}={value}" for name, value in sorted(chosen.items()))
    return "/".join((*named, *([reported] if reported else [])))
