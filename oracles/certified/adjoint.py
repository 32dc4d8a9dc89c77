"""The token recurrence's adjoint in ball arithmetic: all gradients with their radii."""

from __future__ import annotations

from dataclasses import dataclass, field

from flint import arb, arb_mat

from oracles.adjoint import adjoint_with_terms
from oracles.certified.balls import (
    ZERO,
    Row,
    Rows,
    accumulate,
    exact,
    inverse,
    matrix,
    of_each,
    scale_rows,
)
from oracles.certified.heads import Head, each_head, precision, reshape, write, write_exact, zeros
from oracles.certified.token_form import reset, step
from oracles.gradients import Cotangents, GradientAnswer, Gradients
from oracles.inputs import Inputs

# Tokens between two kept states: the states inside a block are computed a second time.
BLOCK = 16


def adjoint(inputs: Inputs, cotangents: Cotangents, *, bits: int) -> GradientAnswer:
    """Gradients of the token recurrence with proven radii, a sequence and head at a time.

    Math: section 5, with the states held as in the token form, S = Diag(exp G) Z, and their
    gradients as P = Diag(exp -G) Y. A
    token then costs rank-one updates:
        Y <- Y + scale (q exp G) do^T;  p = Y^T (k exp -G);  Y <- Y - beta (k exp G) p^T
        dq = scale exp(G) (Z do);  dk = exp(-G) (Y u) - beta exp(G) (Z~ p), Y before its second
        update;  dg = rowsum(Y * Z~) after it

    Args:
        inputs: the call; every number enters exactly.
        cotangents: of o and S_T; every number enters exactly.
        bits: precision of the midpoints; a slow gate costs half a bit a token, and three times that
            at beta = 2.
    Returns:
        GradientAnswer with the radius of every element.
    Raises:
        InputError: the cotangents do not fit the inputs.
        ValueError: bits is out of range.
    """
    do, dS = cotangents.of(inputs)
    tokens, group = inputs.B * inputs.T, inputs.HV // inputs.H
    dq, dk = (zeros(tokens, inputs.H, inputs.K) for _ in range(2))
    dv = zeros(tokens, inputs.HV, inputs.V)
    dg = zeros(tokens, inputs.HV, inputs.KG)
    dbeta = zeros(tokens, inputs.HV, 1)
    d_initial_state = zeros(*inputs.state.shape)
    shared: tuple[arb_mat, arb_mat] | None = None
    with precision(bits):
        for n, j, rows, head in each_head(inputs):
            if rows.start == rows.stop:
                write_exact(d_initial_state, (n, j), dS[n, j])
                continue
            sweep = Sweep(head, matrix(exact(inputs.state[n, j])))
            write(
                d_initial_state,
                (n, j),
                sweep.back(exact(do.flatten(0, 1)[rows, j]), matrix(exact(dS[n, j]))),
            )
            gates = [_of_gates(row, inputs.KG) for row in sweep.dg] if inputs.KG else []
            for into, found in (
                (dv, sweep.dv),
                *([(dg, gates)] if gates else []),
                (dbeta, sweep.dbeta),
            ):
                write(into, (rows, j), matrix(found[::-1]))
            own = matrix(sweep.dq[::-1]), matrix(sweep.dk[::-1])
            if shared is None or j % group == 0:
                shared = own
            else:
                shared = (shared[0] + own[0], shared[1] + own[1])
            if (j + 1) % group == 0:
                write(dq, (rows, j // group), shared[0])
                write(dk, (rows, j // group), shared[1])
    shapes = (
        inputs.q.shape,
        inputs.k.shape,
        inputs.v.shape,
        inputs.g.shape,
        inputs.beta.shape,
        inputs.state.shape,
    )
    found = (
        reshape(x, shape)
        for x, shape in zip((dq, dk, dv, dg, dbeta, d_initial_state), shapes, strict=True)
    )
    terms = adjoint_with_terms(inputs, cotangents)[1]
    return GradientAnswer(
        Gradients(*found), terms, f"balls, adjoint of the token form, {bits} bits"
    )


@dataclass
class Sweep:
    """One head, walked there and back; what comes out lists the last token first."""

    head: Head
    start: arb_mat
    dq: Rows = field(default_factory=list)
    dk: Rows = field(default_factory=list)
    dv: Rows = field(default_factory=list)
    dg: Rows = field(default_factory=list)
    dbeta: Rows = field(default_factory=list)

    def back(self, do: Rows, dS: arb_mat) -> arb_mat:
        """The gradient of the initial state."""
        decays = self._decays()
        kept, inside = self._there(decays)
        y = matrix(scale_rows(decays[-1], dS.tolist()))
        for first in reversed(range(0, len(decays), BLOCK)):
            inside = inside or self._states(kept.pop(), decays[first : first + BLOCK], first)
            for t in reversed(range(first, first + len(inside))):
                y = self._retreat(y, t, decays[t], inside[t - first], do[t])
            inside = []
        return y

    def _decays(self) -> Rows:
        """exp of the gates of every token, summed since the channel was last reset."""
        total, decays = [ZERO] * self.start.nrows(), list[Row]()
        for gates in self.head.g:
            total = accumulate(total, gates)
            decays.append(of_each(arb.exp, total))
        return decays

    def _there(self, decays: Rows) -> tuple[list[arb_mat], list[ForwardTokenBalls]]:
        """The state before every block but the last, and the tokens of that one."""
        kept, passed, z = list[arb_mat](), list[ForwardTokenBalls](), self.start
        for first in range(0, len(decays), BLOCK):
            kept.append(z)
            passed = self._states(z, decays[first : first + BLOCK], first)
            z = passed[-1].after
        return kept[:-1], passed

    def _states(self, z: arb_mat, decays: Rows, first: int) -> list[ForwardTokenBalls]:
        passed: list[ForwardTokenBalls] = []
        for t, decay in enumerate(decays, start=first):
            decayed = reset(z, self.head.g[t])
            _, residual, z = step(self.head.rows(slice(t, t + 1)), decay, decayed)
            passed.append(ForwardTokenBalls(decayed, residual, z))
        return passed

    def _retreat(
        self, y: arb_mat, t: int, decay: Row, token: ForwardTokenBalls, do: Row
    ) -> arb_mat:
        """Y of the token before."""
        (q,) = self.head.q[t : t + 1]
        (k,) = self.head.k[t : t + 1]
        (beta,) = self.head.beta[t : t + 1]
        growth = of_each(inverse, decay)
        y = y + _column(_times(q, decay)) * (_line(do) * self.head.scale)
        p = _line(_times(k, growth)) * y
        dq = _times(decay, (token.after * _column(do) * self.head.scale).entries())
        written = _times(growth, (y * token.residual.transpose() * beta).entries())
        read = _times(decay, (token.decayed * p.transpose() * beta).entries())
        y = y - _column(_times(k, decay)) * (p * beta)
        self.dq.append(dq)
        self.dk.append([a - b for a, b in zip(written, read, strict=True)])
        self.dv.append((p * beta).entries())
        self.dbeta.append([(p * token.residual.transpose())[0, 0]])
        self.dg.append(
            [
                sum(_times(*rows), ZERO)
                for rows in zip(y.tolist(), token.decayed.tolist(), strict=True)
            ]
        )
        return reset(y, self.head.g[t])


@dataclass(frozen=True)
class ForwardTokenBalls:
    """The states around a token's update, without earlier decay, and v - S~^T k [1, V]."""

    decayed: arb_mat
    residual: arb_mat
    after: arb_mat


def _times(a: Row, b: Row) -> Row:
    return [x * y for x, y in zip(a, b, strict=True)]


def _of_gates(row: Row, number: int) -> Row:
    """What is found for every channel, summed over those that share a gate."""
    return row if number == len(row) else [sum(row, ZERO)]


def _line(row: Row) -> arb_mat:
    return arb_mat(1, len(row), row)


def _column(row: Row) -> arb_mat:
    return arb_mat(len(row), 1, row)
