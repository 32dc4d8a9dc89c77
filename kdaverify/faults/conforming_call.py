"""What a conforming kernel computes, from tensors of any conventions: token loop and chunk form."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from oracles.gate_activation import FORMS as ACTIVATED
from oracles.gate_activation import LOWER_BOUND, PARAMETERS
from oracles.row_norm import EPSILON, GIVEN

Activate = Callable[[Tensor, Tensor, Tensor, str], Tensor]
LN_2: Final = 0.6931471805599453
CHUNK: Final = 64


@dataclass(frozen=True, kw_only=True)
class ConformingCall:
    """A call of a conforming kernel: its tokens, as they are laid out, and its options, by name."""

    arithmetic: Callable[[Span, Tensor], tuple[Tensor, Tensor]]
    layout: str
    state: str
    gate: str
    beta: str
    scale: str
    padding: str
    gates: str
    heads: str
    takes: Callable[..., bool] | None
    activate: Activate
    qk: str
    normalise: Callable[[Tensor], Tensor]

    def __call__(self, tokens: tuple[Tensor, ...], options: dict[str, Any]) -> tuple[Tensor, ...]:
        rows = self._rows(tokens, options)
        spans = list(_spans(rows[0], options))
        start = self._start(rows, options["initial_state"], len(spans))
        found = [
            self.arithmetic(self._span(rows, span, options), start[n])
            for n, span in enumerate(spans)
        ]
        v = rows[2]
        zero = torch.zeros(v.shape, dtype=_wide(v))
        o = _placed([part for part, _ in found], spans, zero, self.padding).to(v.dtype)
        states = torch.stack([after for _, after in found])
        return self._laid_out(o), (states.mT if self.state == "vk" else states)

    def _rows(self, tokens: tuple[Tensor, ...], options: dict[str, Any]) -> list[Tensor]:
        """q, k, v, g and beta, token-major: gates of channels, rows of q and k as they multiply."""
        q, k, v, *gate_and_write = (
            _of_sequences(_token_major(x, self.layout), options["cu_seqlens"]) for x in tokens
        )
        b, g = gate_and_write[-1], _to_channels(gate_and_write[:-1], self.gates, q, v)
        if self.takes is not None and not self.takes(q, k, v, g, b, options):
            raise ValueError("a call outside the declared domain")
        wide = _wide(q)
        write = b.to(wide).sigmoid() if self.beta == "logit" else b.to(wide)
        return [self._unit(q), self._unit(k), v, self._log_gates(g, options, wide), write]

    def _unit(self, x: Tensor) -> Tensor:
        """Rows of q or k of unit length, where the kernel normalises them."""
        if self.qk == GIVEN:
            return x
        rows = self.normalise(x.to(_wide(x)))
        return rows.to(x.dtype) if self.qk == "l2norm-stored" else rows

    def _log_gates(self, g: Tensor, options: dict[str, Any], wide: torch.dtype) -> Tensor:
        """The gates as they are declared, or those that the kernel's activation makes."""
        if self.gate not in ACTIVATED:
            return g
        A_log, bias = (options[name].to(wide) for name in PARAMETERS)
        bias = bias[:, None] if self.gates == "head" else bias
        return self.activate(g.to(wide), A_log, bias, self.gate)

    def _start(self, rows: list[Tensor], given: Tensor | None, number: int) -> Tensor:
        """[N, HV, K, V] The state before every sequence."""
        q, v = rows[0], rows[2]
        if given is None:
            return torch.zeros(number, v.shape[2], q.shape[3], v.shape[3], dtype=_wide(v))
        return (given.mT if self.state == "vk" else given).to(_wide(v))

    def _span(
        self, rows: list[Tensor], span: tuple[int, int, int], options: dict[str, Any]
    ) -> Span:
        row, first, end = span
        q, k, v, g, beta = (x[row, first:end].to(_wide(rows[2])) for x in rows)
        q, k = (_for_value_heads(x, v.shape[1] // x.shape[1], self.heads) for x in (q, k))
        scale = {"argument": options["scale"], "fixed": q.shape[-1] ** -0.5, "folded": 1.0}
        gate = "log" if self.gate in ACTIVATED else self.gate
        return Span(q, k, v, g, beta, gate=gate, scale=scale[self.scale])

    def _laid_out(self, o: Tensor) -> Tensor:
        if self.layout == "thd":
            return o.flatten(0, 1)
        return o.transpose(1, 2) if self.layout == "bhtd" else o


def activated(x: Tensor, A_log: Tensor, dt_bias: Tensor, gate: str) -> Tensor:
    """math.md 6: log gates of x [..., HV, K] by a kernel's own activation."""
    z, a = x + dt_bias, A_log.exp()[:, None]
    if gate == "bounded":
        return LOWER_BOUND * torch.sigmoid(a * z)
    # Not by torch's softplus, which takes z for log(1 + exp z) from 20 on in fp64, too; nor by
    # max(z, 0) + log(1 + exp -|z|), whose slope autograd takes for 1 at z = 0, where it is 1 / 2.
    return -a * torch.logaddexp(z, torch.zeros_like(z))


def normalised(x: Tensor) -> Tensor:
    """math.md 6: rows of unit length."""
    return x * (x.square().sum(-1, keepdim=True) + EPSILON).rsqrt()


def _token_major(x: Tensor, layout: str) -> Tensor:
    if layout == "thd":
        return x[None]
    return x.transpose(1, 2) if layout == "bhtd" else x


def _of_sequences(x: Tensor, offsets: Tensor | None) -> Tensor:
    """Rows past the last offset are 0: the gradient of whatever is made of NaN there is NaN."""
    if offsets is None or int(offsets[-1]) == x.shape[1]:
        return x
    behind = torch.arange(x.shape[1], device=x.device) >= offsets[-1]
    return x.masked_fill(behind.view(-1, *[1] * (x.ndim - 2)), 0.0)


def _spans(q: Tensor, options: dict[str, Any]) -> Iterator[tuple[int, int, int]]:
    """(row, first token, end) of every sequence."""
    offsets, ids = options["cu_seqlens"], options["segment_ids"]
    if offsets is not None:
        for first, end in itertools.pairwise(offsets.tolist()):
            yield 0, first, end
    elif ids is not None:
        changes = [0, *((ids[0, 1:] != ids[0, :-1]).nonzero().flatten() + 1).tolist(), ids.shape[1]]
        for first, end in itertools.pairwise(changes):
            yield 0, first, end
    else:
        for row in range(q.shape[0]):
            yield row, 0, q.shape[1]


def _placed(
    rows: list[Tensor], spans: list[tuple[int, int, int]], o: Tensor, padding: str
) -> Tensor:
    """All rows of o; those of no sequence are zero, or NaN where they are undefined."""
    out = list[Tensor]()
    for row in range(o.shape[0]):
        parts = [part for part, span in zip(rows, spans, strict=True) if span[0] == row]
        used = sum(len(part) for part in parts)
        rest = torch.full_like(o[row, used:], torch.nan if padding == "undefined" else 0.0)
        out.append(torch.cat([*parts, rest]))
    return torch.stack(out) if out else o


def _to_channels(given: list[Tensor], gates: str, q: Tensor, v: Tensor) -> Tensor:
    """[B, T, HV, K] of whatever gates there are; none is a log gate of 0."""
    shape = (*v.shape[:3], q.shape[3])
    if gates == "channel":
        return given[0]
    return given[0][..., None].expand(shape) if gates == "head" else v.new_zeros(shape)


def _for_value_heads(x: Tensor, groups: int, heads: str) -> Tensor:
    """Keys or queries [T, H, K], each head repeated for the value heads that read it."""
    return x.repeat(1, groups, 1) if heads == "tiled" else x.repeat_interleave(groups, 1)


def _wide(x: Tensor) -> torch.dtype:
    """In which the kernel computes."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


@dataclass(frozen=True)
class Span:
    """One sequence, or a chunk of one: [T, HV, ...], gates as they are declared, beta a value."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    gate: str
    scale: float

    def __len__(self) -> int:
        return len(self.q)

    def head_major(self, first: int, end: int) -> list[Tensor]:
        """q, k, v, g [HV, c, ...] and beta [HV, c] of some tokens."""
        return [x[first:end].transpose(0, 1) for x in (self.q, self.k, self.v, self.g, self.beta)]


def token_loop(x: Span, state: Tensor) -> tuple[Tensor, Tensor]:
    """math.md 2."""
    decay = x.g if x.gate == "decay" else torch.exp2(x.g) if x.gate == "log2" else torch.exp(x.g)
    out = list[Tensor]()
    for t in range(len(x)):
        state = state * decay[t][..., None]
        u = x.beta[t][..., None] * (x.v[t] - torch.einsum("hk,hkv->hv", x.k[t], state))
        state = state + x.k[t][..., None] * u[..., None, :]
        out.append(x.scale * torch.einsum("hk,hkv->hv", x.q[t], state))
    return (torch.stack(out) if out else torch.zeros_like(x.v)), state.clone()


def chunk_form(x: Span, state: Tensor) -> tuple[Tensor, Tensor]:
    """math.md 3, chunk by chunk."""
    out = list[Tensor]()
    for first in range(0, len(x), CHUNK):
        q, k, v, g, beta = x.head_major(first, first + CHUNK)
        decays = _decays(g, x.gate)
        A = beta[..., None] * torch.einsum("hik,hjk,hijk->hij", k, k, decays.between).tril(-1)
        P = x.scale * torch.einsum("hik,hjk,hijk->hij", q, k, decays.between).tril()
        right = beta[..., None] * (v - (k * decays.from_start) @ state)
        u = torch.linalg.solve_triangular(
            A + torch.eye(A.shape[-1], dtype=A.dtype), right, upper=False, unitriangular=True
        )
        out.append((x.scale * (q * decays.from_start) @ state + P @ u).transpose(0, 1))
        state = decays.from_start[:, -1, :, None] * state + (k * decays.to_end).mT @ u
    return (torch.cat(out) if out else torch.zeros_like(x.v)), state.clone()


@dataclass(frozen=True)
class _Decays:
    """exp(G_i - G_j) [HV, c, c, K], exp(G_i) and exp(G_c - G_i) [HV, c, K]."""

    between: Tensor
    from_start: Tensor
    to_end: Tensor


def _decays(g: Tensor, gate: str) -> _Decays:
    """Exponentials of differences of log decays; a hard reset is counted, never subtracted."""
    reset = g == 0 if gate == "decay" else g.isneginf()
    safe = torch.where(reset, torch.ones_like(g) if gate == "decay" else torch.zeros_like(g), g)
    total = (safe.log() if gate == "decay" else safe * LN_2 if gate == "log2" else safe).cumsum(1)
    resets = reset.long().cumsum(1)
    causal = torch.ones(g.shape[1], g.shape[1], dtype=torch.bool).tril()[..., None]
    unbroken = (resets[:, :, None] == resets[:, None]) & causal
    return _Decays(
        torch.where(unbroken, total[:, :, None] - total[:, None], -torch.inf).exp(),
        torch.where(resets == 0, total, -torch.inf).exp(),
        torch.where(resets == resets[:, -1:], total[:, -1:] - total, -torch.inf).exp(),
    )
