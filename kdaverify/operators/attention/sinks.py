"""Regimes of sinks, each beside the largest logits of a problem, and usual misreadings of one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Literal

import torch
from torch import Tensor

from kdaverify.operators.attention.regimes import REGIMES
from oracles.attention.calls import RequestsCall

Sinks = Literal["level", "normal", "low", "high", "far", "absent", "mixed", "faint"]
LOW, FAINT, HIGH, FAR, LARGE = -30.0, -10.0, 8.0, 80.0, 1000.0
"""Above the level: no effect in fp32; next to none in 16 bits; P subnormal in fp16; o subnormal in
fp16, and near the end of exp in fp32; beyond it."""
ABOVE: Final[Mapping[str, tuple[float, ...]]] = {
    "level": (0.0,),
    "low": (LOW,),
    "faint": (FAINT,),
    "high": (HIGH,),
    "far": (FAR,),
    "absent": (-math.inf, 0.0),
    "mixed": (0.0, -math.inf, HIGH, LOW, FAR, LARGE, -LARGE),
}
"""Of every head in turn, relative to the level where a sink has about half of the weight."""


def sinks(name: str, normal: Tensor, logits: str, s_k: int) -> Tensor:
    """[H] fp32, of numbers that bf16 holds: models store them in it.

    Args:
        normal: [H] normal numbers.
        logits: a key of REGIMES; s_k: keys of the longest request.
    """
    heads = len(normal)
    if name == "normal":
        return normal.bfloat16().float()
    above = ABOVE[name]
    shifts = torch.tensor([above[h % len(above)] for h in range(heads)], dtype=torch.float64)
    return (shifts + _level(logits, heads, s_k) + normal / 2).bfloat16().float()


def _level(logits: str, heads: int, s_k: int) -> Tensor:
    """[H] About LSE of rows that see all keys: log n of ordinary logits, the largest of others."""
    regime, log = REGIMES[logits], math.log(max(s_k, 1))
    spread = max(log, regime.spread * math.sqrt(2 * log))
    largest = float(regime.pattern(torch.arange(max(s_k, 1), dtype=torch.float64)).max())
    factor = torch.linspace(*regime.heads, heads, dtype=torch.float64)
    return spread + largest * factor


MISREAD: Final[Mapping[str, Callable[[Any], Any]]] = {
    "the sink is ignored; it joins the sum of exponentials": lambda call: replace(call, sink=None),
    "the sink is multiplied by softmax_scale; it is a logit, as S is": lambda call: replace(
        call, sink=call.sink * call.softmax_scale
    ),
    "the sink is taken to base 2; multiply it by log2(e) first": lambda call: replace(
        call, sink=call.sink * math.log(2)
    ),
    "one sink is used for all heads; there is one for each": lambda call: replace(
        call, sink=call.sink[:1].expand_as(call.sink)
    ),
}


def misread_sink(
    call: RequestsCall,
    found: Mapping[str, Tensor],
    exact: Callable[[RequestsCall], Mapping[str, Tensor]],
    alike: Callable[[Tensor, Tensor], bool],
) -> str | None:
    """What a function takes the sink for, where that is none of what it is.

    Args:
        exact: outputs of a call.
        alike: whether two tensors are the same but for roundings.
    """
    if call.sink is None:
        return None
    counted = call.lse_includes_sink
    if "lse" in found and alike(found["o"], exact(call)["o"]):
        given: Any = call  # a dataclass each
        changed = replace(given, lse_includes_sink=not counted)
        if alike(found["lse"], exact(changed)["lse"]):
            declared, other = ("yes", "no") if counted else ("no", "yes")
            return f"declared lse_includes_sink={declared!r}, but behaves as {other!r}"
        return None
    fits = (said for said, read in MISREAD.items() if alike(found["o"], exact(read(call))["o"]))
    return next(fits, None)
