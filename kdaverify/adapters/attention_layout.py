"""What packages of softmax attention have in common: axes, contracts of a format, domains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from torch import Tensor

from kdaverify.budgets.attention.contract import AttentionContract, attention_contract
from kdaverify.budgets.formats import FORMATS

Refusal = Callable[[Any], str | None]
FLOATS: Final = ("fp32", "bf16", "fp16")


def by_heads(*tensors: Tensor) -> tuple[Tensor, ...]:
    """[B, tokens, heads, width] as views [B, heads, tokens, width]."""
    return tuple(tensor.transpose(1, 2) for tensor in tensors)


def contracts(pattern: str, dtypes: tuple[str, ...] = FLOATS) -> Mapping[str, AttentionContract]:
    """The contract of every format; "{0}" in the pattern of its name is the format."""
    return {dtype: attention_contract(pattern.format(dtype), FORMATS[dtype]) for dtype in dtypes}


def refusing(*refusals: Refusal) -> Refusal:
    """The first reason that any of them has."""

    def supports(problem: Any) -> str | None:
        return next((said for said in (refuse(problem) for refuse in refusals) if said), None)

    return supports


def some_keys(problem: Any) -> str | None:
    """Of kernels that cannot be called without keys."""
    if any(s_k == 0 for _, s_k in problem.pairs):
        return "at least one key: its interface takes no call without"
    return None
