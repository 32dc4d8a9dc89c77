"""Faults of delta rules with one gate a head, each in one of the right ports."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.operators.gdn.kernels import CHUNK, Chunked, Outputs, Token, fp32


class ZeroDifferenceDropped(Chunked):
    """D1: pairs whose decay difference is exactly 0 vanish, but for a token and itself."""

    def between(self, G: Tensor, resets: Tensor) -> Tensor:
        found = super().between(G, resets)
        same = (G[..., :, None] == G[..., None, :]) & ~torch.eye(G.shape[-1], dtype=torch.bool)
        return found.masked_fill(same, 0.0)


class LastGateOfAnotherRow(Chunked):
    """D3: the decay of the chunk's end read up to 6 rows too early, by column of the state."""

    def carried(self, state: Tensor, from_start: Tensor) -> Tensor:
        rows = (from_start.shape[-1] - 1 - 2 * (3 - torch.arange(state.shape[-1]) % 4)).clamp(min=0)
        return state * from_start[:, rows][:, None]


class FactoredDecay(Chunked):
    """D5: exp(G_i) exp(-G_j), which overflows past 88 nats."""

    def between(self, G: Tensor, resets: Tensor) -> Tensor:
        factored = G.exp()[..., :, None] * (-G).exp()[..., None, :]
        return torch.where(resets[..., :, None] == resets[..., None, :], factored, 0.0).tril()


class GatesOfTheChunkBefore(Chunked):
    """D9: a chunk decays what it writes by the gates of the chunk before."""

    def sequence(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        state: Tensor,
    ) -> Outputs:
        whole = g.shape[1] // CHUNK * CHUNK
        late = (
            torch.cat((g[:, :CHUNK], g[:, : whole - CHUNK], g[:, whole:]), 1)
            if whole > CHUNK
            else g
        )
        return super().sequence(q, k, v, late, beta, scale=scale, state=state)


class GatesAhead(Token):
    """D11: gates and write strengths one token away from their keys and values."""

    def sequence(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        state: Tensor,
    ) -> Outputs:
        return super().sequence(q, k, v, g.roll(1, 1), beta.roll(1, 1), scale=scale, state=state)


class NoGradientOfTheStatesDecay(Chunked):
    """D17: dg lacks <h, dh> at the chunk's last row."""

    def carried(self, state: Tensor, from_start: Tensor) -> Tensor:
        return super().carried(state, from_start.detach())


class StateGradientNotDecayed(Chunked):
    """D20: the gradient of the state is carried over a chunk as if nothing decayed."""

    def carried(self, state: Tensor, from_start: Tensor) -> Tensor:
        return super().carried(state.detach(), from_start) + (state - state.detach())


class NoGradientThroughTheInverse(Chunked):
    """D22: R is a constant to the backward."""

    def inverse(self, A: Tensor) -> Tensor:
        return super().inverse(A).detach()


class GroupSumMissing(Token):
    """D30: dq and dk of a group are those of its first value head."""

    def grouped(self, x: Tensor, groups: int) -> Tensor:
        first = torch.arange(x.shape[2] * groups) % groups == 0
        found = super().grouped(x, groups)
        return torch.where(first[:, None], found, found.detach())


class DecayAlongValues(Chunked):
    """D32: what a chunk writes is decayed along the values instead of the tokens."""

    def to_end(self, new: Tensor, G: Tensor, resets: Tensor) -> Tensor:
        columns = torch.arange(new.shape[-1]) % G.shape[-1]
        weight = torch.where(resets == resets[..., -1:], G[..., -1:] - G, -torch.inf).exp()
        return new * weight[..., columns][..., None, :]


class DecayInBf16(Token):
    """D34: exp g returned in bf16; above 0.998 it is 1."""

    def decay(self, g: Tensor, state: Tensor) -> Tensor:
        return super().decay(g, state).bfloat16().float()


class NoScale(Token):
    """D36: the scale is missing."""

    def sequence(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        state: Tensor,
    ) -> Outputs:
        return super().sequence(q, k, v, g, beta, scale=1.0, state=state)


class GateOfTheFirstHead(Token):
    """D38: one gate for all heads."""

    def gate(self, g: Tensor) -> Tensor:
        return g[..., :1].expand_as(g)


class TiledUndeclared(Token):
    """Value head j reads key head j mod H, and declares nothing."""

    def grouped(self, x: Tensor, groups: int) -> Tensor:
        return x.repeat(1, 1, groups, 1)


class DecayAfterTheWrite(Token):
    """The gate acts on what its own token has written too."""

    def step(self, state: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        return super().step(state, k, v, torch.zeros_like(g), beta) * self.decay(g, state)


class LastDecayMissing(Chunked):
    """The state is carried over a chunk without the gate of its last token."""

    def carried(self, state: Tensor, from_start: Tensor) -> Tensor:
        before = (
            from_start[:, -2] if from_start.shape[-1] > 1 else torch.ones_like(from_start[:, 0])
        )
        return state * before[:, None, None]


class GateGradientOfOneChannel(Token):
    """dg is that of the first key channel, where it is the sum over all."""

    def decay(self, g: Tensor, state: Tensor) -> Tensor:
        found = super().decay(g, state)
        first = (torch.arange(found.shape[1]) == 0)[:, None]
        return torch.where(first, found, found.detach())


class KeyPartOfDbetaMissing(Chunked):
    """D16: without a gate, dbeta lacks what passes through w."""

    def chunk(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        state: Tensor,
    ) -> Outputs:
        A = (beta[..., None] * (k @ k.mT)).tril(-1)
        R = self.inverse(A)
        w, u = R @ (beta.detach()[..., None] * k), R @ (beta[..., None] * v)
        new = u - w @ state
        return scale * (q @ state + (q @ k.mT).tril() @ new), state + k.mT @ new


zero_difference_dropped = fp32(ZeroDifferenceDropped)
last_gate_of_another_row = fp32(LastGateOfAnotherRow)
factored_decay = fp32(FactoredDecay)
gates_of_the_chunk_before = fp32(GatesOfTheChunkBefore)
gates_ahead = fp32(GatesAhead)
no_gradient_of_the_states_decay = fp32(NoGradientOfTheStatesDecay)
state_gradient_not_decayed = fp32(StateGradientNotDecayed)
no_gradient_through_the_inverse = fp32(NoGradientThroughTheInverse)
group_sum_missing = fp32(GroupSumMissing)
decay_along_values = fp32(DecayAlongValues)
decay_in_bf16 = fp32(DecayInBf16)
no_scale = fp32(NoScale)
gate_of_the_first_head = fp32(GateOfTheFirstHead)
tiled_undeclared = fp32(TiledUndeclared)
decay_after_the_write = fp32(DecayAfterTheWrite)
last_decay_missing = fp32(LastDecayMissing)
gate_gradient_of_one_channel = fp32(GateGradientOfOneChannel)
key_part_of_dbeta_missing = fp32(KeyPartOfDbetaMissing, gates="none")
