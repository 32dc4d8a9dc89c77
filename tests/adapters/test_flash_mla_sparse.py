"""FlashMLA over lists of slots: what its library is given, here by a stand-in that takes what
the library takes, and computes with other code.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kdaverify.adapters import find, flash_mla_sparse
from kdaverify.adapters.base import Adapter
from kdaverify.checks.outcome import outcomes
from kdaverify.operators.attention.sparse_problem import SparseProblem

PROBLEM = SparseProblem(dtype="bf16", B=2, s_q=3, H=5, pages=3, topk=70, lists="empty", h_kv=5)
NAMES = (
    "flash_mla-sparse-decode",
    "flash_mla-sparse-prefill",
    "flash_mla-sparse-prefill-few-heads",
)


def _library(name: str, *given: Any) -> Any:
    if name == "sparse_decode_fwd":
        q, cache, indices, lengths, sink, *absent, d_v, scale, out, batch_invariant = given
        assert (lengths, *absent) == (None,) * 6
        assert out is None
        assert batch_invariant is False
        assert (q.shape[2] in (64, 128), indices.shape[2] % 64) == (True, 0)
        assert (cache.dtype, cache.shape[1:]) == (torch.uint8, (64, 1, 656))
        found: Any = find("eager-sparse-fp8")
        of_heads = {"d_v": d_v, "softmax_scale": scale, "sink": _of_library(sink, q.shape[2])}
        o, lse = found(q, cache, indices, topk_length=None, **of_heads)
        return o, _plus(lse), None, None
    assert name == "sparse_prefill_fwd"
    q, kv, indices, scale, d_v, sink, lengths, out = given
    assert out is None
    assert (q.ndim, q.shape[1] in (8, 16, 32, 64, 128)) == (3, True)
    assert (kv.ndim, kv.shape[1:], indices.shape[:2]) == (3, (1, 576), (len(q), 1))
    assert indices.shape[2] % 128 == 0
    assert lengths is None or lengths.shape == (len(q),)
    found = find("eager-sparse-attention")
    of_tokens = {"topk_length": lengths, "sink": _of_library(sink, q.shape[1])}
    o, lse = found(q[:, None], kv[:, None], indices, d_v=d_v, softmax_scale=scale, **of_tokens)
    return o[:, 0], lse[..., 0], _plus(lse[..., 0])


def _of_library(sink: Tensor | None, heads: int) -> Tensor | None:
    """As its checks take one: contiguous fp32, one a head."""
    if sink is not None:
        assert (sink.dtype, sink.shape) == (torch.float32, (heads,))
        assert sink.is_contiguous()
    return sink


def _plus(lse: Tensor) -> Tensor:
    return lse.masked_fill(torch.isneginf(lse), torch.inf)


def _fitted(name: str) -> tuple[Any, SparseProblem]:
    adapter: Any = find(name)
    return adapter, adapter.operator.within(adapter, PROBLEM)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_tested_on_the_one_shape_that_it_is_compiled_for(name: str) -> None:
    adapter, fitted = _fitted(name)
    assert (fitted.d_k, fitted.d_v, fitted.h_kv) == (576, 512, 1)
    assert adapter.supports(fitted) is None
    assert "there is no kernel of more" in adapter.supports(fitted.replace(H=129))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "changed",
    [{}, {"topk_lengths": (69, 3)}, {"sink": "level"}, {"sink": "mixed", "lists": "holes"}],
    ids=["plain", "lengths", "sink", "sinks of all kinds"],
)
def test_the_library_is_given_what_it_takes(
    monkeypatch: pytest.MonkeyPatch, name: str, changed: dict[str, Any]
) -> None:
    monkeypatch.setattr(flash_mla_sparse, "called", _library)
    adapter, fitted = _fitted(name)
    problem = adapter.operator.within(adapter, fitted.replace(**changed))
    call = problem.inputs()

    def answered() -> dict[str, Tensor]:
        operator, takes = adapter.operator, adapter.takes
        o, lse = operator.invoked(adapter, call, takes, {})
        named = {"o": o, "lse": lse}
        return {n: operator.canonical(n, x, call, takes) for n, x in named.items()}

    found = outcomes(adapter, call, answered)
    assert [one.message for one in found if one.status.rejects] == []


@pytest.mark.parametrize("sink", [None, "mixed"])
@pytest.mark.parametrize("name", NAMES)
def test_it_is_within_tolerance_on_a_gpu(name: str, sink: str | None) -> None:
    adapter: Adapter = find(name)
    if missing := adapter.missing():
        pytest.skip(missing)
    call: Any = adapter.operator.fitted(
        adapter, PROBLEM.replace(sink=sink), backward=False
    ).inputs()
    found = outcomes(adapter, call, lambda: adapter.forward(call))
    assert [one.message for one in found if one.status.rejects] == []
