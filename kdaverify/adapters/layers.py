"""Modules of other packages as layers: a copy of a module for each format, of the same weights."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping
from operator import methodcaller
from typing import Any, Final

import torch
from torch import Tensor, nn

from kdaverify.adapters.operator_kernel import FunctionAdapter, shipped

WIDTH: Final = 64
SEED: Final = 24
SLOWEST, FASTEST = 0.02, 0.5
"""Decays a step of exp(-A softplus(.)): freshly made modules forget within a token or two, and what
a cache holds would not show."""


def _reorder(cache: Any, order: Tensor) -> None:
    cache.reorder_cache(order)


CACHES: Final[Mapping[str, Any]] = {"reset": methodcaller("reset"), "reorder": _reorder}
"""How caches with the interface of transformers are handled, FLA's among them."""


@functools.cache
def module_in(make: Callable[[], nn.Module], dtype: torch.dtype) -> nn.Module:
    """The module in a format; its weights are numbers of bfloat16, the same in every format."""
    if dtype is not torch.float32:
        return copy.deepcopy(module_in(make, torch.float32)).to(dtype)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(SEED)
        found = make().eval()
        for name, weight in found.named_parameters():
            drawn = _drawn(name.rpartition(".")[2], weight)
            weight.copy_(drawn.bfloat16())
    return found


def _drawn(name: str, weight: Tensor) -> Tensor:
    """Weights under which every part of a layer shows in its output."""
    if name == "A_log":
        return torch.linspace(math.log(SLOWEST), math.log(FASTEST), weight.numel()).view_as(weight)
    if name == "dt_bias":
        return torch.zeros_like(weight)
    if weight.ndim == 1:
        return 1 + torch.randn_like(weight) / 4
    return torch.randn_like(weight) / math.sqrt(weight[0].numel())


def layer(function: Callable[..., Any], name: str, **options: Any) -> FunctionAdapter:
    """The adapter of a layer of WIDTH in fp32 and bf16, whose caches are those of CACHES."""
    given: dict[str, Any] = {"widths": (WIDTH,), "dtypes": ("fp32", "bf16"), **CACHES, **options}
    return shipped("layer", function, name, **given)
