"""Faults of pages, indices and layouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.faults.attention.kernel import EVERY, AttentionPatch, KernelRequest, Paged, gathered
from kdaverify.faults.fault import Fault, Make

SEEN: Final = 64
"""Tokens after which an emulated kernel drops pages, instead of 4096."""
MODULUS: Final = 4
"""Pages, and rows of q, after which an emulated offset wraps, instead of 2^31 elements."""
TILES: Final = (128, 64, 32, 16)
"""Tokens of a tile, of which a page holds the widest that fits."""
Call = Callable[..., Any]


def _tokens(paged: Paged, request: int) -> tuple[Tensor, Tensor, Tensor]:
    """Token numbers, their physical pages and slots."""
    page, token = paged.cache.shape[1], torch.arange(paged.lengths[request])
    return token, paged.table[request, token // page].long(), token % page


def _contiguous_pages(paged: Paged, request: int) -> Tensor:
    token, _, slot = _tokens(paged, request)
    first = int(paged.table[request, 0]) if len(token) else 0
    page = (first + token // paged.cache.shape[1]).clamp(max=len(paged.cache) - 1)
    return paged.cache[page, slot]


def _middle_dropped(paged: Paged, request: int) -> Tensor:
    found, page = gathered(paged, request), paged.cache.shape[1]
    last = (len(found) - 1) // page * page
    return torch.cat((found[:SEEN], found[last:])) if page > 16 and last > SEEN else found


def _whole_tiles(paged: Paged, request: int) -> Tensor:
    """The number of tiles of a page is rounded down."""
    _, _, slot = _tokens(paged, request)
    page = paged.cache.shape[1]
    tile = next((width for width in TILES if width <= page), page)
    return gathered(paged, request)[slot < page // tile * tile]


def _slot_dropped(paged: Paged, request: int) -> Tensor:
    _, page, slot = _tokens(paged, request)
    return paged.cache[page, torch.zeros_like(slot)]


def _page_wrapped(paged: Paged, request: int) -> Tensor:
    _, page, slot = _tokens(paged, request)
    return paged.cache[page % MODULUS, slot]


def _query_wrapped(right: Call, given: dict[str, Any]) -> Any:
    q = given["q"]
    rows = torch.arange(q.shape[0] * q.shape[1]) % MODULUS
    return right(**{**given, "q": q.flatten(0, 1)[rows].view(q.shape)})


def _read_as_contiguous(right: Call, given: dict[str, Any]) -> Any:
    """The stride of a page is taken to be that of a dense cache."""
    cache = given["cache"]
    dense = torch.empty(cache.shape, device="meta").stride()
    read = cache if cache.is_contiguous() else torch.as_strided(cache, cache.shape, dense)
    return right(**{**given, "cache": read})


def lengths_of_the_first_call() -> AttentionPatch:
    """A captured call keeps the lengths of its first run for every later one of its shape."""
    captured = dict[tuple[int, ...], Tensor]()

    def decode(right: Call, given: dict[str, Any]) -> Any:
        lengths, shape = given["cache_seqlens"], tuple(given["q"].shape)
        kept = captured.setdefault(shape, lengths.clone())
        most = given["block_table"].shape[1] * given["cache"].shape[1]
        return right(**{**given, "cache_seqlens": torch.minimum(kept, lengths).clamp(max=most)})

    return AttentionPatch(decode=decode)


def _users_swapped(paged: Paged, request: int) -> Tensor:
    """The newest tokens of requests 2 i and 2 i + 1, i > 0, are each other's."""
    found, other = gathered(paged, request), request ^ 1
    if request < 2 or other >= len(paged.lengths) or not len(found) or not paged.lengths[other]:
        return found
    found = found.clone()
    found[-1] = gathered(paged, other)[-1]
    return found


def _pairs_in_physical_order(paged: Paged, request: int) -> Tensor:
    """Pages of a block of two are read by number, but masked in the table's order."""
    page, length = paged.cache.shape[1], paged.lengths[request]
    pages = paged.table[request, : -(-length // page)].long().clone()
    for at in range(0, len(pages) - 1, 2):
        pages[at : at + 2] = pages[at : at + 2].sort().values
    return paged.cache[pages].flatten(0, 1)[:length]


def _second_chunk_at_the_start(request: KernelRequest) -> KernelRequest:
    """The newest s_q keys were written at the positions of their chunk."""
    if request.s_k <= request.s_q:
        return request
    k, v = request.k.clone(), request.v.clone()
    for x in (k, v):
        x[:, : request.s_q] = x[:, -request.s_q :].clone()
    return replace(request, k=k, v=v)


def _slot_zero_written(right: Call, given: dict[str, Any]) -> Any:
    found = right(**given)
    given["cache"][0, 0] = 0
    return found


def _heads_folded(_: KernelRequest, o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """The upper heads are reduced with the weights of the first 16."""
    if len(o) <= 16:
        return o, lse
    return o[torch.arange(len(o)) % 16], lse


def _heads_padded(_: KernelRequest, o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Padded to 16 by repetition, and every r-th taken back."""
    H = len(o)
    if H >= 16 or 16 % H == 0:
        return o, lse
    back = (torch.arange(H) * (16 // H)) % H
    return o[back], lse[back]


def _packed_strides(right: Call, given: dict[str, Any]) -> Any:
    """Rows of dv go where those of a packed buffer of q, k and v would be."""
    q, v = given["q"], given["v"]
    shared = q.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()
    if not shared or not v.requires_grad:
        return right(**given)
    v.register_hook(_every_fourth)
    return right(**given)


def _every_fourth(dv: Tensor) -> Tensor:
    """The rows of dv that land where they belong; NaN in the others."""
    return dv.masked_fill((torch.arange(dv.shape[-3]) % 4 > 0)[:, None, None], torch.nan)


def _gathers(gather: Callable[[Paged, int], Tensor]) -> Make:
    return lambda _: AttentionPatch(gather=gather)


def _decodes(decode: Callable[[Call, dict[str, Any]], Any]) -> Make:
    return lambda _: AttentionPatch(decode=decode)


_fault = partial(Fault, dtypes=EVERY, stage="gather", operator="mla_decode", outputs=("o", "lse"))
FAULTS: Final[tuple[Fault, ...]] = (
    _fault(id="attention-G1", kind="B", title="scattered pages read as if contiguous",
           reference="flashinfer-ai/flashinfer#3219", trigger="a table that does not rise by 1",
           patch=_gathers(_contiguous_pages)),
    _fault(id="attention-G2", kind="B",
           title="only the first tokens and the final page are seen (emulated: 64 of pages above"
                 " 16)", reference="flashinfer-ai/flashinfer#4347",
           trigger="pages above 16 tokens, more than 64 tokens before the final page",
           patch=_gathers(_middle_dropped)),
    _fault(id="attention-G3", kind="B", title="the offset inside the page is dropped",
           reference="flashinfer-ai/flashinfer#810", trigger="pages of more than one token",
           patch=_gathers(_slot_dropped)),
    _fault(id="attention-G4", kind="F",
           title="page number times stride wraps (emulated: at 4 pages)",
           reference="vllm-project/vllm#47671", trigger="page numbers above 4",
           patch=_gathers(_page_wrapped)),
    _fault(id="attention-G5", kind="F", title="the row offset of q wraps (emulated: at 4 rows)",
           reference="sgl-project/sglang#20389", trigger="more than 4 query tokens",
           patch=_decodes(_query_wrapped)),
    _fault(id="attention-G6", kind="F",
           title="a view of a larger page pool is read as a dense cache",
           reference="ROCm/aiter#4427",
           trigger="a cache whose pages are farther apart than their size",
           patch=_decodes(_read_as_contiguous)),
    _fault(id="attention-G7", kind="E",
           title="a replayed call reads as many blocks as the captured one",
           reference="sgl-project/sglang#9675",
           trigger="two calls of one shape, the second with longer lengths",
           patch=lambda _: lengths_of_the_first_call()),
    _fault(id="attention-G8", kind="B",
           title="the newest tokens of pairs of requests are swapped, not of the first pair",
           reference="tenstorrent/tt-mlir#8479", trigger="four requests or more",
           patch=_gathers(_users_swapped)),
    _fault(id="attention-G9", kind="B", title="a block of two pages is read in physical order",
           reference="pytorch/pytorch#182593",
           trigger="a table that falls, a final page that is not full",
           patch=_gathers(_pairs_in_physical_order)),
    _fault(id="attention-G10", kind="B", title="the second chunk is written from position 0",
           reference="vllm-project/vllm#36580", operator="attention", trigger="s_q < s_k",
           patch=lambda _: AttentionPatch(request=_second_chunk_at_the_start)),
    _fault(id="attention-G11", kind="E", title="slot 0 of the cache is overwritten",
           reference="vllm-project/vllm#38719 (a)",
           trigger="any call: the cache compared before and after", outputs=("call",),
           patch=_decodes(_slot_zero_written)),
    _fault(id="attention-G12", stage="combine", kind="B",
           title="heads above 16 are reduced with the weights of the first 16",
           reference="vllm-project/vllm#46952, Tencent/hpc-ops#6",
           trigger="more than 16 heads", outputs=("o",),
           patch=lambda _: AttentionPatch(returned=_heads_folded)),
    _fault(id="attention-G13", kind="B",
           title="padded to 16 heads by repetition, and every r-th taken back",
           reference="vllm-project/vllm#51088", trigger="fewer than 16 heads, not a divisor of 16",
           patch=lambda _: AttentionPatch(returned=_heads_padded)),
    _fault(id="attention-G14", kind="B", title="dv is stored with the strides of a packed buffer",
           reference="Dao-AILab/flash-attention#2541", operator="attention",
           trigger="q, k and v are views of one buffer, gradients", outputs=("dv",), stage="dkv",
           patch=lambda _: AttentionPatch(attention=_packed_strides)),
    _fault(id="PAGE-tiles", kind="B",
           title="tokens behind the last full tile of a page are unread",
           reference="tile-ai/TileOPs#1787",
           trigger="pages above 16 tokens that are no multiple of the tile that they hold",
           patch=_gathers(_whole_tiles)),
)  # fmt: skip
