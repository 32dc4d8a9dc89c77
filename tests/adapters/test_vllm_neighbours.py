"""vLLM's short convolution is called over a pool of states, and its kernels conform in fp32."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from kdaverify.adapters import find, vllm_neighbours
from kdaverify.adapters.isolation.isolated import housed
from kdaverify.checks.properties import check
from kdaverify.limits import Limits

FORMATS: Final = {
    "vllm-short-conv": ("fp32",),  # others have products of 16 bits: a finding
    "vllm-gated-norm-kimi": ("fp32", "bf16", "fp16"),
    "vllm-gated-norm-qwen": ("fp32", "bf16", "fp16"),
    "vllm-gated-norm-mamba": ("fp32", "bf16", "fp16"),
}


def counting(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pool: Tensor,
    offsets: Tensor,
    *,
    cache_indices: Tensor,
    has_initial_state: Tensor,
    activation: str | None,
) -> Tensor:
    """Adds the last column of its state to every token, and keeps the last two columns it saw."""
    del weight, bias, activation
    y = torch.empty_like(x)
    for n, (begin, end) in enumerate(pairwise(offsets.tolist())):
        if begin < end:
            before = pool[cache_indices[n]] if has_initial_state[n] else x.new_zeros(len(x), 2)
            y[:, begin:end] = x[:, begin:end] + before[:, -1:]
            pool[cache_indices[n]] = torch.cat((before, x[:, begin:end]), 1)[:, -2:]
    return y


def stepping(
    x: Tensor, pool: Tensor, *_: object, conv_state_indices: Tensor, out: Tensor
) -> Tensor:
    pool[conv_state_indices] = torch.cat((pool[conv_state_indices], x[..., None]), 2)[..., 1:]
    return out.copy_(pool[conv_state_indices].sum(-1))


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(causal_conv1d_fn=counting, causal_conv1d_update=stepping)

    def watched(_: str, __: torch.dtype, call: Callable[[Any], Tensor]) -> Tensor:
        return call(module)

    monkeypatch.setattr(vllm_neighbours, "watched", watched)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("begun", [False, True])
def test_states_are_those_after_the_last_token_of_a_sequence(*, begun: bool) -> None:
    x = torch.arange(1.0, 6.0).view(1, 5, 1)
    state = torch.tensor([[10.0, 20.0], [30.0, 40.0], [50.0, 60.0]]).view(3, 1, 2)
    y, after = vllm_neighbours.SHORT_CONV(
        x,
        torch.ones(1, 3),
        None,
        initial_state=state if begun else None,
        cu_seqlens=torch.tensor([0, 1, 1, 5], dtype=torch.int32),
        activation=None,
    )
    wanted = [[20.0, 1.0], [30.0, 40.0], [4.0, 5.0]] if begun else [[0.0, 1.0], [0.0] * 2, [4, 5]]
    assert after.view(3, 2).tolist() == wanted
    assert y.flatten().tolist() == ([21, 62, 63, 64, 65] if begun else [1, 2, 3, 4, 5])


@pytest.mark.usefixtures("stand_in")
def test_a_batch_is_handed_over_as_a_pack() -> None:
    x = torch.arange(1.0, 7.0).view(2, 3, 1)
    words: dict[str, Any] = {"initial_state": None, "cu_seqlens": None, "activation": None}
    y, after = vllm_neighbours.SHORT_CONV(x, torch.ones(1, 3), None, **words)
    assert torch.equal(y, x)
    assert after.tolist() == [[[2.0, 3.0]], [[5.0, 6.0]]]


@pytest.mark.usefixtures("stand_in")
def test_a_step_leaves_its_input_and_its_state_as_they_are() -> None:
    x, state = torch.tensor([[[3.0]]]), torch.tensor([[[1.0, 2.0]]])
    y, after = vllm_neighbours.step(
        x, torch.ones(1, 3), None, initial_state=state, cu_seqlens=None, activation=""
    )
    assert (y.tolist(), after.tolist()) == ([[[5.0]]], [[[2.0, 3.0]]])
    assert (x.item(), state.tolist()) == (3.0, [[[1.0, 2.0]]])


@pytest.mark.whole_run
@pytest.mark.parametrize("name", FORMATS)
def test_an_ordinary_call_conforms(name: str) -> None:
    adapter = find(name)
    if why := adapter.missing():
        pytest.skip(why)
    judged = housed(adapter, name, limits=Limits())
    try:
        for dtype in FORMATS[name]:
            example: Any = adapter.operator.example()
            problem = adapter.operator.within(adapter, example.replace(dtype=dtype))
            found = check("forward", judged, problem, {})
            assert {one.status.name for one in found} == {"PASS"}, found
    finally:
        judged.end()
