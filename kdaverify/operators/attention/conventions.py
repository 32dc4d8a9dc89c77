"""What a function of attention declares, and the way from it to the canonical conventions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "lse": ("e", "2", "none"),
    "empty_lse": ("-inf", "+inf"),
    "empty_out": ("0", "unspecified"),
}
"""Of every operator here; the default first. lse="none": the function returns o alone."""
MASKED: Final[Mapping[str, tuple[str, ...]]] = {
    **WORDS,
    "causal_alignment": ("bottom_right", "top_left"),
    "causal": ("no", "yes"),
    "key_heads": ("any", "all", "one"),
    "unused": ("anything", "finite"),
    "sink": ("optional", "required"),
    "lse_includes_sink": ("no", "yes"),
}
"""Of those with a mask; causal where the signature does not name it; key_heads: as many as there
are query heads, or one; unused: what memory behind the last key of a request may hold; sink:
whether a function that takes one may be called with None."""
GRADIENT: Final[Mapping[str, tuple[str, ...]]] = {"lse_gradient": ("none", "given")}
"""Of those with a backward: whether it follows the cotangent of LSE."""
ZERO: Final = torch.finfo(torch.float32).max
"""Stands for an LSE of 0 in a row without keys, where 0 stands for the declared one."""
OPPOSITE: Final = {"-inf": "+inf", "+inf": "-inf"}


def outputs(words: Mapping[str, Any]) -> tuple[str, ...]:
    return ("o",) if words["lse"] == "none" else ("o", "lse")


def canonical_lse(lse: Tensor, empty: Tensor, words: Mapping[str, Any]) -> Tensor:
    """LSE to base e; in rows without keys 0 where the function returned what it declares, else
    anything but 0, so that every output has a finite exact value.

    Args:
        empty: rows without keys, in the shape of lse.
    """
    natural = lse * math.log(2) if words["lse"] == "2" else lse
    if not bool(empty.any()):
        return natural  # a mask would make incoming gradients dense
    right = empty & (lse == float(words["empty_lse"]))
    found = torch.where(right, 0.0, natural)
    return torch.where(empty & ~right & (lse == 0), ZERO, found)


def declared_lse(lse: Tensor, words: Mapping[str, Any]) -> Tensor:
    """Canonical LSE, -inf without keys, as the function takes it."""
    return torch.where(torch.isneginf(lse), float(words["empty_lse"]), based(lse, words))


def based(lse: Tensor, words: Mapping[str, Any]) -> Tensor:
    """Natural LSE to the declared base, in fp32."""
    return (lse.double() / math.log(2)).float() if words["lse"] == "2" else lse.float()


def canonical_o(o: Tensor, empty: Tensor, words: Mapping[str, Any]) -> Tensor:
    """o, 0 in rows without keys where they are declared unspecified.

    Args:
        empty: [..., 1] of o.
    """
    masked = words["empty_out"] == "unspecified" and bool(empty.any())
    return o.masked_fill(empty, 0.0) if masked else o


def misdeclared_lse(
    found: Tensor, exact: Tensor, empty: Tensor, words: Mapping[str, Any], alike: Any
) -> str | None:
    """Which other base or value of rows without keys fits a canonical LSE that does not fit.

    Args:
        alike: whether two tensors are the same but for roundings.
    """
    full = ~empty
    lonely, declared = found[empty], words["empty_lse"]
    if alike(found[full], exact[full]):
        if bool((lonely == float(OPPOSITE[declared])).all()):
            said = f"empty_lse={declared!r}, but rows without keys have {OPPOSITE[declared]}"
            return f"declared {said}; declare empty_lse={OPPOSITE[declared]!r}"
        wrong = lonely[lonely != 0]
        shown = float(wrong[0]) if len(wrong) and wrong[0] != ZERO else 0.0
        return f"rows without keys: wanted o = 0 and lse = {declared}, as declared, got {shown:.6g}"
    other, factor = ("2", math.log(2)) if words["lse"] == "e" else ("e", 1 / math.log(2))
    if alike(found[full] * factor, exact[full]):
        return f"declared lse={words['lse']!r}, but LSE is to base {other}; declare lse={other!r}"
    return None
