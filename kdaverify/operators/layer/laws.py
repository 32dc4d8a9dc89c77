"""Laws of whole layers: what the same tokens give in another schedule, layout or batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.checks.laws.law import of_any
from kdaverify.operators.layer.call import LayerCall
from kdaverify.operators.layer.layout import TokenLayout, offsets
from kdaverify.operators.layer.problem import LayerProblem

STEPS: Final = 6
"""Tokens that are decoded one by one after a prefill."""
CUTS: Final = (1, 2, 3, 4, 63, 64, 65)
"""Within the window of a convolution, and round the chunk of a recurrence."""
PADDING: Final = 5
"""Columns of padding that every row has."""


@dataclass(frozen=True)
class LayerCase:
    """A call, and which of its rows are tokens of the problem.

    Args:
        said: how the tokens were computed, in words.
        control: the call without what the law is about; it must be wrong, or the case is
            inconclusive.
    """

    call: LayerCall
    layout: TokenLayout
    said: str
    control: LayerCall | None = None


Cases = Callable[[LayerProblem], Iterator[LayerCase]]


@dataclass(frozen=True)
class LayerLaw:
    """One law.

    Args:
        needs: parameters and functions of the declaration without which it cannot be tested.
        cases: of a problem.
        untestable: why there is none; None if there is.
        of_gradients: the gradient of hidden is compared, and out otherwise.
    """

    name: str
    statement: str
    exists_for: str
    needs: tuple[str, ...]
    cases: Cases
    untestable: Callable[[Any], str | None] = of_any
    of_gradients: bool = False


def _several_tokens(problem: LayerProblem) -> str | None:
    return None if problem.T > 1 else "it needs two tokens"


def _several_rows(problem: LayerProblem) -> str | None:
    return _several_tokens(problem) if problem.B > 1 else "it needs two sequences"


def _in_place(problem: LayerProblem) -> tuple[LayerCall, TokenLayout]:
    return problem.inputs(), TokenLayout.in_place(problem.B, problem.T)


def _scheduled(call: LayerCall, layout: TokenLayout, said: str) -> LayerCase:
    """A case whose control leaves out what its schedule does to the cache."""
    return LayerCase(call, layout, said, replace(call, severed=True))


def _together(problem: LayerProblem) -> Iterator[LayerCase]:
    call, layout = _in_place(problem)
    yield LayerCase(call, layout, "in one batch")


def _cached(problem: LayerProblem) -> Iterator[LayerCase]:
    call, layout = _in_place(problem)
    yield LayerCase(replace(call, cached=True), layout, "where a cache is wanted")


# One negative control a law: those of the other cuts differ in their place alone, and interpreted
# kernels take a quarter of a minute for them.
def _cut(problem: LayerProblem) -> Iterator[LayerCase]:
    call, layout = _in_place(problem)
    places = sorted({*CUTS, problem.T // 2, problem.T - 1} & {*range(1, problem.T)})
    cuts = [(place,) for place in places]
    thirds = (problem.T // 3, 2 * problem.T // 3)
    for turn, chosen in enumerate((*cuts, thirds) if problem.T > 5 else cuts):
        said = f"cut at {' and '.join(map(str, chosen))}"
        case = _scheduled(replace(call, cached=True, cuts=chosen), layout, said)
        yield replace(case, control=None) if turn else case


def _decoded(problem: LayerProblem) -> Iterator[LayerCase]:
    call, layout = _in_place(problem)
    first = max(1, problem.T - STEPS)
    cuts = tuple(range(first, problem.T))
    said = f"a prefill of {first}, then token by token"
    yield _scheduled(replace(call, cached=True, cuts=cuts), layout, said)


def _halfway(problem: LayerProblem, before: str = "", *, branched: bool = False) -> LayerCall:
    cut = max(1, problem.T // 2)
    return replace(
        problem.inputs(),
        cached=True,
        cuts=(cut,) if problem.T > 1 else (),
        before=before,
        branched=branched,
    )


def _fresh(problem: LayerProblem) -> Iterator[LayerCase]:
    layout = TokenLayout.in_place(problem.B, problem.T)
    yield _scheduled(_halfway(problem, "sequence"), layout, "after another sequence")


def _reset(problem: LayerProblem) -> Iterator[LayerCase]:
    layout = TokenLayout.in_place(problem.B, problem.T)
    yield _scheduled(_halfway(problem, "reset"), layout, "with a cache that was used and reset")


def _branched(problem: LayerProblem) -> Iterator[LayerCase]:
    layout, said = (
        TokenLayout.in_place(problem.B, problem.T),
        "after another continuation from a copy of the cache",
    )
    call = _halfway(problem, branched=True)
    # Where caches are returned anew, a continuation from the cache itself harms nothing either.
    yield LayerCase(call, layout, said, replace(call, branched=False, severed=True))


def _reordered(problem: LayerProblem) -> Iterator[LayerCase]:
    call = replace(_halfway(problem), order=tuple(reversed(range(problem.B))))
    layout = TokenLayout.in_place(problem.B, problem.T)
    yield _scheduled(call, layout, "with the rows reversed from the cut on")


def _ones(problem: LayerProblem) -> Iterator[LayerCase]:
    call, layout = _in_place(problem)
    mask = torch.ones(problem.B, problem.T, dtype=torch.int64)
    yield LayerCase(replace(call, attention_mask=mask), layout, "with a mask of ones")


def _left(problem: LayerProblem, padding: int = PADDING) -> Tensor:
    """[B, padding + T], ones at the right end."""
    column = torch.arange(padding + problem.T)
    first = padding + problem.T - torch.tensor(problem.lengths)
    return (column >= first[:, None]).long()


def _right(problem: LayerProblem, padding: int = PADDING) -> Tensor:
    return _left(problem, padding).flip(1)


def _padded(problem: LayerProblem, mask: Tensor, said: str, **schedule: object) -> LayerCase:
    """Values that are not 0 in the padding: the mask has to remove them."""
    layout = TokenLayout.beside_padding(mask, problem.T)
    padding = 3 * problem.normal("padding", *mask.shape)
    hidden = layout.there(problem.inputs().hidden, padding)
    call = replace(LayerCall(hidden, attention_mask=mask), **schedule)  # pyright: ignore[reportArgumentType]
    return LayerCase(call, layout, said, replace(call, attention_mask=None))


def _left_padded(problem: LayerProblem) -> Iterator[LayerCase]:
    yield _padded(problem, _left(problem), "with padding on the left")


def _right_padded(problem: LayerProblem) -> Iterator[LayerCase]:
    case = _padded(problem, _right(problem), "with padding on the right")
    # What comes later changes nothing: without the mask it is right as well.
    yield replace(case, control=None)


def _left_decoded(problem: LayerProblem) -> Iterator[LayerCase]:
    mask = _left(problem)
    last = mask.shape[1]
    cuts = tuple(range(last - min(2, problem.T - 1), last))
    yield _padded(
        problem, mask, "a prefill with padding on the left, then decoded", cached=True, cuts=cuts
    )


def _left_cut(problem: LayerProblem) -> Iterator[LayerCase]:
    """The second part begins with padding in the shorter rows."""
    mask = _left(problem, 0)
    cut = problem.T - problem.lengths[1] - 1
    if cut > 0:
        said = f"cut at {cut}, within the padding of a row"
        yield _padded(problem, mask, said, cached=True, cuts=(cut,))


def _right_continued(problem: LayerProblem) -> Iterator[LayerCase]:
    """Each row continues from its own last token."""
    # Half of each sequence, padded on the right, and the rest of the shortest one at most.
    halves = torch.tensor([max(1, length // 2) for length in problem.lengths])
    rest = min(STEPS, int((torch.tensor([problem.T] * problem.B) - halves).min()))
    width = int(halves.max()) + PADDING
    first = (torch.arange(width) < halves[:, None]).long()
    mask = torch.cat((first, first.new_ones(problem.B, rest)), 1)
    cuts = tuple(range(width, width + rest))
    said = "a prefill with padding on the right, then token by token"
    yield _padded(problem, mask, said, cached=True, cuts=cuts)


def _pack(problem: LayerProblem) -> LayerCase:
    layout = TokenLayout.packed(problem.lengths, problem.T)
    call = LayerCall(
        layout.there(problem.inputs().hidden),
        cu_seqlens=torch.tensor(offsets(problem.lengths), dtype=torch.int64),
    )
    return LayerCase(call, layout, "in a pack", replace(call, cu_seqlens=None))


def _packed(problem: LayerProblem) -> Iterator[LayerCase]:
    yield _pack(problem)


def _later(problem: LayerProblem) -> Iterator[LayerCase]:
    call, until = problem.inputs(), (problem.T + 1) // 2
    hidden = call.hidden.clone()
    hidden[:, until:] = 1 - 3 * hidden[:, until:]
    layout = TokenLayout.in_place(problem.B, problem.T, until=until)
    yield LayerCase(replace(call, hidden=hidden), layout, "before tokens that were replaced")


CACHE: Final = ("cache",)
MASK: Final = ("attention_mask",)
LAWS: Final[dict[str, LayerLaw]] = {
    law.name: law
    for law in (
        LayerLaw(
            "batch",
            "sequences of a batch give what each gives alone",
            "rows that share a state, a scratch buffer or a norm (C23)",
            (),
            _together,
            _several_rows,
        ),
        LayerLaw(
            "later-tokens",
            "tokens replaced change nothing before them",
            "windows and chunks that reach ahead (C5)",
            (),
            _later,
            _several_tokens,
        ),
        LayerLaw(
            "cache-wanted",
            "a call that returns a cache gives what a call without one gives",
            "a form of its own for cached prefills",
            CACHE,
            _cached,
        ),
        LayerLaw(
            "cut",
            "cut anywhere, with the cache passed on, a sequence gives what it gives whole",
            "states of the convolution or the recurrence lost, shifted or cast (C6, C9, D27, D34)",
            CACHE,
            _cut,
            _several_tokens,
        ),
        LayerLaw(
            "decode",
            "a prefill and then single tokens give what the whole sequence gives",
            "the decode form, positions, states in another layout (C10, D27, N8)",
            CACHE,
            _decoded,
            _several_tokens,
        ),
        LayerLaw(
            "fresh-cache",
            "a sequence without a cache gives the same after another sequence",
            "states kept in the layer, slots that are not cleared (C15)",
            CACHE,
            _fresh,
        ),
        LayerLaw(
            "reset-cache",
            "a cache that was used and reset is an empty one",
            "a reset that leaves the convolution, the recurrence or the position (C15, L9)",
            (*CACHE, "reset"),
            _reset,
        ),
        LayerLaw(
            "copied-cache",
            "a continuation from a copy of a cache does not change the cache",
            "states that live in the layer, or that a copy shares (L9)",
            CACHE,
            _branched,
            _several_tokens,
        ),
        LayerLaw(
            "reordered-cache",
            "rows of a cache that are reordered continue their own sequences",
            "states indexed by row, one of several states left in place (L13)",
            (*CACHE, "reorder"),
            _reordered,
            _several_rows,
        ),
        LayerLaw(
            "mask-of-ones",
            "a mask of ones gives what no mask gives",
            "a form of its own for masked calls",
            MASK,
            _ones,
        ),
        LayerLaw(
            "left-padding",
            "sequences padded on the left give what each gives alone",
            "padding that enters convolution and state, masks dropped for one row (L1, L10, C21)",
            MASK,
            _left_padded,
        ),
        LayerLaw(
            "right-padding",
            "sequences padded on the right give what each gives alone",
            "masks that shift tokens",
            MASK,
            _right_padded,
        ),
        LayerLaw(
            "left-padding-decode",
            "sequences padded on the left are decoded as each is alone",
            "padding in the cache (L2, L10)",
            (*MASK, *CACHE),
            _left_decoded,
            _several_tokens,
        ),
        LayerLaw(
            "left-padding-cut",
            "a prompt padded on the left may be cut within the padding of a row",
            "masks that are skipped once there is a cache (L2)",
            (*MASK, *CACHE),
            _left_cut,
            _several_rows,
        ),
        LayerLaw(
            "right-padding-decode",
            "sequences padded on the right are decoded as each is alone",
            "a gate that decays at padding, padding in the cache of the convolution (L3)",
            (*MASK, *CACHE),
            _right_continued,
            _several_tokens,
        ),
        LayerLaw(
            "pack",
            "sequences of a pack give what each gives alone",
            "offsets ignored by the convolution, the recurrence or both (C4, C23, V1)",
            ("cu_seqlens",),
            _packed,
            _several_rows,
        ),
        LayerLaw(
            "pack-gradient",
            "the gradient of a pack is that of each sequence alone",
            "backward kernels that cross offsets (D18)",
            ("cu_seqlens",),
            _packed,
            _several_rows,
            of_gradients=True,
        ),
        LayerLaw(
            "left-padding-gradient",
            "padding has gradient 0, tokens beside it that of each sequence alone",
            "padding that enters the loss, 0 / 0 at masked rows (L11)",
            MASK,
            _left_padded,
            of_gradients=True,
        ),
        LayerLaw(
            "batch-gradient",
            "the gradient of a batch is that of each sequence alone",
            "sums over rows that belong to one",
            (),
            _together,
            _several_rows,
            of_gradients=True,
        ),
        LayerLaw(
            "repeat",
            "the same call gives the same bits",
            "uninitialised memory, sums by atomic additions that are not declared",
            (),
            _together,
        ),
    )
}
"""By name."""
