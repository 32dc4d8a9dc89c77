"""Where an attention kernel goes wrong first: it returns outputs alone, no tensor of a stage.

Math: with twice as many columns of V as keys, V has a right inverse V^+, and o shows the weights
that it was made with, W = o V^+; S' = ln W + LSE are the scores. An o that is no W V was made of
other rows. Keys with P > 0 = W were not read, those with W > P = 0 not masked. S' = S where W does
not sum to 1 is a wrong sum, W = P beside a wrong LSE a wrong LSE. In the backward, dv shows P, and
dq and dk beside a right dv show dS.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.checks.location import Location
from kdaverify.diagnosis.fault_comparison import FaultComparison
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.diagnosis.tolerances import APART, Scale
from oracles.attention.fp8 import TILE
from oracles.attention.segment import Segment
from oracles.attention.sink import softmax_of

NEAR: Final = 2.0**-6
"""Relative to the largest of a row: conforming kernels in 16 bits lie four times nearer."""
HEAVY: Final = 2.0**-3
"""Of the largest weight: lighter keys have no score worth comparing."""
MOVED: Final = 0.1
"""Of a score: that of a heavy key is off by less in 16 bits."""
DEQUANT: Final = frozenset({"gather", "scores", "partial"})
"""What numbers that are dequantised wrongly look like: keys and values are one tensor there."""
LOST: Final = "keys do not count"
Vote = tuple[str, str]
"""A stage, and why."""
EMPTY: Final[Vote] = ("partial", "rows without keys are wrong")
LARGEST: Final = 0.5
"""Largest `cost` of a problem with more columns."""


def traced(case: PropertyCase, judged: Adapter, wrong: frozenset[str]) -> Location | None:
    """The stage that the outputs of a failing case point to; None where they point to none.

    Args:
        wrong: the outputs and gradients that are wrong.
    """
    if case.problem.op == "merge_state":
        return Location("combine", "a merge has no other stage")
    if not wrong & {"o", "lse"}:
        # gradients of a wrong forward are wrong everywhere
        forward = _of_rows((_wide(case.problem, judged), case.problem), judged)
        return forward or _of_gradients(wrong)
    if "lse" not in judged.exposes(case.problem):
        return None
    return wrong_rows(case.problem, judged) or _of_outputs(case, wrong)


def wrong_rows(problem: Any, judged: Adapter) -> Location | None:
    """What wrong rows of o and LSE point to, of a problem and those like it; None without any."""
    return _of_rows(_shown(problem, judged), judged)


def _of_gradients(wrong: frozenset[str]) -> Location | None:
    """Of gradients whose outputs are right."""
    said = f"o and LSE are right, and {', '.join(sorted(wrong))} alone wrong"
    if {*wrong} == {"dsink"}:
        return Location("sink", said)
    if "dq" in wrong and wrong & {"dk", "dcache"} and "dv" not in wrong:
        return Location("delta", f"{said}: P is right, and dS is not")
    if "dq" in wrong:
        return Location("dq", said)
    return Location("dkv", said) if wrong & {"dk", "dv", "dcache"} else None


def _of_outputs(case: PropertyCase, wrong: frozenset[str]) -> Location:
    """Of calls that are right by themselves, and wrong beside others or in other memory."""
    if case.property == "calls":
        return Location("gather", "the call by itself is right, under the rule it is not")
    stage = "lse" if {*wrong} == {"lse"} else "gather" if "lse" in wrong else "partial"
    stage = "dequant" if _is_quantised(case.problem) and stage in DEQUANT else stage
    return Location(stage, f"{' and '.join(sorted(wrong))} wrong, each row by itself right")


def _shown(problem: Any, judged: Adapter) -> Iterator[Any]:
    """The problem with more columns, as it is, and as one of several requests."""
    yield _wide(problem, judged)
    yield problem
    operator: Any = judged.operator
    probe = operator.probe(problem.dtype).replace(sink=problem.sink)
    yield _wide(operator.within(judged, probe), judged)


def _of_rows(problems: Iterable[Any], judged: Adapter) -> Location | None:
    """What most wrong rows point to, of the first problem with any that see keys; rows that see
    none point somewhere only where no other is wrong.
    """
    empty = 0
    for problem in map(_finite, problems):
        votes = Counter(_votes(problem, judged))
        empty = empty or votes.pop(EMPTY, 0)
        if votes:
            return _of_most(votes)
    return _of_most(Counter[Vote]({EMPTY: empty})) if empty else None


def _of_most(votes: Counter[Vote]) -> Location:
    (stage, why), most = votes.most_common(1)[0]
    return Location(stage, f"{why} ({most} of {votes.total()} wrong rows)")


def _finite(problem: Any) -> Any:
    """The problem with numbers in unused memory: what is read there then shows as other rows."""
    return problem.replace(unused="finite") if hasattr(problem, "unused") else problem


def _wide(problem: Any, judged: Adapter) -> Any:
    """The problem with columns of V for every key, where the kernel takes it."""
    most = max(s_k for _, s_k in problem.pairs)
    d_v = max(problem.d_v, -(-2 * most // TILE) * TILE)
    more = {} if problem.op == "attention" else {"d_k": problem.d_k + d_v - problem.d_v}
    operator: Any = judged.operator
    wide = operator.within(judged, problem.replace(d_v=d_v, **more))
    fits = operator.refusal(judged, wide) is None and operator.cost(wide) <= LARGEST
    return wide if fits else problem


def _votes(problem: Any, judged: Adapter) -> Iterator[Vote]:
    """What every wrong row points to, and why."""
    lineup = FaultComparison(PropertyCase("forward", problem), judged)
    call, found = judged.received(problem.inputs()), lineup.kernel.outputs
    if not {"o", "lse"} <= found.keys():
        return
    off = {name: ~_within(found[name], scale) for name, scale in lineup.scales.items()}
    parts = [call.of_requests(name, x[name]) for x in (found, off) for name in ("o", "lse")]
    quantised = _is_quantised(problem)
    for segment, *outputs in zip(call.segments(), *parts, strict=True):
        rows = ReturnedRows(segment, *outputs)
        left = rows.o_off | rows.lse_off
        for chosen, stage, why in rows.stages():
            dequant = quantised and why not in (LOST, EMPTY[1]) and stage in DEQUANT
            vote = ("dequant" if dequant else stage, why)
            yield from [vote] * int((chosen & left).sum() if stage else 0)
            left = left & ~chosen


def _is_quantised(problem: Any) -> bool:
    return getattr(problem, "cache", "rows") == "fp8"


def _within(x: Tensor, scale: Scale) -> Tensor:
    """Elements that a conforming kernel may have; LSE of no key is -inf."""
    return (x == scale.exact) | ((x - scale.exact).abs() <= APART * scale.largest)


@dataclass(frozen=True)
class ReturnedRows:
    """What a kernel returns of a request: o [H, s_q, d_v], lse [H, s_q], wrong elements."""

    segment: Segment
    o: Tensor
    lse: Tensor
    wrong_o: Tensor
    lse_off: Tensor

    @cached_property
    def o_off(self) -> Tensor:
        return self.wrong_o.any(-1)

    @cached_property
    def P(self) -> Tensor:
        """[H, s_q, s_k] The exact weights."""
        return softmax_of(self.segment).weights[..., : self.segment.k.shape[1]]

    @cached_property
    def V(self) -> Tensor:
        return self.segment.of_heads(self.segment.v.double())

    @cached_property
    def W(self) -> Tensor:
        """The weights of o."""
        return self.o.nan_to_num(0.0, 0.0, 0.0) @ torch.linalg.pinv(self.V.nan_to_num())

    @cached_property
    def near(self) -> Tensor:
        return NEAR * self.P.amax(-1, keepdim=True)

    def stages(self) -> Iterator[tuple[Tensor, str, str]]:
        """Rows, the stage that they point to and why; a row counts with the first that it is in."""
        seen = self.segment.visible.sum(-1)
        yield self.segment.empty.expand_as(self.lse), *EMPTY
        if not seen.any():
            return
        yield ~self.o_off & (seen > 1), "lse", "o is right, and LSE is not"
        yield ~self.o_off, "", ""
        yield ~(self.o.isfinite().all(-1) & self.lse.isfinite()), "partial", "NaN or infinity"
        if self.V.shape[-1] < self.V.shape[-2]:
            yield ~self.lse_off, "partial", "LSE is right, and o is not"
            yield self.o_off, "gather", "o and LSE are wrong"
            return
        yield from self._by_weights()
        yield from self._by_scores()

    def _by_weights(self) -> Iterator[tuple[Tensor, str, str]]:
        apart = (self.W @ self.V - self.o).abs() > NEAR * self.o.abs().amax(-1, keepdim=True)
        alien = apart.any(-1)
        yield alien & ~self.lse_off, "partial", "LSE is right, and o no mean of the row's values"
        yield alien, "gather", "o is no mean of the values that the row sees"
        if self.segment.sink is not None:
            ratio = (self.W * self.P).sum(-1) / self.P.square().sum(-1)
            same = (self.W - ratio[..., None] * self.P).abs() <= self.near
            yield same.all(-1) & ~self.lse_off, "sink", "LSE is right, and o off by a factor"
        yield ~self.lse_off, "partial", "LSE is right, and the weights of o are not"

    def _by_scores(self) -> Iterator[tuple[Tensor, str, str]]:
        P, W, near, visible = self.P, self.W, self.near, self.segment.visible
        scores = softmax_of(self.segment).scores[0][..., : visible.shape[-1]]
        made = W.clamp(min=1e-30).log() + self.lse[..., None]
        heavy = visible & (HEAVY * P.amax(-1, keepdim=True) < P)
        moved = heavy & ((made - scores).abs() > MOVED)
        yield (~visible & (near < W)).any(-1), "scores", "hidden keys count"
        unequal = (W.sum(-1) - P.sum(-1)).abs() > NEAR
        yield unequal & ~moved.any(-1), "partial", "the scores are right, and their sum is not"
        yield self._of_another_row(), "gather", "o and LSE are those of another row"
        lost, kept = visible & (near < P) & (near / 2 > W), visible & (near < W)
        least = scores.masked_fill(~kept, torch.inf).amin(-1)
        steep = scores.masked_fill(~lost, -torch.inf).amax(-1) < least
        yield lost.any(-1) & steep.all(), "scores", "the keys of lower scores do not count"
        by_some = lost & kept.flatten(0, 1).any(0)
        yield lost.any(-1) & by_some.any(), "scores", "keys count in some rows alone"
        yield lost.any(-1), "gather", LOST
        yield 2 * moved.sum(-1) < heavy.sum(-1), "gather", "the scores of some keys are wrong"
        yield self.o_off, "scores", "the scores of most keys are wrong"

    def _of_another_row(self) -> Tensor:
        """[H, s_q] Whether weights and LSE are another query's or head's, over common keys."""
        common = self.segment.visible.all(0)
        P, W = (x[..., common].flatten(0, 1) for x in (self.P, self.W))
        soft = softmax_of(self.segment)
        exact, mine = soft.returned_lse[0].flatten(), self.lse.flatten()
        levels = [x.sum(-1).clamp(min=1e-30).log() + y for x, y in ((P, exact), (W, mine))]
        same = (levels[0] - levels[1][:, None]).abs() <= MOVED
        shares = [x / x.sum(-1, keepdim=True).clamp(min=1e-30) for x in (W, P)]
        same &= torch.cdist(*shares, p=torch.inf) <= NEAR
        return same.any(-1).view_as(self.lse) & (common.sum() > 1)
