"""Stand-in kernels: the float64 recurrence behind every convention, converted by hand so that the
adapters' own code is not believed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kdaverify.adapters import Conventions, KernelAdapter, kernel
from kdaverify.adapters.base import Adapter
from kdaverify.problems import Problem
from oracles.inputs import Inputs
from oracles.recurrence import recurrence

MakeProblem = Callable[..., Problem]
PACK = (0, 5, 9, 0, 4)


def standin(behaves: Conventions, declared: Conventions, dtype: str = "fp32") -> KernelAdapter:
    """A kernel that follows `behaves` and says it follows `declared`."""

    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        initial_state: Any,
        cu_seqlens: Any,
        segment_ids: Any,
        A_log: Any = None,
        dt_bias: Any = None,
    ) -> tuple[Tensor, Tensor]:
        offsets = _offsets(segment_ids) if behaves.packing == "segment_ids" else cu_seqlens
        q64, k64, v64, g64, beta64 = (_bthd(x.double(), behaves) for x in (q, k, v, g, beta))
        state = None if initial_state is None else _kv(initial_state.double(), behaves)
        log = _log(g64, behaves, A_log, dt_bias)
        x = Inputs(q64, k64, v64, log, _value(beta64, behaves), scale, state, offsets)
        o, final = recurrence(x)
        o = (
            o.transpose(1, 2)
            if behaves.layout == "bhtd"
            else o[0]
            if behaves.layout == "thd"
            else o
        )
        return o.to(q.dtype), _kv(final, behaves).to(g.dtype)

    declare = kernel(
        name="standin",
        layout=declared.layout,
        state=declared.state,
        gate=declared.gate,
        beta=declared.beta,
        packing=declared.packing,
        dtypes=(dtype,),
    )
    return declare(call)


def _bthd(x: Tensor, behaves: Conventions) -> Tensor:
    return (
        x.transpose(1, 2) if behaves.layout == "bhtd" else x[None] if behaves.layout == "thd" else x
    )


def _kv(state: Tensor, behaves: Conventions) -> Tensor:
    return state.transpose(-1, -2) if behaves.state == "vk" else state


def _log(g: Tensor, behaves: Conventions, A_log: Tensor | None, dt_bias: Tensor | None) -> Tensor:
    a = 1.0 if A_log is None else A_log.double().exp()[:, None]
    z = g if dt_bias is None else g + dt_bias.double()
    return {
        "log": lambda: g,
        "log2": lambda: g * math.log(2),
        "decay": g.log,
        "softplus": lambda: -a * torch.logaddexp(z, torch.zeros_like(z)),
        "bounded": lambda: -5 / (1 + torch.exp(-a * z)),
    }[behaves.gate]()


def _value(beta: Tensor, behaves: Conventions) -> Tensor:
    return beta.sigmoid() if behaves.beta == "logit" else beta


def _offsets(ids: Tensor | None) -> Tensor | None:
    """Offsets of the runs of equal ids; what follows the last id of a sequence is padding."""
    if ids is None:
        return None
    runs = torch.unique_consecutive(ids[0][ids[0] >= 0], return_counts=True)[1]
    return torch.cat((torch.zeros(1, dtype=torch.int64), runs.cumsum(0)))


def distance(adapter: Adapter, problem: Problem) -> dict[str, float]:
    """Relative error of each exposed output against the float64 recurrence
    of what the adapter says it received.
    """
    inputs = problem.inputs()
    output = adapter.forward(inputs)
    exact: dict[str, Tensor] = dict(
        zip(("o", "final_state"), recurrence(adapter.received(inputs)), strict=True)
    )
    return {
        name: _relative(getattr(output, name), exact[name]) for name in adapter.exposes(problem)
    }


def _relative(x: Tensor, exact: Tensor) -> float:
    assert x.shape == exact.shape
    return float((x.double() - exact).norm() / exact.norm().clamp(min=1e-30))
