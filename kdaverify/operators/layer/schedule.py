"""Runs a call's schedule on a layer: prefill, continuations; caches reset or reordered."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from kdaverify.operators.layer.call import LayerCall
from oracles.signature import Role

REFUSED = "the layer refuses"
"""Begins the message of a call that the layer declines."""


class RefusedError(RuntimeError):
    """A layer declined an option of a call, which it may."""


@final
@dataclass(frozen=True)
class ScheduledLayer:
    """A layer, and how its caches are handled.

    Args:
        function: (hidden, *, cache, attention_mask, cu_seqlens, use_cache) -> (out, cache), or out
            where no cache is wanted; of the keywords it gets `names`.
        names: of its parameters.
        reset: empties a cache for a new sequence, in place or by returning another.
        reorder: permutes the rows of a cache, likewise.
    """

    function: Callable[..., Any]
    names: frozenset[str]
    reset: Callable[[Any], Any] | None = None
    reorder: Callable[[Any, Tensor], Any] | None = None

    def run(self, call: LayerCall) -> Tensor:
        """The out of every token of a call, in the rows of its hidden."""
        # A layer chooses its form by whether autograd records: inference has none.
        with torch.set_grad_enabled(call.hidden.requires_grad):
            return self._parts(call) if call.cached else self._called(call, None)[0]

    def _parts(self, call: LayerCall) -> Tensor:
        cache, others, found = self._prepared(call), None, list[Tensor]()
        orders = [torch.tensor(rows) for rows in (call.order, call.then) if rows]
        order = torch.arange(len(call.hidden))
        for rows in orders:
            order = order[rows]
        for turn, part in enumerate(_parts_of(call)):
            for rows in orders if turn == 1 and not call.severed else ():
                cache = self._changed(self.reorder, cache, rows)
            if turn == 1 and call.branched:
                self._called(_other(part), copy.deepcopy(cache))
            rows = _tokens(part, lambda x: x[order]) if turn else part
            if turn == len(call.cuts):
                rows = replace(rows, cached=not call.unwanted)
            out, cache = self._called(rows, None if call.severed and call.is_plain else cache)
            found.append(out[order.argsort()] if turn else out)
            if call.alive:
                _, others = self._called(_other(part), others)
        return torch.cat(found, 1)

    def _prepared(self, call: LayerCall) -> Any:
        """The cache that a call begins with."""
        if not call.before:
            return None
        _, used = self._called(_other(call), None)
        if call.severed:
            return used
        return None if call.before == "sequence" else self._changed(self.reset, used)

    def _called(self, call: LayerCall, cache: Any) -> tuple[Tensor, Any]:
        keywords: dict[str, Any] = {
            "cache": cache,
            "attention_mask": call.attention_mask,
            "cu_seqlens": call.cu_seqlens,
            "use_cache": call.cached,
        }
        given = {name: value for name, value in keywords.items() if name in self.names}
        try:
            returned = self.function(call.hidden, **given)
        except NotImplementedError as error:
            raise RefusedError(f"{REFUSED}: {error}") from error
        out, after = returned if isinstance(returned, tuple) else (returned, None)
        if call.cached and after is None:
            raise ValueError(
                "wanted (out, cache), got no cache; return the cache that the next part continues"
                " from, or leave cache out of the signature"
            )
        return out, after

    def _changed(self, change: Callable[..., Any] | None, cache: Any, *arguments: Any) -> Any:
        """A cache after an operation that works in place, or returns another."""
        assert change is not None
        after = change(cache, *arguments)
        return cache if after is None else after


def _tokens(call: LayerCall, change: Callable[[Tensor], Tensor]) -> LayerCall:
    """A call with hidden and mask changed alike."""
    return call.mapped(lambda x: change(x).contiguous(), Role.TOKEN)


def _parts_of(call: LayerCall) -> Iterator[LayerCall]:
    for first, end in zip((0, *call.cuts), (*call.cuts, call.hidden.shape[1]), strict=True):
        yield _tokens(call, lambda x, span=slice(first, end): x[:, span])


def _other(call: LayerCall) -> LayerCall:
    """Another sequence of the same shape: the tokens backwards, negated and larger."""
    return replace(call, hidden=-2 * call.hidden.flip(1))
