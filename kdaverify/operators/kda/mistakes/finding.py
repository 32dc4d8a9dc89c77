"""The cause of an error, in words: a mistake, two together, or the tensor at fault."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kdaverify.adapters.base import Adapter
from kdaverify.checks.property_table import PROPERTIES
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.diagnosis.words import CONSISTENT
from kdaverify.operators.kda.mistakes.cases import cases
from kdaverify.operators.kda.mistakes.copies import Mistake
from kdaverify.operators.kda.mistakes.explanation import Explanation, double, single
from kdaverify.operators.kda.mistakes.origin import Origin, narrowed, origins
from kdaverify.operators.kda.mistakes.reach import reach
from kdaverify.operators.kda.mistakes.search import ObservedCase, all_mistakes

PLAIN: Final = ("forward", "gradients")
"""Properties whose outputs are those of one call."""
CALL: Final = "call"
COLUMNS: Final = 11
"""Value columns that a tensor is looked for in."""
NEARLY: Final = 1.25
"""Tensors with so many times the fewest unknowns are no worse: spaces with many more hold those
with few."""
FEWEST_EXCLUDED: Final = 2
"""Stages that must be excluded for the others to be listed."""
SIDE_BY_SIDE: Final = 2
"""Tensors that are named side by side."""
IN_WORDS: Final[Mapping[str, str]] = {
    "dv_local": "dv inside a chunk", "state_bwd": "dh from chunk to chunk", "dA": "dAqk",
    "dqkwg": "dq, dk, dw and dg by the states", "wy_bwd": "the gradient of the inverse, w and u",
    "intra_bwd": "dq and dk inside a chunk", "cumsum_bwd": "the reverse sum of dg",
}  # fmt: skip
"""Of stages of the backward, whose names are those of FLA's kernels: an engineer whose port had
none of them did not know what dqkwg is."""


@dataclass(frozen=True)
class ErrorFinding:
    """The cause that the outputs single out.

    Args:
        explanation: mistakes that account for everything; None where none is singled out.
        possible: else the tensors, one of which can be changed so that everything is accounted for,
            the fewest unknowns first.
        within: stages whose tensors enter all that is wrong, and nothing else.
        excluded: those that write what enters right outputs, too.
        right: the outputs that are right in all heads.
    """

    explanation: Explanation | None = None
    possible: tuple[Origin, ...] = ()
    within: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    right: tuple[str, ...] = ()

    @property
    def stages(self) -> tuple[str, ...]:
        """Those that are named, in the order in which they are."""
        if self.explanation is not None:
            return self.explanation.stages
        return (
            tuple(dict.fromkeys(stage for origin in self.possible for stage in origin.place.stages))
            or self.within
        )

    def __str__(self) -> str:
        """One clause; empty where nothing is singled out."""
        if self.explanation is not None:
            return _explained(self.explanation)
        evidence = (
            f" by {' and '.join(self.right)}, which {'are' if len(self.right) > 1 else 'is'} right"
            if self.right
            else ""
        )
        excluded = f"; excluded{evidence}: {_stages(self.excluded)}" if self.excluded else ""
        if self.possible:
            return f"{_consistent(self.possible)}{excluded}"
        if self.within and len(self.excluded) >= FEWEST_EXCLUDED:
            return f"{CONSISTENT}in {_stages(self.within, ' or ')}{excluded}"
        return ""


def _stages(names: Sequence[str], by: str = ", ") -> str:
    return by.join(
        "the inputs as they are read" if name == CALL else _in_words(name) for name in names
    )


def _in_words(stage: str) -> str:
    return f"{stage} ({IN_WORDS[stage]})" if stage in IN_WORDS else stage


def finding(question: PropertyCase, judged: Adapter, *, until: float) -> ErrorFinding:
    """What is wrong with a kernel, from its outputs alone.

    Args:
        question: what failed; only a plain call, or its gradients, can be explained.
        until: of the monotonic clock; what is begun is ended.
    """
    if question.property not in PLAIN:
        return ErrorFinding()
    found = sorted(cases(question, judged), key=lambda case: not case.wrong)
    if not found or not found[0].wrong:
        return ErrorFinding()
    if not found[0].finite:
        return _located(found, until)
    every = all_mistakes(backward=PROPERTIES[question.property].backward)
    scored = found[0].beside(every, until=until)
    if len(scored) < len(every):
        return ErrorFinding()
    explained = single(found, scored)
    if explained is None:
        explained = double(found, scored, every, until=(time.monotonic() + until) / 2)
    if explained is not None and len(explained.others) < SIDE_BY_SIDE:
        return ErrorFinding(explained)
    return _located(found, until)


def _small(found: Sequence[ObservedCase]) -> ObservedCase | None:
    """The first wrong case of one sequence and one chunk."""
    return next(
        (
            case
            for case in found
            if case.wrong and case.of.call.N == 1 and case.of.chunk_size > case.of.call.T
        ),
        None,
    )


def _located(found: Sequence[ObservedCase], until: float) -> ErrorFinding:
    case = _small(found)
    if case is None or time.monotonic() > until:
        return ErrorFinding()
    case = narrowed(case, COLUMNS)
    entered = reach(case)
    within, excluded = entered.stages()
    first = dict[str, Origin]()
    tried = origins(case, entered, until=until) if case.finite else ()
    for origin in sorted(
        (origin for origin in tried if origin.conclusive), key=lambda origin: origin.unknowns
    ):
        first.setdefault(origin.place.words, origin)
    fewest = [
        origin
        for origin in first.values()
        if origin.unknowns <= NEARLY * min(x.unknowns for x in first.values())
    ]
    singled_out = len(fewest) <= SIDE_BY_SIDE and time.monotonic() < until
    right = tuple(
        name
        for name, wrong in zip(case.kernel.outputs, entered.wrong.any(0).tolist(), strict=True)
        if not wrong
    )
    return ErrorFinding(None, tuple(fewest) if singled_out else (), within, excluded, right)


def _explained(found: Explanation) -> str:
    names = [_named(mistakes) for mistakes in (found.mistakes, *found.others)]
    nearest = (
        f", the next leaves {_percent(found.next)}"
        if math.isfinite(found.next) and len(found.mistakes) == 1
        else ""
    )
    return f"{'; or '.join(names)} (leaves {_percent(found.residual)} of the error{nearest})"


def _named(mistakes: Sequence[Mistake]) -> str:
    """One mistake, the same one in two tensors, or two."""
    first, *others = mistakes
    if all((x.change.words, x.where) == (first.change.words, first.where) for x in others):
        return str(
            replace(
                first,
                place=replace(first.place, words=" and ".join(x.place.words for x in mistakes)),
            )
        )
    return f"two mistakes together: {'; and '.join(map(str, mistakes))}"


def _consistent(possible: Sequence[Origin]) -> str:
    names = " or of ".join(
        f"{origin.place.words} ({_how(origin)}{_stage(origin.place.stages)})" for origin in possible
    )
    counts = (
        f"{possible[0].unknowns} unknowns account for {possible[0].equations} outputs of a head"
    )
    return f"{CONSISTENT}of {names} alone: {counts}"


def _stage(stages: Sequence[str]) -> str:
    return "an input" if stages == (CALL,) else f"stage {' or '.join(map(_in_words, stages))}"


def _how(origin: Origin) -> str:
    return f"{origin.space.words}, " if origin.space.words else ""


def _percent(share: float) -> str:
    return "under 0.1 %" if share < 1e-3 else f"{100 * share:.2g} %"
