"""One name, several contracts: where the revisions of `chunk_kda_fwd` agree and differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from kdaverify.adapters.ascend.gates import CUMULATED_LOG2, NATURAL, GateForm
from kdaverify.adapters.ascend.layouts import Layout
from kdaverify.problems import Problem

MOST_SEQUENCES: Final = 1024
MOST_HEADS: Final = 128
WIDEST: Final = 256
TILE: Final = 16
SQUARE_WIDTHS: Final = (64, 128)
CHUNK_SIZES: Final = (64, 128)


@dataclass(frozen=True, kw_only=True)
class Revision:
    """The contract of one revision.

    Args:
        name: for people.
        gate: form of the fourth tensor.
        o_as_inputs: o comes in the layout of the inputs; otherwise sequence-major.
        state_orders: of the states, of ("kv", "vk").
        square: K = V = 64 or 128 only; otherwise multiples of 16 up to 256.
        one_head_tnd: TND takes one key head only.
        two_routes: large calls go another way (see route.py).
    Source: flash-linear-attention-npu, fla/ops/ascendc/kda/chunk_kda_fwd, README and docs/api.md
    over time.
    """

    name: str
    gate: GateForm
    o_as_inputs: bool = False
    state_orders: tuple[str, ...] = ("kv", "vk")
    square: bool = False
    one_head_tnd: bool = False
    two_routes: bool = False

    @property
    def reported(self) -> str:
        o = "o in the layout of the inputs" if self.o_as_inputs else "o sequence-major"
        return f"revision {self.name} ({o}, gates in {self.gate.said})"


EARLY: Final = Revision(
    name="early", gate=CUMULATED_LOG2, o_as_inputs=True, state_orders=("kv",), one_head_tnd=True
)
MID: Final = Revision(name="mid", gate=NATURAL)
V26_9_1: Final = replace(MID, name="v26.9.1", square=True)
MAIN: Final = replace(V26_9_1, name="September main", two_routes=True)
EITHER: Final = replace(V26_9_1, name="mid or v26.9.1")
"""Where only a call shows the difference: these two take the same arguments, but not the same
widths."""


def by_signature(parameters: tuple[str, ...]) -> Revision | None:
    """The revision whose signature this is."""
    if "gk" in parameters:
        return EARLY
    if "g" in parameters and "use_exp2" in parameters:
        return MAIN
    return EITHER if "g" in parameters and "state_v_first" in parameters else None


def limits(revision: Revision, layout: Layout, state: str, problem: Problem) -> Iterator[str]:
    """Why a revision's interface cannot take a problem."""
    if problem.T == 0:
        yield "at least one token"
    if problem.lengths is not None and sum(problem.lengths) != problem.T:
        yield (
            f"no tokens past the last offset: cu_seqlens must end at T = {problem.T}, wanted"
            f" {sum(problem.lengths)}"
        )
    # Without a batch axis, the batch entries are handed over as a pack.
    if (problem.packed or layout.rank3) and problem.N > MOST_SEQUENCES:
        yield f"at most {MOST_SEQUENCES} sequences, wanted {problem.N}"
    if problem.HV > MOST_HEADS:
        yield f"at most {MOST_HEADS} value heads, wanted {problem.HV}"
    yield from _width_limits(revision, problem)
    if revision.one_head_tnd and layout.name == "TND" and problem.H > 1:
        yield (
            f"TND takes one key head in revision {revision.name}, wanted {problem.H}; use"
            " layout=NTD"
        )
    if state not in revision.state_orders:
        yield f"states are [K, V] only in revision {revision.name}"
    if revision.gate.cumulated and bool(problem.inputs().g.isneginf().any()):
        yield (
            "no hard resets: gates summed over a chunk cannot say what follows -inf (revision"
            f" {revision.name})"
        )


def _width_limits(revision: Revision, problem: Problem) -> Iterator[str]:
    K, V = problem.K, problem.V
    if revision.square and not (K == V and K in SQUARE_WIDTHS):
        more = "; if it is known to be mid, say widths=any" if revision is EITHER else ""
        yield (
            f"K = V = 64 or K = V = 128 in revision {revision.name}, wanted K = {K}, V = {V}{more}"
        )
    if any(width % TILE or not TILE <= width <= WIDEST for width in (K, V)):
        yield f"widths are multiples of {TILE} from {TILE} to {WIDEST}, wanted K = {K}, V = {V}"
