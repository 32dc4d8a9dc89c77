"""Small problems of attention, each of a size that no other problem has.

Pages of any number of tokens, keys wider and narrower than values by more than a tile, requests
whose length blocks and splits divide, and their neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from kdaverify.adapters.base import Adapter, is_slow
from kdaverify.operators.attention.problem import AttentionProblem, MlaDecodeProblem, SoftmaxProblem
from kdaverify.operators.attention.sparse_problem import SparseProblem

PRIMES: Final = tuple(n for n in range(2, 100) if all(n % m for m in range(2, n)))
PAGES: Final = (*PRIMES, 6, 9, 12, 20, 40, 48, 56, 80, 96, 100, 112, 144, 192, 256, 528)
"""Tokens of a page. Of the primes below 100 one in five has a reciprocal whose product with it is
not 1 in fp32, and every remainder of a division by a power of two is there."""
TOKENS: Final = 640
"""Of the longest request: pages of up to 64 tokens begin in ten places, larger ones in three."""
APART: Final = (72, 80, 96, 128, 136, 192, 256)
"""Columns of keys beyond those of values. One tile of 64 serves all that models had for long."""
WIDE: Final = ((160, 64), (192, 64), (192, 128), (256, 64), (256, 128), (384, 256), (640, 512))
"""Keys and values of compiled widths that are as far apart."""
BLOCKS: Final = (48, 64, 80, 112)
"""Keys of blocks and splits: up to 1,024 these divide every length that multiples of 16 up to 128,
and the usual splits of 192 to 512 keys, divide together."""
LONGEST: Final = 1024
SMALL: Final[dict[str, Any]] = {"H": 2, "d_k": 6, "d_v": 4}
KEYS: Final[dict[str, Any]] = {"H": 1, "logits": "low", "causal": False}
"""All logits are near -1,000: an empty part that counts has all weight."""
MOST: Final = 0.9
"""Seconds of exact values that one batch of many requests may cost: kernels of wide rows alone have
fewer lengths."""
SLOW: Final = 8
FEWER: Final = 512
"""A kernel that is interpreted or compiled for every shape has one length of so many, up to so many
keys: an interpreter takes minutes for more. Gradients have as few."""
BORDERS: Final[dict[str, Any]] = {"H": 3, "h_kv": 1, "causal": True}
"""Heads of a group that divide no tile: rows of queries and heads end within a query. A port whose
bound of keys was that of the query before was accepted: it shows where the bound ends a block."""
ROWS: Final = 45
"""Queries: three heads of them are two tiles of 64 rows, and a rest."""
OFFSETS: Final = 64
"""Keys more than queries, up to so many: where the border of a tile of queries meets a block."""
Problem = TypeVar("Problem", bound=SoftmaxProblem)


def lengths(*ends: int) -> tuple[int, ...]:
    """Multiples of all blocks, and of 256 up to twice the longest, with numbers beside each."""
    found = {n for size in BLOCKS for n in range(size, LONGEST + 1, size)}
    found |= {*range(256, 2 * LONGEST + 1, 256)}
    return tuple(sorted({n + end for n in found for end in ends}))


def _taken(adapter: Adapter, problems: Iterable[Problem]) -> list[Problem]:
    """Those in the domain as they are, each once."""
    operator = adapter.operator
    inside = (x for x in problems if operator.within(adapter, x) == x)
    return [*dict.fromkeys(x for x in inside if adapter.supports(x) is None)]


def _within(adapter: Adapter, problem: Problem) -> Problem:
    return adapter.operator.within(adapter, problem)


def _changed(base: Problem, fields: Mapping[str, Any]) -> list[Problem]:
    """The problem with other fields; none where its format has no such widths."""
    try:
        return [base.replace(**fields)]
    except ValueError:
        return []


def _with_widths(base: Problem, pairs: Iterable[tuple[int, int]]) -> list[Problem]:
    return [one for d_k, d_v in pairs for one in _changed(base, {"d_k": d_k, "d_v": d_v})]


def _latent_widths() -> list[tuple[int, int]]:
    """Of rows that are keys and values at once: as wide apart as can be."""
    return [*((8 * (1 + n % 3) + apart, 8 * (1 + n % 3)) for n, apart in enumerate(APART)), *WIDE]


def _dense_widths() -> list[tuple[int, int]]:
    pairs = _latent_widths()
    return [*pairs, *((d_v, d_k) for d_k, d_v in pairs)]


def _affordable(
    adapter: Adapter, made: Callable[[tuple[int, ...]], Problem], *, few: bool = False
) -> Problem:
    """The problem of as many lengths at once as are within the cost, or of the fewest."""
    if few or is_slow(adapter):
        return made(tuple(n for n in lengths(-1, 0, 1) if n <= FEWER)[::SLOW])
    exactly = lengths(0)
    tried = [made(some) for some in (lengths(-1, 0, 1), exactly, exactly[::4])]
    return next((x for x in tried if adapter.operator.cost(x) <= MOST), tried[-1])


def decode_in_turn(adapter: Adapter, dtype: str) -> list[MlaDecodeProblem]:
    """One batch of requests of many lengths, widths, and pages."""
    start = MlaDecodeProblem.model_validate({"dtype": dtype, "k_lengths": (TOKENS + 1,), **SMALL})
    one = _within(adapter, start)
    pages = (one.replace(page=n, k_lengths=(max(TOKENS, 3 * n) + 1, n, n - 1)) for n in PAGES)
    few = _within(adapter, start.replace(k_lengths=(70, 0, 3), s_q=2))
    keys = _within(adapter, start.replace(**KEYS))
    batch = _affordable(adapter, lambda found: keys.replace(k_lengths=found))
    # the batch first: of few problems it is one
    return _taken(adapter, [batch, *_with_widths(few, _latent_widths()), *pages])


def lists_in_turn(adapter: Adapter, dtype: str, *, backward: bool) -> list[SparseProblem]:
    """The same of lists, which are one after another where only whole ones count."""
    fields = {"dtype": dtype, "B": 2, **SMALL, "topk": 70, "pages": 6}
    start = SparseProblem.model_validate(fields)
    one, keys = _within(adapter, start), _within(adapter, start.replace(**KEYS))
    pages = [one.replace(page=n, pages=-(-TOKENS // n) + 2) for n in PAGES]
    if _within(adapter, keys.replace(topk_lengths=(0, 1))).topk_lengths is None:
        found = [_listed(keys, (n,)).replace(topk_lengths=None) for n in lengths(0)]
    else:
        found = [_affordable(adapter, lambda some: _listed(keys, some))]
    widths = _with_widths(one, _latent_widths())
    return _taken(adapter, [*found, *widths, *([] if backward else pages)])


def _listed(keys: SparseProblem, found: tuple[int, ...]) -> SparseProblem:
    most = max(found)
    pages = -(-2 * most // keys.page)
    return keys.replace(B=len(found), topk=most, topk_lengths=found, pages=pages)


def dense_in_turn(adapter: Adapter, dtype: str, *, backward: bool) -> list[AttentionProblem]:
    """One pack of requests of many lengths, widths, and batches of each length."""
    start = AttentionProblem.model_validate({"dtype": dtype, "s_q": 3, "s_k": 20, **SMALL})
    few, keys = _within(adapter, start), _within(adapter, start.replace(s_q=1, **KEYS))
    pack = _affordable(adapter, lambda found: _packed(keys, found), few=backward)
    batches = [] if keys.packed else [keys.replace(s_k=n) for n in lengths(0)]
    widths = _with_widths(few, _dense_widths())
    return _taken(adapter, [pack, *widths, *batches, *_borders(adapter, start)])


def _borders(adapter: Adapter, start: AttentionProblem) -> list[AttentionProblem]:
    """The causal border at every place of a block, one pack of them all or a batch each."""
    apart = range(0, OFFSETS, SLOW if is_slow(adapter) else 1)
    one = _within(adapter, start.replace(**BORDERS, s_q=ROWS, s_k=ROWS))
    if not one.causal:
        return []
    keys = tuple(ROWS + n for n in apart)
    if one.packed:
        return [_packed(one, keys, queries=ROWS)]
    return [one.replace(s_k=n) for n in keys]


def _packed(
    keys: AttentionProblem, found: tuple[int, ...], *, queries: int = 1
) -> AttentionProblem:
    """So many queries for each length of keys."""
    fields = {"q_lengths": (queries,) * len(found), "k_lengths": found}
    return keys.replace(B=1, s_q=queries * len(found), s_k=sum(found), **fields)
