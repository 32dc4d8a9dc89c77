"""Laws of whole layers: what the same tokens give in another schedule, layout or batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.checks.laws.law import Law, of_any, stated
from kdaverify.operators.layer.call import LayerCall
from kdaverify.operators.layer.judging import LayerCase, compared, evenly, repeated, wide
from kdaverify.operators.layer.layout import TokenLayout
from kdaverify.operators.layer.problem import LayerProblem
from kdaverify.operators.layer.tolerance import WIDE

STEPS: Final = 6
"""Tokens that are decoded one by one after a prefill."""
CUTS: Final = (1, 2, 3, 4, 63, 64, 65)
"""Within the window of a convolution, and round the chunk of a recurrence."""
PADDING: Final = 5
"""Columns of padding that every row has."""
PAST: Final = 256
"""Tokens that caches have room for before they grow: 256, or a power of two below."""
FEW: Final = 8
"""Tokens of the rows that are shorter there."""
IDLE: Final = 3
"""Columns of a call in which a row has no token: as many as a convolution keeps."""
SHORT: Final = (2, 1, 1000, 3, 1000)
"""Lengths of a pack: sequences shorter than the window of a convolution have others behind them.
The last of a pack leaks into none, and a port that kept its window was accepted."""
MOST: Final = 33
"""Tokens that float64 is tested on: it is one cast, at every length."""
CACHE: Final = ("cache",)
MASK: Final = ("attention_mask",)
OFFSETS: Final = ("cu_seqlens",)
LAWS: Final[dict[str, Law]] = {}
"""By name."""
Cases = Iterator[LayerCase]
Made = Callable[[LayerProblem], Cases]


def _law(
    name: str,
    exists_for: str,
    needs: tuple[str, ...] = (),
    untestable: Callable[[Any], str | None] = of_any,
    *,
    backward: bool = False,
) -> Callable[[Made], Made]:
    """The law that a function's docstring states, tested on the cases that the function makes."""

    def stating(cases: Made) -> Made:
        LAWS[name] = Law(
            name,
            stated(cases),
            "reference, whole layers",
            exists_for,
            compared(cases, "dhidden" if backward else "out", needs),
            untestable=untestable,
            backward=backward,
            needs=needs,
        )
        return cases

    return stating


def _tokens(problem: LayerProblem) -> str | None:
    return None if problem.T > 1 else "it needs two tokens"


def _rows(problem: LayerProblem) -> str | None:
    return _tokens(problem) if problem.B > 1 else "it needs two sequences"


def _three_rows(problem: LayerProblem) -> str | None:
    """Of two rows there is one order beside their own, which is its own inverse."""
    return _tokens(problem) if problem.B > 2 else "it needs three sequences"


def _long(problem: LayerProblem) -> str | None:
    return _past(problem.T) or _rows(problem)


def _past(tokens: int) -> str | None:
    return None if tokens > PAST else f"it needs more than {PAST} tokens"


def _in_place(problem: LayerProblem, said: str, **schedule: Any) -> LayerCase:
    """The tokens where they are."""
    ones = torch.ones(problem.B, problem.T, dtype=torch.int64)
    call = replace(problem.inputs(), **schedule)
    return LayerCase(call, TokenLayout.masked(ones, problem.T), said)


def _in_parts(problem: LayerProblem, said: str, *cuts: int, **schedule: Any) -> LayerCase:
    """The same with a cache, and a control that leaves out what the schedule does to it."""
    case = _in_place(problem, said, cached=True, cuts=cuts, **schedule)
    return replace(case, control=replace(case.call, severed=True, branched=False, alive=False))


def _halfway(problem: LayerProblem, said: str, **schedule: Any) -> LayerCase:
    return _in_parts(problem, said, *[problem.T // 2][: problem.T - 1], **schedule)


def _left(problem: LayerProblem, padding: int = PADDING) -> Tensor:
    """[B, padding + T], ones at the right end."""
    first = padding + problem.T - torch.tensor(problem.lengths)
    return (torch.arange(padding + problem.T) >= first[:, None]).long()


def _padded(problem: LayerProblem, mask: Tensor, said: str, *cuts: int) -> LayerCase:
    """Values that are not 0 in the padding: the mask has to remove them."""
    layout = TokenLayout.masked(mask, problem.T)
    padding = 3 * problem.normal("padding", *mask.shape)
    hidden = layout.there(problem.inputs().hidden, padding)
    call = LayerCall(hidden, mask, cached=bool(cuts), cuts=cuts)
    return LayerCase(call, layout, said, replace(call, attention_mask=None))


@_law("batch", "rows that share a state, a scratch buffer or a norm (C23)", (), _rows)
def _together(problem: LayerProblem) -> Cases:
    """Sequences of a batch give what each gives alone."""
    yield _in_place(problem, "in one batch")


@_law("later-tokens", "windows and chunks that reach ahead (C5)", (), _tokens)
def _later(problem: LayerProblem) -> Cases:
    """Tokens replaced change nothing before them."""
    seen = (torch.arange(problem.T) < (problem.T + 1) // 2).expand(problem.B, -1)
    layout, hidden = TokenLayout.masked(seen, problem.T), problem.inputs().hidden
    call = LayerCall(layout.there(hidden, 1 - 3 * hidden))
    yield LayerCase(call, layout, "before tokens that were replaced")


@_law("cache-wanted", "a form of its own for cached prefills", CACHE)
def _cache_wanted(problem: LayerProblem) -> Cases:
    """A call that returns a cache gives what a call without one gives."""
    yield _in_place(problem, "where a cache is wanted", cached=True)


@_law(
    "cut",
    "states of the convolution or the recurrence lost, shifted or cast (C6, C9, D27, D34)",
    CACHE,
    _tokens,
)
def _cut(problem: LayerProblem) -> Cases:
    """Cut anywhere, with the cache passed on, a sequence gives what it gives whole."""
    places = sorted({*CUTS, problem.T // 2, problem.T - 1} & {*range(1, problem.T)})
    thirds = [(problem.T // 3, 2 * problem.T // 3)] if problem.T > 5 else []
    for turn, cuts in enumerate([*((place,) for place in places), *thirds]):
        case = _in_parts(problem, f"cut at {' and '.join(map(str, cuts))}", *cuts)
        # One negative control: those of the other cuts differ in their place alone, and
        # interpreted kernels take a quarter of a minute for them.
        yield replace(case, control=None) if turn else case


@_law(
    "decode", "the decode form, positions, states in another layout (C10, D27, N8)", CACHE, _tokens
)
def _decoded(problem: LayerProblem) -> Cases:
    """A prefill and then single tokens give what the whole sequence gives."""
    first = max(1, problem.T - STEPS)
    said = f"a prefill of {first}, then token by token"
    yield _in_parts(problem, said, *range(first, problem.T))


@_law(
    "last-call",
    "a cache that is read only where another one is wanted",
    (*CACHE, "use_cache"),
    _tokens,
)
def _unwanted(problem: LayerProblem) -> Cases:
    """The last part of a sequence, with a cache but use_cache=False, continues from the cache."""
    yield _halfway(problem, "with use_cache=False behind the cut", unwanted=True)


@_law("fresh-cache", "states kept in the layer, slots that are not cleared (C15)", CACHE)
def _fresh(problem: LayerProblem) -> Cases:
    """A sequence without a cache gives the same after another sequence."""
    yield _halfway(problem, "after another sequence", before="sequence")


@_law(
    "reset-cache",
    "a reset that leaves the convolution, the recurrence or the position (C15, L9)",
    (*CACHE, "reset"),
)
def _reset(problem: LayerProblem) -> Cases:
    """A cache that was used and reset is an empty one."""
    yield _halfway(problem, "with a cache that was used and reset", before="reset")


@_law("copied-cache", "states that live in the layer, or that a copy shares (L9)", CACHE, _tokens)
def _branched(problem: LayerProblem) -> Cases:
    """A continuation from a copy of a cache does not change the cache."""
    yield _halfway(problem, "after another continuation from a copy of the cache", branched=True)


@_law(
    "reordered-cache",
    "states indexed by row, one of several states left in place (L13)",
    (*CACHE, "reorder"),
    _rows,
)
def _reordered(problem: LayerProblem) -> Cases:
    """Rows of a cache that are reordered continue their own sequences."""
    order = tuple(reversed(range(problem.B)))
    yield _halfway(problem, "with the rows reversed from the cut on", order=order)


@_law("living-caches", "one buffer for the caches of all conversations", CACHE, _tokens)
def _alive(problem: LayerProblem) -> Cases:
    """Two sequences with a cache each, called in turns, continue their own."""
    yield _halfway(problem, "while another sequence has a cache", alive=True)


@_law(
    "reordered-twice",
    "an order that waits for the next call, where a second one replaces it",
    (*CACHE, "reorder"),
    _three_rows,
)
def _reordered_twice(problem: LayerProblem) -> Cases:
    """Rows that are reordered twice between two calls are in both orders."""
    turned = (*range(1, problem.B), 0)
    then = tuple(reversed(range(problem.B)))
    yield _halfway(problem, "with the rows turned, then reversed", order=turned, then=then)


@_law("grown-cache", "a cache that is moved where it grows", CACHE, _long)
def _grown(problem: LayerProblem) -> Cases:
    """A cache of 256 tokens grows in a later call, and with single tokens."""
    cuts = (PAST // 2, *range(PAST - 2, PAST + 2))
    yield _in_parts(problem, f"cut at {', '.join(map(str, cuts))}", *cuts)


@_law("grown-rows", "a cache that is moved by the tokens of one row", (*MASK, *CACHE), _long)
def _grown_rows(problem: LayerProblem) -> Cases:
    """A cache of 256 tokens grows where its rows have different numbers of tokens."""
    first = PAST - 3
    mask = torch.ones(problem.B, problem.T, dtype=torch.int64)
    mask[::2, FEW:first] = 0
    yield _padded(problem, mask, f"cut at {first}, of which a row has {FEW} tokens", first)


@_law("mask-of-ones", "a form of its own for masked calls", MASK)
def _ones(problem: LayerProblem) -> Cases:
    """A mask of ones gives what no mask gives."""
    mask = torch.ones(problem.B, problem.T, dtype=torch.int64)
    yield _in_place(problem, "with a mask of ones", attention_mask=mask)


@_law(
    "left-padding",
    "padding that enters convolution and state, masks dropped for one row (L1, L10, C21)",
    MASK,
)
def _left_padded(problem: LayerProblem) -> Cases:
    """Sequences padded on the left give what each gives alone."""
    yield _padded(problem, _left(problem), "with padding on the left")


@_law("right-padding", "masks that shift tokens", MASK)
def _right_padded(problem: LayerProblem) -> Cases:
    """Sequences padded on the right give what each gives alone."""
    case = _padded(problem, _left(problem).flip(1), "with padding on the right")
    # What comes later changes nothing: without the mask it is right as well.
    yield replace(case, control=None)


@_law("left-padding-decode", "padding in the cache (L2, L10)", (*MASK, *CACHE), _tokens)
def _left_decoded(problem: LayerProblem) -> Cases:
    """Sequences padded on the left are decoded as each is alone."""
    mask = _left(problem)
    cuts = range(mask.shape[1] - min(2, problem.T - 1), mask.shape[1])
    yield _padded(problem, mask, "a prefill with padding on the left, then decoded", *cuts)


@_law("left-padding-cut", "masks skipped once there is a cache (L2)", (*MASK, *CACHE), _rows)
def _left_cut(problem: LayerProblem) -> Cases:
    """A prompt padded on the left may be cut within the padding of a row."""
    cut = problem.T - problem.lengths[1] - 1
    if cut > 0:
        yield _padded(problem, _left(problem, 0), f"cut at {cut}, within the padding of a row", cut)


@_law(
    "right-padding-decode",
    "a gate that decays at padding, padding in the cache of the convolution (L3)",
    (*MASK, *CACHE),
    _tokens,
)
def _right_continued(problem: LayerProblem) -> Cases:
    """Sequences padded on the right are decoded as each is alone."""
    # Half of each sequence, padded on the right, and the rest of the shortest one at most.
    halves = torch.tensor([max(1, length // 2) for length in problem.lengths])
    rest, width = min(STEPS, problem.T - int(halves.max())), int(halves.max()) + PADDING
    first = (torch.arange(width) < halves[:, None]).long()
    mask = torch.cat((first, first.new_ones(problem.B, rest)), 1)
    said = "a prefill with padding on the right, then token by token"
    yield _padded(problem, mask, said, *range(width, width + rest))


@_law(
    "idle-rows",
    "window, state or position cleared where a row has no token in a call",
    (*MASK, *CACHE),
    _rows,
)
def _idle(problem: LayerProblem) -> Cases:
    """A row that is all padding in a call with a cache continues behind it as if not called."""
    first = problem.T // 2
    for width, busy in ((IDLE, 0), (1, 1)):
        if problem.T - first <= width:
            continue
        calls = torch.ones(problem.B, problem.T + width, dtype=torch.int64)
        tokens = torch.arange(problem.B) % 2 == busy
        calls[~tokens, first : first + width] = 0
        # Rows that had tokens there have as many fewer behind.
        calls[tokens, problem.T :] = 0
        said = f"where other rows alone have tokens in a call of {width}"
        yield _padded(problem, calls, said, first, first + width)


@_law("pack", "offsets ignored by convolution, recurrence or both (C4, C23, V1)", OFFSETS, _rows)
def _packed(problem: LayerProblem) -> Cases:
    """Sequences of a pack give what each gives alone."""
    short = tuple(min(SHORT[b % len(SHORT)], problem.T) for b in range(problem.B))
    packs = {
        "in a pack": problem.lengths,
        "in a pack, short ones before others": short,
        "in a pack of single tokens": (1,) * problem.B,
    }
    for said, lengths in packs.items():
        layout = TokenLayout.packed(lengths, problem.T)
        plain = LayerCall(layout.there(problem.inputs().hidden))
        offsets = torch.tensor((0, *lengths)).cumsum(0)
        yield LayerCase(replace(plain, cu_seqlens=offsets), layout, said, plain)


@_law("pack-gradient", "backward kernels that cross offsets (D18)", OFFSETS, _rows, backward=True)
def _pack_gradient(problem: LayerProblem) -> Cases:
    """The gradient of a pack is that of each sequence alone."""
    return _packed(problem)


@_law(
    "left-padding-gradient",
    "padding that enters the loss, 0 / 0 at masked rows (L11)",
    MASK,
    backward=True,
)
def _left_gradient(problem: LayerProblem) -> Cases:
    """Padding has gradient 0, tokens beside it that of each sequence alone."""
    return _left_padded(problem)


@_law("batch-gradient", "sums over rows that belong to one", (), _rows, backward=True)
def _batch_gradient(problem: LayerProblem) -> Cases:
    """The gradient of a batch is that of each sequence alone."""
    return _together(problem)


LAWS["float64"] = Law(
    "float64",
    "a change that only float64 has reaches out, in proportion",
    "reference, whole layers",
    "a reference='fp64' that is fp32 inside: laws then compare with its roundings",
    wide,
    untestable=lambda problem: None if problem.T < MOST else "shorter ones show it as well",
    needs=(WIDE,),
)
LAWS["late-tokens"] = Law(
    "late-tokens",
    f"tokens past {PAST} have errors like those of the tokens before",
    "reference, whole layers",
    "positions, offsets or counts of tokens in bf16, which has whole numbers up to 256",
    evenly,
    untestable=lambda problem: _past(problem.T),
    needs=(WIDE,),
)
LAWS["repeat"] = Law(
    "repeat",
    "the same call gives the same bits",
    "reference, whole layers",
    "uninitialised memory, sums by atomic additions that are not declared",
    repeated,
)
