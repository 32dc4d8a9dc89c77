"""Random segments of attention: dense keys, lists of slots, and lists of slots of an FP8 cache."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kdaverify.budgets.attention.calls import as_read
from kdaverify.budgets.attention.contract import attention_contract
from kdaverify.budgets.formats import FORMATS
from kdaverify.operators.attention.lists import PATTERNS, listed
from oracles.attention.fp8 import as_bytes, quantised
from oracles.attention.pipeline import AttentionPipeline
from oracles.attention.segment import Segment
from oracles.attention.sparse import SparseCall

KINDS = ("dense", "dense", "lists", "fp8")
WIDTHS = {
    "dense": ((64, 64), (192, 128), (128, 128), (576, 512), (40, 24)),
    "lists": ((80, 64), (192, 128), (576, 512), (40, 24)),
    "fp8": ((192, 128), (264, 256), (576, 512)),
}
SUNK = 0.4
"""Share of segments with a sink."""
Logits = Callable[[Tensor, Tensor], Tensor]


def _iid(std: float) -> Logits:
    return lambda q, _: std * q


def _winner(at: float) -> Logits:
    """Every query along one key: its logit is far above the others."""
    return lambda q, k: 0.3 * q + 6 * k[:1, [int(at * (k.shape[1] - 1))]] / k.shape[-1] ** 0.5


LOGITS: dict[str, Logits] = {
    "zero": _iid(0.0),
    **{f"std {std:g}": _iid(std) for std in (0.05, 1.0, 3.0, 8.0, 100.0)},
    "first key wins": _winner(0.0),
    "last key wins": _winner(1.0),
    "shifted by 100": lambda q, _: q + 0.0 * q,
    "rising": lambda q, _: q + 0.0 * q,
    "shifted by -64000": lambda q, _: q + 0.0 * q,
    "plateau": lambda q, _: 0.05 * q,
}
LOWEST = -64000.0
DEPTH = 16.5
PEAKED = 0.65
"""Of the depth of a plateau, in the first head."""


@dataclass(frozen=True)
class Drawn:
    """A random segment and what is tested on it.

    Args:
        segment: with the numbers that the inputs stand for.
        reads: the same as conforming kernels read it, the reference kernels' first.
        call: that of lists of rows, whose queries share gradients.
        keys: of the contract, about how it is read.
    """

    segment: Segment
    reads: tuple[Segment, ...]
    kind: str
    logits: str
    dtype: str
    keys: tuple[str, ...] = ()
    call: SparseCall | None = None

    @property
    def label(self) -> str:
        """What runs are counted by."""
        return self.kind if self.segment.sink is None else f"{self.kind}, sink"


def drawn(rng: random.Random, again: int = 0) -> Drawn:
    """The segment of a generator's state; `again`: others of the same shape and kind."""
    kind, dtype, logits = rng.choice(KINDS), rng.choice(("bf16", "fp16", "fp32")), rng.choice(NAMES)
    h_kv, group = rng.choice((1, 1, 2, 3)), rng.choice((1, 2, 5, 8))
    s_q, s_k = rng.choice((1, 1, 2, 4, 33)), rng.choice((1, 2, 17, 63, 64, 65, 129, 300, 700))
    # a list has rows of its own: many would be as many times the keys
    s_q = s_q if kind == "dense" else min(s_q, 4)
    d_k, d_v = rng.choice(WIDTHS[kind])
    made = torch.Generator().manual_seed(rng.randrange(2**31) + again)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made, dtype=torch.float64)

    q, k, v = normal(h_kv * group, s_q, d_k), normal(h_kv, s_k, d_k), normal(h_kv, s_k, d_v)
    q = LOGITS[logits](q, k)
    if logits in ("shifted by 100", "rising"):
        step = torch.arange(s_k, dtype=torch.float64) * rng.choice((0.69, 0.7, 5.5, 6.0))
        k[..., -1] = 100.0 if logits.startswith("shifted") else step
        q[..., -1] = d_k**0.5
    if logits in ("shifted by -64000", "plateau"):
        low = LOWEST if logits.startswith("shifted") else -DEPTH
        factor = (-low) ** 0.5 * d_k**0.25
        k[..., -1] = low / factor * d_k**0.5
        q[..., -1] = factor
    if logits == "plateau":
        k[:, [0, s_k // 2, s_k - 1], -1] = 0.0
        q[..., -1] *= torch.linspace(PEAKED, 1, len(q), dtype=torch.float64)[:, None]
    if rng.random() < 0.3:
        v = v + 3.0
    cast = FORMATS[dtype].dtype
    if kind != "dense":
        return _over_lists(rng, made, (q.to(cast), k, d_v), kind, (logits, dtype))
    visible = torch.arange(s_k) <= torch.arange(s_q)[:, None] + s_k - s_q
    visible |= rng.random() < 0.5
    found = Segment(q.to(cast), k.to(cast), v.to(cast), d_k**-0.5, visible)
    if rng.random() < SUNK:
        found = replace(found, sink=_sink(rng, found), lse_includes_sink=rng.random() < 0.5)
    return Drawn(found, (found,), kind, logits, dtype)


NAMES = [*LOGITS]
ABOVE = (-30.0, -3.0, 0.0, 0.0, 8.0, 80.0, -math.inf)
"""Sinks relative to the largest LSE of a head."""


def _sink(rng: random.Random, segment: Segment) -> Tensor:
    """[H], each with another share of the weight."""
    _, lse = AttentionPipeline()(segment, torch.float64)
    level = lse.masked_fill(torch.isinf(lse), -1e4).flatten(1).amax(1).clamp(min=-1e3)
    return (level + torch.tensor([rng.choice(ABOVE) for _ in level])).bfloat16().float()


def _over_lists(
    rng: random.Random,
    made: torch.Generator,
    tensors: tuple[Tensor, Tensor, int],
    kind: str,
    named: tuple[str, str],
) -> Drawn:
    """Every query over a list of its own of as many entries as there are slots."""
    (q, k, d_v), (logits, dtype) = tensors, named
    pattern, slots = rng.choice([x for x in PATTERNS if x != "none"]), k.shape[1]
    lists = [
        listed(
            pattern,
            torch.randperm(slots, generator=made),
            torch.rand(slots, generator=made),
            slots,
            n,
        )
        for n in range(q.shape[1])
    ]
    rows = k.transpose(0, 1)
    stored = rows.to(q.dtype)
    if kind == "fp8":
        stored = as_bytes(quantised(rows, d_v, powers=rng.random() < 0.5))
    call = SparseCall(
        q.transpose(0, 1)[None],
        stored[:, None],
        torch.stack(lists)[None].int(),
        None,
        d_v,
        k.shape[-1] ** -0.5,
    )
    if rng.random() < SUNK:
        (alone,) = call.stacked()
        level = _sink(rng, alone).view(-1, q.shape[0]).amax(0)
        call = replace(call, sink=level, lse_includes_sink=rng.random() < 0.5)
    (segment,) = call.stacked()
    keys = ("K_scale:bf16",) if kind == "fp8" and rng.random() < 0.5 else ()
    contract = attention_contract(named_contract("online", dtype, keys))
    twice = call.as_read(
        lambda x: contract.operands.round(x.float().double()), contract.storage("K_scale").round
    )
    reads = tuple(one.stacked()[0] for one in (as_read(call, contract), twice))
    return Drawn(segment, reads, kind, logits, dtype, keys, call if kind == "lists" else None)


def named_contract(form: str, dtype: str, keys: Sequence[str]) -> str:
    return f"{form}64-{dtype}" + (f"[{';'.join(keys)}]" if keys else "")
