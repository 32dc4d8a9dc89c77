"""Error bound of conforming kernels of the chunk form, followed stage by stage.

Every exact tensor x comes with a bound d_x of |computed - exact|, elementwise, and `x_most` = |x| +
d_x. Products obey
    |computed - xy| <= d_x y_most + |x| d_y + c x_most y_most,
c the cost of the sum's own roundings. What earlier chunks left is carried by the chunk's own
transition M = Diag(exp G_c) - kg^T w, whose entries have cancelled already, and by norms: |kg|^T
|w| alone would grow without end.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.ceiling_maps import applied, reached, reached_after
from kdaverify.budgets.ceiling_roundings import EXPONENTIAL, PRODUCTS, Roundings, norm
from kdaverify.budgets.score_blocks import LARGEST_EXPONENT
from oracles.arithmetic import NATIVE
from oracles.chunk import STAGES, Chunk, decayed_products
from oracles.inputs import Inputs
from oracles.scan import scan
from oracles.tokens import Tensors, Tokens

# Widths of the diagonal blocks that a solve may start from: rows, and what real kernels invert at
# once.
SOLVED_AT_ONCE: Final = (1, 16, 32)
# exp of the error of an exponent past this says no more.
LARGEST_ERROR: Final = 50.0


def chunk_ceiling(
    inputs: Inputs, roundings: Roundings, chunk_size: int, carried: Tensors
) -> tuple[Tensors, Tensor]:
    """Bounds of every element, for kernels of one chunk size.

    Args:
        inputs: the call.
        carried: S_0, exact; bounds of the kernel's error in it, of every element [N, HV, K, V] and
            of the 2-norm of every column [N, HV, V].
    Returns:
        The same of S_T, and the bound of o [B, T, HV, V].
    """
    joins = roundings.contract.transition == "formed"
    first = iter((True,))

    def body(carry: Tensors, tokens: Tokens) -> tuple[Tensors, Tensors]:
        c = Chunk(tokens, inputs.factor, NATIVE)
        (c.S, *_) = carry
        STAGES.run(c)
        errors = ChunkErrors(c, carry[:3], roundings)
        errors.run()
        parts = reached_after(errors, carry[3:]) if joins else ()
        if parts and not next(first, False):
            errors.widen(parts[1] - parts[0])
        return (c.S, errors.d_S, errors.columns, *parts), (errors.d_o,)

    parts = reached(carried[0], carried[2]) if joins else ()
    final, (o,) = scan(inputs, chunk_size, (*carried, *parts), body, dtype=torch.float64)
    return final[:3], o


class ChunkErrors:
    """Bounds of the error of a conforming kernel in one chunk.

    Args:
        c: the chunk, exact, every stage run.
        carry: the state before it, and its bounds; those after it when the stages have run.
    """

    def __init__(self, c: Chunk, carry: Tensors, roundings: Roundings) -> None:
        self.c, self.r = c, roundings
        self.S, self.d_S, self.columns = carry
        self.S_most = self.S.abs() + self.d_S
        self.C, self.K = c.tokens.k.shape[-2:]
        self.q, self.k = c.tokens.q.abs(), c.tokens.k.abs()
        self.beta = c.tokens.beta[..., None]
        self.decay, self.last = c.decay(slice(None)), c.decay(slice(-1, None)).mT
        read = torch.maximum(_largest(self.q), _largest(self.k)).clamp(min=1.0)
        self.lost = (
            (self.C + self.K)
            * roundings.lost
            * read
            * (read + _largest(self.S_most) + _largest(c.tokens.v) + _largest(c.v_new))
        )

    def run(self) -> None:
        """Every stage, in order."""
        for stage in (
            self.gates,
            self.scores,
            self.solve,
            self.wy,
            self.v_new,
            self.output,
            self.state,
        ):
            stage()

    def widen(self, columns: Tensor) -> None:
        """The state after the chunk may be off by as much as these 2-norms of its columns."""
        self.columns = torch.maximum(self.columns, columns)
        self.d_S = torch.maximum(self.d_S, columns[..., None, :])

    def gates(self) -> None:
        """Relative errors of exp(G_i), D_ij: sums of up to i + 1 gates, |G_i| at most."""
        r = self.r
        row = torch.arange(1, self.C + 1, dtype=torch.float64, device=self.S.device)[:, None]
        size = self.c.G.abs()
        units = (2 * row + 8) * size + EXPONENTIAL + r.made_gates(size, row)
        self.d_decay = torch.expm1((r.counts("gates") * r.unit * units).clamp(max=LARGEST_ERROR))

    def scores(self) -> None:
        """Math: 3.2."""
        c, r = self.c, self.r
        factored = r.counts("scores") * 2 * r.factors + (
            r.relative("scores", "q_in", "k_out") if r.factors else 0.0
        )
        weight = self._with(
            r.sums("scores", self.K, scores=True)
            + factored
            + r.counts("scores") * (r.queries + r.anchors)
        )
        rows = torch.stack((abs(c.scale) * self.q, self.beta * self.k), dim=-1)
        missed = (
            decayed_products(c, rows * weight[..., None], self.k)
            + r.counts("scores") * self.lost[..., None]
        )
        qk, kk = (missed + self._underflow_of_factors(rows)).unbind(-1)
        self.d_Aqk = (qk + r.stored("scores", "Aqk", c.Aqk.abs() + qk)).tril()
        kk = kk + r.written * c.Akk.abs()
        self.d_Akk = (kk + r.stored("scores", "Akk", c.Akk.abs() + kk)).tril(-1)
        self.Aqk_most = c.Aqk.abs() + self.d_Aqk

    def solve(self) -> None:
        """Math: 3.3. With A' what the scores came to, R' = (I + A')^-1.

        |R'| <= W = (I - |R| dAkk)^-1 |R| and |R' - R| <= W dAkk |R|. `d_R`: what the way of the
        solve and storage add to R'. With diagonal blocks D of any width, and L = Akk - D, R = (I +
        R_D L)^-1 R_D: an error e of R_D (L R) ends as R (I + D) e.
        """
        c, r = self.c, self.r
        R, A = c.R.abs(), c.Akk.abs() + self.d_Akk
        W = torch.linalg.solve_triangular(-(R @ self.d_Akk), R, upper=False, unitriangular=True)
        moved = W @ (self.d_Akk @ R)
        cost = 2 * r.sums("solve", self.C, scores=True)
        position, ways = torch.arange(self.C, device=R.device), list[Tensor]()
        for width in {*SOLVED_AT_ONCE, r.contract.sub_block}:
            apart = position[:, None] // width != position // width
            reaches = (c.R + c.R @ c.Akk.masked_fill(apart, 0.0)).abs() + moved
            ways.append(
                reaches @ (cost * (W.masked_fill(apart, 0.0) @ (A.masked_fill(~apart, 0.0) @ W)))
            )
        missed = (
            W @ (r.sums("solve", self.C) * (A @ W))
            + torch.stack(ways).amax(0)
            + r.counts("solve") * self.lost
        )
        if r.contract.inverse == "series":
            missed = missed + self._of_series(A, W)
        self.d_R = (missed + r.stored("solve", "R", W + missed)).tril(-1)
        self.R, self.R_most = W, W + self.d_R

    def _of_series(self, A: Tensor, W: Tensor) -> Tensor:
        """What diagonal blocks D of s rows, inverted as a series, add to R.

        The series has log2 s factors. With |A| in place of A it sums to M = (I - |D|)^-1, and each
        of its terms is rounded fewer than s times in sums of s terms: E = s cost M is what R_D is
        off by. Then (I + D') = R_D'^-1 differs from I + D by F = (I - (I + |D|) E)^-1 (I + |D|) E
        (I + |D|), and R by W F W, (I - W F)^-1 times; E, F are strictly lower triangular.
        """
        r, one = self.r, torch.eye(self.C, dtype=A.dtype, device=A.device)
        rows = torch.arange(self.C, device=A.device) // r.contract.sub_block
        D = A.masked_fill(rows[:, None] != rows, 0.0)
        E = r.contract.sub_block * r.sums("solve", self.C) * _solved(D, one).tril(-1)
        left = (one + D) @ E
        F = _solved(left, left @ (one + D)).tril(-1)
        return _solved(W @ F, W @ F @ W)

    def wy(self) -> None:
        """Math: 3.4 but w and u, which not every form has."""
        c, r = self.c, self.r
        kb, vb = self.beta * self.k * self.decay, self.beta * c.tokens.v.abs()
        of_factors, few = (r.counts("wy") * x for x in (r.factors, PRODUCTS * r.unit))
        self.d_kb = kb * self._with(
            2 * r.relative("wy", "kb") + r.relative("wy", "beta_k_wy") + of_factors + few
        )
        self.d_kb = self.d_kb + r.written * kb + r.stored("wy", "kb", torch.zeros_like(kb))
        self.d_vb = r.stored("wy", "vb", vb) + (few + r.written) * vb
        self.kb, self.kb_most, self.vb_most = kb, kb + self.d_kb, vb + self.d_vb
        stored = 2 if r.factors else 1  # factors meet keys and queries that are stored already
        of_factors, few = (
            r.counts("output") * x for x in (r.factors + r.queries, PRODUCTS * r.unit)
        )
        # it may be stored with the scale in it
        least = r.stored("output", "qg", torch.zeros_like(c.qg)) / min(1.0, abs(c.scale) or 1.0)
        self.d_qg = (
            c.qg.abs() * self._with(stored * r.relative("output", "qg") + of_factors + few) + least
        )
        self.qg_most = c.qg.abs() + self.d_qg
        of_factors, few = (r.counts("state") * x for x in (3 * r.factors, PRODUCTS * r.unit))
        # where channels share a gate, v_new is decayed in the place of k
        of_v, formed = r.contract.decay == "scalar", r.contract.transition == "formed"
        decayed = (*(["v_decayed"] if of_v else []), *([] if of_v and not formed else ["kg"]))
        cost = self._with(stored * r.relative("state", *decayed) + of_factors + few)[..., -1:, :]
        self.d_kg = c.kg.abs() * cost
        if "kg" in decayed:
            least = r.stored("state", "kg", torch.zeros_like(c.kg))
            self.d_kg = self.d_kg + least * (1 + self._outward())
        self.kg_most = c.kg.abs() + self.d_kg

    def v_new(self) -> None:
        """Math: 3.5, v_new = R (beta v - beta k exp(G) h): the two terms share R and its error, and
        what they leave may be small.

        What the scores make of it is (R' - R) x = -R' (A' - Akk) R x, and R x is v_new.
        `own_v`: all of it but what the carried error makes. Either w and u are stored, or what they
        leave before R is applied.
        """
        c, r = self.c, self.r
        self.d_h = r.stored("state", "h", self.S_most)
        self.h_most = self.S_most + self.d_h
        left = (self.beta * (c.tokens.v - (c.tokens.k * self.decay) @ self.S)).abs()
        inner = self.d_kb @ self.h_most + self.d_vb
        unsolved = left + self.kb @ (self.d_S + self.d_h) + inner
        read = c.w.abs() @ self.d_h
        shared = (
            self.R @ (inner + self.d_Akk @ (c.v_new.abs() + self._carried(c.w) + read))
            + read
            + self.d_R @ unsolved
        )
        missed = (
            shared
            + torch.maximum(self._stored_w_and_u(), self._stored_residual(unsolved))
            + r.counts("state") * self.lost
        )
        size = c.v_new.abs() + missed + self._carried(c.w)
        rounding = r.stored("state", "v_new", size)
        self.own_v, self.v_most = missed + rounding, size + rounding

    def output(self) -> None:
        """Math: 3.6; the carried error comes through qg and through v_new at once."""
        c, r, scale = self.c, self.r, abs(self.c.scale)
        inter, intra = scale * (self.qg_most @ self.h_most), self.Aqk_most @ self.v_most
        missed = (
            self._carried(c.scale * c.qg - c.Aqk @ c.w)
            + c.Aqk.abs() @ self.own_v
            + self.d_Aqk @ self.v_most
        )
        missed = missed + scale * (self.d_qg @ self.h_most + c.qg.abs() @ self.d_h)
        parts = r.relative("output", "o_part") if r.factors else 0.0
        missed = (
            missed
            + (r.sums("output", self.K) + parts) * inter
            + (r.sums("output", self.C) + parts) * intra
        )
        missed = missed + r.counts("output") * self.lost
        self.d_o = missed + r.stored("result", "o", c.o.abs() + missed)

    def state(self) -> None:
        """Math: 3.5, the error of S after the chunk."""
        c, r = self.c, self.r
        transition = self.transition
        kept, written = self.last * self.S_most, self.kg_most.mT @ self.v_most
        own = (
            c.kg.abs().mT @ self.own_v
            + self.d_kg.mT @ self.v_most
            + self.d_decay[..., -1:, :].mT * kept
        )
        own = own + r.sums("state", self.C) * (kept + written) + r.counts("state") * self.lost
        if r.contract.transition == "formed":
            own = own + applied(self, kept)
        if r.contract.decay == "scalar":
            # subnormal where v_new is small: 2^-25 of each element in fp16
            own = own + self.k.mT @ r.stored("state", "v_decayed", torch.zeros_like(self.own_v))
        moved = self._carried(transition) + own
        own = own + r.stored("state", "S", c.S.abs() + moved)
        most = self._carried(transition) + own
        self.columns = torch.minimum(norm(most, -2), self.growth * self.columns + norm(own, -2))
        self.d_S = torch.minimum(most, self.columns[..., None, :])

    def _with(self, cost: float) -> Tensor:
        """[C, K] relative error of a decay whose error is then `cost`."""
        return self.d_decay + cost * (1 + self.d_decay)

    def _carried(self, X: Tensor) -> Tensor:
        """|X dS| for whatever dS is within both bounds."""
        return torch.minimum(
            X.abs() @ self.d_S, norm(X, -1)[..., None] * self.columns[..., None, :]
        )

    @cached_property
    def transition(self) -> Tensor:
        """[K, K] M = Diag(exp G_c) - kg^T w, exact."""
        return torch.diag_embed(self.last.squeeze(-1)) - self.c.kg.mT @ self.c.w

    @cached_property
    def growth(self) -> Tensor:
        """[1] 2-norm bound of M: that of all its elements, max(1, |1 - beta |k|^2|) max alpha of
        every token.
        """
        reflection = (1 - self.c.tokens.beta * self.k.square().sum(-1)).abs().clamp(min=1.0)
        by_token = (reflection * self.c.tokens.g.exp().amax(-1)).prod(-1)
        return torch.minimum(by_token, norm(self.transition.flatten(-2), -1))[..., None]

    def _stored_w_and_u(self) -> Tensor:
        c, r = self.c, self.r
        Rk, Rv = self.R_most @ self.kb_most, self.R_most @ self.vb_most
        cost = r.sums("wy", self.C)
        w = (
            c.w.abs()
            + self.R @ (self.d_kb + self.d_Akk @ c.w.abs())
            + self.d_R @ self.kb_most
            + cost * Rk
        )
        u = (
            c.u.abs()
            + self.R @ (self.d_vb + self.d_Akk @ c.u.abs())
            + self.d_R @ self.vb_most
            + cost * Rv
        )
        d_w, d_u = cost * Rk + r.stored("wy", "w", w), cost * Rv + r.stored("wy", "u", u)
        self.w_most, self.u_most = w + d_w, u + d_u
        return d_w @ self.h_most + d_u + r.sums("state", self.K) * ((w + d_w) @ self.h_most)

    def _stored_residual(self, unsolved: Tensor) -> Tensor:
        r = self.r
        missed = r.sums("state", self.K) * (
            self.kb_most @ self.h_most + self.vb_most
        ) + self._stored_difference(unsolved)
        missed = missed + r.stored("state", "residual", unsolved + missed)
        return self.R_most @ missed + r.sums("state", self.C) * (self.R_most @ (unsolved + missed))

    def _stored_difference(self, unsolved: Tensor) -> Tensor | float:
        """What rounding k exp(G) h, its difference from v, then beta adds, before it is stored."""
        r = self.r
        if not r.contract.difference_first:
            return 0.0
        prediction = self.beta.clamp(min=1.0) * r.stored(
            "state", "prediction", self.kb_most @ self.h_most / self.beta.clamp(min=1.0)
        )
        difference = self.beta.clamp(min=1.0) * r.stored(
            "state", "residual", torch.zeros_like(unsolved)
        )
        relative = (1 + r.relative("state", "residual")) * (
            1 + r.relative("state", "rounded_beta")
        ) - 1
        return (1 + relative) * (prediction + difference) + relative * unsolved

    def _outward(self) -> Tensor | float:
        """k exp(-G), where decays are products of factors: it brings exp(G)'s underflow back.

        Where a factor overflows, a kernel that stays finite takes differences.
        """
        factors = self.r.contract.factors
        if factors is None:
            return 0.0
        overflows = -self.c.G.amin((-2, -1), keepdim=True) > math.log(
            torch.finfo(factors.dtype).max
        )
        return self.k * (-self.c.G).masked_fill(overflows, -torch.inf).exp()

    def _underflow_of_factors(self, rows: Tensor) -> Tensor | float:
        """What pairs lose where the smaller of two factors underflows, or its product with q or k
        as it is stored; `rows` [C, K, 2] is what the products are taken with.
        """
        c, r = self.c, self.r
        if r.contract.factors is not None:
            outward = torch.as_tensor(self._outward())
            least = 2 * r.counts("scores") * (r.lost + r.factors * r.contract.factors.min_normal)
            # q exp(G) of 2^-17 exp(-80) is subnormal in bf16, and k exp(-G) brings its rounding
            # back: a right kernel was rejected at 14 times its bound, with rms errors of half.
            stored = max(1.0, abs(c.scale)) * r.stored("scores", "q_in", outward.new_zeros(()))
            products = stored * outward.sum(-1)[..., None, :, None]
            return least * torch.einsum("...ikn,...jk->...ijn", rows, outward) + products
        if not r.contract.anchored:
            return 0.0
        size = c.arithmetic.sub_block
        block = torch.arange(self.C, device=rows.device) // size
        outward = self.k * (c.G[..., block * size, :] - c.G).clamp(max=LARGEST_EXPONENT).exp()
        lost = (
            torch.einsum("...ikn,...jk->...ijn", rows, outward)
            * (block[:, None] == block)[..., None]
        )
        return 2 * r.counts("scores") * r.lost * lost


def _solved(X: Tensor, b: Tensor) -> Tensor:
    """(I - X)^-1 b, X strictly lower triangular."""
    return torch.linalg.solve_triangular(-X, b, upper=False, unitriangular=True)


def _largest(x: Tensor) -> Tensor:
    return x.abs().amax((-2, -1), keepdim=True)
