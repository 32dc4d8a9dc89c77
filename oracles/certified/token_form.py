"""KDA one token at a time, in ball arithmetic: shares no algebra with the chunk form."""

from __future__ import annotations

import math

from flint import arb, arb_mat

from oracles.certified.balls import ZERO, Row, accumulate, inverse, matrix, of_each, scale_rows
from oracles.certified.heads import Head, over_heads
from oracles.enclosure import CertifiedOutputs
from oracles.inputs import Inputs


def recurrence(inputs: Inputs, *, bits: int) -> CertifiedOutputs:
    """Token recurrence of KDA with proven radii, one sequence and value head after the other.

    Math: section 2, with the state held as S = Diag(exp G) Z, G the gates summed since the last
    hard reset of the channel. A token then costs one product with Z and a rank-one update:
        p, r = Z^T (k exp G), Z^T (q exp G);  u = beta (v - p);  Z <- Z + (k exp -G) u^T;  o = scale
        (r + (q . k) u)

    Args:
        inputs: the call; every number enters exactly.
        bits: precision of the midpoints; a slow gate costs 0.35 bit a token.
    Returns:
        Answer with the radius of every element.
    Raises:
        ValueError: bits is out of range.
    """
    return over_heads(inputs, _form, bits=bits, method="token form")


def _form(head: Head, state: arb_mat) -> tuple[list[arb_mat], arb_mat]:
    z, total = state, [ZERO] * state.nrows()
    outputs: list[arb_mat] = []
    for t, gates in enumerate(head.g):
        total = accumulate(total, gates)
        o, _, z = step(head.rows(slice(t, t + 1)), of_each(arb.exp, total), reset(z, gates))
        outputs.append(o)
    return outputs, matrix(scale_rows(of_each(arb.exp, total), z.tolist()))


def step(token: Head, decay: Row, Z: arb_mat) -> tuple[arb_mat, arb_mat, arb_mat]:
    """One token: o [1, V], v - p [1, V] and the next Z. Math: as in `recurrence`, decay = exp G."""
    q, k = token.q[0], token.k[0]
    K, V = Z.nrows(), Z.ncols()
    reads = arb_mat(2, K, [x * e for row in (k, q) for x, e in zip(row, decay, strict=True)]) * Z
    p, r = reads.tolist()
    residual = arb_mat(1, V, [x - y for x, y in zip(token.v[0], p, strict=True)])
    u = residual * token.beta[0]
    write = arb_mat(K, 1, [x * e for x, e in zip(k, of_each(inverse, decay), strict=True)])
    qk = (arb_mat(1, K, q) * arb_mat(K, 1, k))[0, 0]
    return (arb_mat(1, V, r) + u * qk) * token.scale, residual, Z + write * u


def reset(Z: arb_mat, gates: list[float | arb]) -> arb_mat:
    if -math.inf not in gates:
        return Z
    return matrix(
        [
            [ZERO] * len(row) if g == -math.inf else row
            for g, row in zip(gates, Z.tolist(), strict=True)
        ]
    )
