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
from oracles.enclosure import Enclosure
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
    written = GradientBalls.of(inputs)
    with precision(bits):
        for n, j, rows, head in each_head(inputs):
            if rows.start == rows.stop:
                write_exact(written.d_initial_state, (n, j), dS[n, j])
                continue
            sweep = Sweep(head, matrix(exact(inputs.state[n, j])))
            state = sweep.back(exact(do.flatten(0, 1)[rows, j]), matrix(exact(dS[n, j])))
            write(written.d_initial_state, (n, j), state)
            written.add(sweep, rows, j)
    terms = adjoint_with_terms(inputs, cotangents)[1]
    return GradientAnswer(
        written.reshaped(inputs), terms, f"balls, adjoint of the token form, {bits} bits"
    )


@dataclass
class GradientBalls:
    """The gradients of all heads, [B * T, heads, width] and the state's, written head by head."""

    dq: Enclosure
    dk: Enclosure
    dv: Enclosure
    dg: Enclosure
    dbeta: Enclosure
    d_initial_state: Enclosure
    group: int
    shared: tuple[arb_mat, arb_mat] | None = None

    @classmethod
    def of(cls, inputs: Inputs) -> GradientBalls:
        """Nothing but zeros."""
        tokens = inputs.B * inputs.T
        return cls(
            dq=zeros(tokens, inputs.H, inputs.K),
            dk=zeros(tokens, inputs.H, inputs.K),
            dv=zeros(tokens, inputs.HV, inputs.V),
            dg=zeros(tokens, inputs.HV, inputs.KG),
            dbeta=zeros(tokens, inputs.HV, 1),
            d_initial_state=zeros(*inputs.state.shape),
            group=inputs.HV // inputs.H,
        )

    def add(self, sweep: Sweep, rows: slice, j: int) -> None:
        """Value head j of one sequence; a key head has the sum of its group, which follow each
        other.
        """
        width = self.dg.high.shape[-1]
        if width:
            gates = [_of_gates(row, width) for row in sweep.dg]
            write(self.dg, (rows, j), matrix(gates[::-1]))
        write(self.dv, (rows, j), matrix(sweep.dv[::-1]))
        write(self.dbeta, (rows, j), matrix(sweep.dbeta[::-1]))
        dq, dk = matrix(sweep.dq[::-1]), matrix(sweep.dk[::-1])
        if self.shared is not None and j % self.group:
            dq, dk = self.shared[0] + dq, self.shared[1] + dk
        self.shared = dq, dk
        if (j + 1) % self.group == 0:
            write(self.dq, (rows, j // self.group), dq)
            write(self.dk, (rows, j // self.group), dk)

    def reshaped(self, inputs: Inputs) -> Gradients[Enclosure]:
        """As the inputs are."""
        return Gradients(
            reshape(self.dq, inputs.q.shape),
            reshape(self.dk, inputs.k.shape),
            reshape(self.dv, inputs.v.shape),
            reshape(self.dg, inputs.g.shape),
            reshape(self.dbeta, inputs.beta.shape),
            reshape(self.d_initial_state, inputs.state.shape),
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
