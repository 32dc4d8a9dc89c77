"""Whether a wrong output is that of another convention: border, scale, heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kdaverify.budgets.statistics import rms
from kdaverify.operators.attention.problem import SCALES
from kdaverify.operators.bounded import ALIKE
from oracles.attention.segment import Segment
from oracles.attention.sink import softmax_of


def alike(found: Tensor, exact: Tensor) -> bool:
    """Whether two tensors are the same but for roundings."""
    return rms(found.double() - exact) <= ALIKE * rms(exact) if exact.numel() else True


def all_alike(found: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> bool:
    """The same of all outputs."""
    return all(alike(y, exact[name]) for name, y in found.items())


def _is_of(o: Tensor, call: Any, misread: Callable[[Segment], Segment]) -> bool:
    """Whether o is that of the call with every segment misread."""
    parts = [softmax_of(misread(segment)).o[0] for segment in call.segments()]
    return alike(o, call.joined("o", parts))


def other_border(problem: Any, o: Tensor, words: Mapping[str, Any]) -> str | None:
    """Whether o is that of another causal border."""
    if not problem.causal:
        return None
    call = problem.inputs()
    for name, shifted in (("top_left", True), ("not causal", False)):
        if _is_of(o, call, partial(_bordered, top_left=shifted)):
            declared = f"causal_alignment={words['causal_alignment']!r}"
            if not shifted:
                return "it is given causal=True, but attends to keys behind the border"
            return (
                f"declared {declared}, but behaves as causal_alignment={name!r}; correct the"
                " declaration"
            )
    return None


def _bordered(segment: Segment, *, top_left: bool) -> Segment:
    """The segment under the other causal border, or none."""
    visible = torch.ones_like(segment.visible)
    return replace(segment, visible=visible.tril() if top_left else visible)


def other_scale(problem: Any, o: Tensor) -> str | None:
    """Whether o is that of another scale."""
    call, given = problem.inputs(), problem.softmax_scale
    named = (problem.replace(scale=scale).softmax_scale for scale in SCALES)
    for changed in (1.0, *named):
        if changed != given and _is_of(o, call, partial(replace, scale=changed)):
            return (
                f"softmax_scale is {given:.4g}, but the kernel multiplies q k^T by"
                f" {changed:.4g}; multiply by softmax_scale"
            )
    return None


def other_heads(problem: Any, o: Tensor) -> str | None:
    """Whether o is that of KV heads repeated as a whole, instead of each in place."""
    if not 1 < problem.h_kv < problem.H:
        return None
    heads = [h % problem.h_kv for h in range(problem.H)]
    if not _is_of(o, problem.inputs(), lambda x: replace(x, k=x.k[heads], v=x.v[heads])):
        return None
    return (
        "query head h reads KV head h % h_kv; wanted h // (H / h_kv): repeat_interleave, not repeat"
    )
