"""Calls as misread: exchanged arguments, a state in another order, another base."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor


def unchanged(outputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return outputs


@dataclass(frozen=True)
class Misreading:
    """One mistake that is made in every call.

    Args:
        said: the mistake and its mend.
        call: what the function takes its arguments for.
        returned: what it returns, made of the exact outputs of that call.
    """

    said: str
    call: Any
    returned: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = unchanged
