"""Maps of chunks that are joined before the state is there: right scans conform in either family of
contracts, in any order of joins; those that join wrongly, or in fewer bits, do not.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Final

import pytest
import torch
from torch import Tensor

from kdaverify.budgets.backward import backward_members, member_gradients
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.ensemble import emulate, ensemble
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.standard import Reference, standard
from kdaverify.operator import problem_from_json
from kdaverify.problems import Problem, cotangents
from oracles.adjoint import adjoint
from oracles.chunk import ScannedState
from oracles.inputs import Inputs
from oracles.recurrence import recurrence

Map = tuple[Tensor, Tensor]
Join = Callable[[Map, Map], Map]
Scan = Callable[[Sequence[Map], Join], list[Map]]
Kept = Callable[[Tensor], Tensor]
CHUNK: Final = 16
PROBLEM: Final = Problem(
    B=1, T=83, H=1, HV=1, K=32, V=32, dtype="bf16", seed=5,
    gate="slow", key="random", beta="uniform", state="random", value="normal",
)  # fmt: skip
FAMILIES: Final = {
    "channel": "chunk16-bf16[transition:formed]",
    "head": "chunk16-bf16[decay:scalar;transition:formed]",
}
TO_BF16: Final[Kept] = FORMATS["bf16"].round


def joined(later: Map, earlier: Map, keep: Kept) -> Map:
    (M2, C2), (M1, C1) = later, earlier
    return keep(M2) @ keep(M1), keep(M2) @ keep(C1) + C2


def reversed_order(later: Map, earlier: Map, keep: Kept) -> Map:
    (M2, C2), (M1, C1) = later, earlier
    return keep(M1) @ keep(M2), keep(M2) @ keep(C1) + C2


def in_turn(maps: Sequence[Map], join: Join) -> list[Map]:
    found = [maps[0]]
    for one in maps[1:]:
        found.append(join(one, found[-1]))
    return found


def doubling(maps: Sequence[Map], join: Join) -> list[Map]:
    found, distance = [*maps], 1
    while distance < len(found):
        later = zip(found[distance:], found[:-distance], strict=True)
        found = [*found[:distance], *(join(*pair) for pair in later)]
        distance *= 2
    return found


def without_first(maps: Sequence[Map], join: Join) -> list[Map]:
    """What the first of three or more chunks adds is left out."""
    forgotten = in_turn([(maps[0][0], torch.zeros_like(maps[0][1])), *maps[1:]], join)
    return [*in_turn(maps[:2], join), *forgotten[2:]]


def port(x: Inputs, scan: Scan, join: Callable[[Map, Map, Kept], Map], **how: Kept) -> Map:
    """o and S_T by a scan of chunks; `keep` rounds operands, `joins` those of maps, `end` the gates
    that a map keeps.
    """
    keep, joins = how.get("keep", TO_BF16), how.get("joins", TO_BF16)
    chunks = [chunk_of(x, first, keep) for first in range(0, x.T, CHUNK)]
    maps: list[Map] = []
    for G, w, u, _, k in chunks:
        kg = keep(k * (G[-1] - G).exp())
        kept = torch.diag(how.get("end", operator.itemgetter(-1))(G).exp())
        maps.append((kept - kg.mT @ w, kg.mT @ u))
    start = x.state[0, 0].float()
    after = [joins(M) @ joins(start) + C for M, C in scan(maps, lambda a, b: join(a, b, joins))]
    o = [read(one, keep(S)) for one, S in zip(chunks, [start, *after[:-1]], strict=True)]
    return TO_BF16(x.factor * torch.cat(o))[None, :, None], after[-1][None, None]


def chunk_of(x: Inputs, first: int, keep: Kept) -> tuple[Tensor, ...]:
    """G, w, u, what o reads of a chunk (q exp(G), scores), and k."""
    rows = slice(first, first + CHUNK)
    q, k, v, g = (one[0, rows, 0].float() for one in (x.q, x.k, x.v, x.decays))
    G, beta = g.cumsum(0), x.beta[0, rows, 0, None].float()
    D = (G[:, None] - G).clamp(max=0).exp()
    A = torch.eye(len(k)) + keep((beta * torch.einsum("ik,jk,ijk->ij", k, k, D)).tril(-1))
    R = keep(torch.linalg.solve_triangular(A, torch.eye(len(k)), upper=False, unitriangular=True))
    w, u = keep(R @ keep(beta * k * G.exp())), keep(R @ keep(beta * v))
    scores = keep(torch.einsum("ik,jk,ijk->ij", q, k, D).tril())
    # One gate a head multiplies what q reads, not q.
    read = q * G.exp() if x.KG == 1 else keep(q * G.exp())
    return G, w, u, torch.cat((read, scores), -1), k


def read(chunk: tuple[Tensor, ...], h: Tensor) -> Tensor:
    _, w, u, reads, _ = chunk
    return reads @ torch.cat((h, TO_BF16(u - w @ h)))


@functools.cache
def reference(problem: str, name: str) -> Reference:
    x, contract, io = problem_from_json(problem).inputs(), contract_from_name(name), FORMATS["bf16"]
    return standard(x, contract, io, emulate(x, contract, io))


def ratio(problem: Problem, name: str, found: Map) -> float:
    """The worst of o and S_T over its tolerance."""
    known = reference(problem.to_json(), name)
    worst: list[float] = []
    for output, value in zip(("o", "final_state"), found, strict=True):
        allowed, exact = known.budgets[output], known.exact(output)
        error = exact.error(value.double())
        worst.append(max(allowed.ratios(allowed.measure(error, exact)).values()))
    return max(worst)


@pytest.mark.parametrize("gates", FAMILIES)
@pytest.mark.parametrize("scan", [in_turn, doubling])
@pytest.mark.parametrize("joins", ["bf16", "fp32"])
def test_scans_conform_in_any_order_of_joins(gates: str, scan: Scan, joins: str) -> None:
    problem = PROBLEM.replace(gates=gates)
    found = port(problem.inputs(), scan, joined, joins=FORMATS[joins].round)
    assert ratio(problem, FAMILIES[gates], found) <= 1


@pytest.mark.parametrize("gates", FAMILIES)
def test_scans_in_bf16_do_not_where_maps_are_declared_in_fp32(gates: str) -> None:
    problem = PROBLEM.replace(gates=gates, beta="zero")
    wide = FAMILIES[gates].replace("formed", "formed;C:fp32;M:fp32")
    for fmt, conforms in (("fp32", True), ("bf16", False)):
        found = port(problem.inputs(), doubling, joined, joins=FORMATS[fmt].round)
        assert ratio(problem, FAMILIES[gates], found) <= 1
        assert (ratio(problem, wide, found) <= 1) == conforms


@pytest.mark.parametrize("gates", FAMILIES)
def test_maps_that_are_joined_wrongly_do_not(gates: str) -> None:
    problem = PROBLEM.replace(gates=gates)
    x, name = problem.inputs(), FAMILIES[gates]
    assert ratio(problem, name, port(x, doubling, reversed_order)) > 10
    assert ratio(problem, name, port(x, without_first, joined)) > 10


@pytest.mark.parametrize("gates", FAMILIES)
def test_maps_without_the_gate_of_the_last_token_do_not(gates: str) -> None:
    problem = PROBLEM.replace(gates=gates, gate="mild")
    for row, conforms in ((-1, True), (-2, False)):
        found = port(problem.inputs(), in_turn, joined, end=operator.itemgetter(row))
        assert (ratio(problem, FAMILIES[gates], found) <= 1) == conforms


def test_samples_round_maps_too() -> None:
    problem = PROBLEM.replace(gates="head")
    exact = reference(problem.to_json(), FAMILIES["head"]).exact("final_state").high

    def error(name: str) -> float:
        runs = emulate(problem.inputs(), contract_from_name(name), FORMATS["bf16"]).drawn
        return float(torch.stack([final - exact for _, final in runs]).norm())

    assert error(FAMILIES["head"]) > 1.2 * error("chunk16-bf16[decay:scalar]")


PACK: Final = PROBLEM.replace(T=500, K=8, V=4, dtype="fp64", lengths=(300, 0, 5, 33, 160))
"""More chunks than are scanned at once, and sequences that end in between."""


@pytest.mark.parametrize(
    ("gates", "name"),
    [
        ("channel", "chunk16-fp64[transition:formed]"),
        ("head", "chunk16-fp64[decay:scalar;transition:formed]"),
    ],
)
def test_joined_maps_are_exact_in_algebra(gates: str, name: str) -> None:
    problem = PACK.replace(gates=gates)
    x, loss, io = problem.inputs(), cotangents(problem, "both"), FORMATS["fp64"]
    contract = contract_from_name(name)
    scans = [one for one in ensemble(contract, io) if isinstance(one.stages.state, ScannedState)]
    assert scans
    for found, exact in zip(scans[0].run(x), recurrence(x), strict=True):
        assert float((found - exact).norm() / exact.norm()) < 1e-13
    back = next(
        one for one in backward_members(contract, io) if isinstance(one.stages.state, ScannedState)
    )
    wanted = adjoint(x, loss).named()
    for one, found in member_gradients(back, x, loss).named().items():
        assert float((found - wanted[one]).norm() / wanted[one].norm()) < 1e-12, one
