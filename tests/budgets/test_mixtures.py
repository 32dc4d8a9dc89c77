"""Kernels whose backward is another pipeline than their forward conform where they declare it, and
a fault in either half is rejected all the same.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import kdaverify as kv
from kdaverify.adapters.base import Adapter, AdapterError
from kdaverify.adapters.declaration import declared
from kdaverify.adapters.fitting import fitted
from kdaverify.adapters.kernel_adapter import adapted
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.contract_checks import ContractError
from kdaverify.budgets.contract_file import parse_contract, to_toml
from kdaverify.budgets.contract_name import spelled
from kdaverify.budgets.declared import declared_contracts
from kdaverify.checks.forward import forward
from kdaverify.checks.gradients import gradients
from kdaverify.checks.outcome import Outcome
from kdaverify.problems import Problem, panel
from tests.adapters.mixed_ports import NOTHING, Mixture, Planted, run

TYPES: dict[str, torch.dtype | None] = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": None,
}
MIXTURES = {
    "chunks, then token by token": ("chunk", "recurrent", "chunk64-{}", "recurrent-fp32"),
    "chunks, then autograd in fp32": ("chunk", "chunk", "chunk64-{}", "chunk64-fp32"),
    "token by token, then chunks": ("recurrent", "chunk", "recurrent-fp32", "chunk64-fp32"),
}
PROBLEMS = ("three-chunks", "grouped-heads", "pack-with-empties", "overwrite")
CASES = [
    *(("channel", dtype, name) for dtype in ("bf16", "fp32") for name in PROBLEMS),
    *((gates, "bf16", "grouped-heads") for gates in ("head", "none")),
    *((gates, "fp32", "pack-with-empties") for gates in ("head", "none")),
    ("channel", "fp16", "grouped-heads"),
]


def _port(
    name: str,
    gates: str,
    dtype: str,
    *,
    declares: bool = True,
    wrong: Planted = NOTHING,
) -> Adapter:
    there, back, contract, backward = MIXTURES[name]
    mixture = Mixture(there, back, TYPES[dtype] if there == "chunk" else None, wrong)

    def without_gates(
        q: Any, k: Any, v: Any, beta: Any, *, scale: Any, initial_state: Any, cu_seqlens: Any
    ) -> Any:
        return run(mixture, (q, k, v, None, beta), scale, states=initial_state, cuts=cu_seqlens)

    def gated(
        q: Any,
        k: Any,
        v: Any,
        g: Any,
        beta: Any,
        *,
        scale: Any,
        initial_state: Any,
        cu_seqlens: Any,
    ) -> Any:
        return run(mixture, (q, k, v, g, beta), scale, states=initial_state, cuts=cu_seqlens)

    # Decays are differences of sums within a chunk: a hard reset is none.
    return kv.kernel(
        without_gates if gates == "none" else gated,
        name="mixture",
        gates=gates,
        dtypes=(dtype,),
        contract=contract.format(dtype),
        backward=backward if declares else None,
        gate_range=(-100, 0),
    )


@cache
def _panel(dtype: str) -> dict[str, Problem]:
    return {entry.name: entry.problem for entry in panel(dtype, "smoke")}


def _judged(port: Adapter, name: str, *, back: bool) -> list[Outcome]:
    problem = fitted(port, _panel(port.dtypes[0])[name])
    return gradients(port, problem, of="both") if back else forward(port, problem)


def _worst(found: list[Outcome]) -> float:
    assert all(outcome.ratio is not None for outcome in found), found
    return max(outcome.ratio or 0.0 for outcome in found)


@pytest.mark.rotates
@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize(("gates", "dtype", "problem"), CASES)
def test_a_declared_mixture_conforms(mixture: str, dtype: str, gates: str, problem: str) -> None:
    port = _port(mixture, gates, dtype)
    assert _worst(_judged(port, problem, back=True)) <= 1


@pytest.mark.parametrize("mixture", MIXTURES)
def test_the_forward_of_a_mixture_is_judged_as_before(mixture: str) -> None:
    assert _worst(_judged(_port(mixture, "channel", "bf16"), "three-chunks", back=False)) <= 1


@pytest.mark.parametrize(
    ("mixture", "problem"),
    [
        ("chunks, then token by token", "long-memory"),
        ("token by token, then chunks", "strong-pack"),
    ],
)
def test_undeclared_it_is_rejected(mixture: str, problem: str) -> None:
    """Each backward is less exact than that of the contract of its forward."""
    undeclared = _port(mixture, "channel", "fp32", declares=False)
    assert _worst(_judged(undeclared, problem, back=True)) > 1


def _last_negated(x: Tensor) -> Tensor:
    return torch.cat((x[:-1], -x[-1:]))


OF_TOKENS: dict[str, Planted] = {
    "the state's gradient 3 % short at a chunk's start": ("dS", lambda x: 0.97 * x),
    "dbeta of the last head negated": ("dbeta", _last_negated),
    "dg without its last channel": ("dg", lambda x: torch.cat((x[:, :-1], 0 * x[:, -1:]), 1)),
    "dq a token late": ("dq", lambda x: x.roll(1, 1)),
    "dv 5 % long": ("dv", lambda x: 1.05 * x),
}
OF_CHUNKS: dict[str, Planted] = {
    "dq a token late": OF_TOKENS["dq a token late"],
    "dv 5 % long": OF_TOKENS["dv 5 % long"],
    "dg 5 % long": ("dg", lambda x: 1.05 * x),
    "dk of the head before": ("dk", lambda x: x.roll(1, 0)),
}
THERE: dict[str, Planted] = {
    "the stored state 3 % short": ("h", lambda x: 0.97 * x),
    "kg a token late": ("kg", lambda x: x.roll(1, 1)),
    "scores transposed": ("Aqk", lambda x: x.transpose(1, 2)),
}


@pytest.mark.rotates
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("mixture", "fault"),
    [
        *((mixture, fault) for mixture in [*MIXTURES][:1] for fault in OF_TOKENS),
        *((mixture, fault) for mixture in [*MIXTURES][1:] for fault in OF_CHUNKS),
    ],
)
def test_a_fault_on_the_way_back_is_rejected(mixture: str, fault: str, dtype: str) -> None:
    port = _port(mixture, "channel", dtype, wrong={**OF_CHUNKS, **OF_TOKENS}[fault])
    assert (
        max(_worst(_judged(port, name, back=True)) for name in ("grouped-heads", "three-chunks"))
        >= 4
    )


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("fault", THERE)
def test_a_fault_on_the_way_there_is_rejected(fault: str, dtype: str) -> None:
    port = _port("chunks, then token by token", "channel", dtype, wrong=THERE[fault])
    assert _worst(_judged(port, "three-chunks", back=False)) >= 4


def _of_the_head_before(x: Tensor) -> Tensor:
    return x.roll(1, 0)


def test_a_backward_from_states_of_another_head_is_rejected() -> None:
    """The mixture's own fault: nothing but the states that the forward left is wrong."""
    port = _port(
        "chunks, then token by token", "channel", "bf16", wrong=("kept", _of_the_head_before)
    )
    assert _worst(_judged(port, "grouped-heads", back=False)) <= 1
    assert _worst(_judged(port, "grouped-heads", back=True)) >= 4


MIXED = contract_from_name("chunk64-bf16/recurrent-fp32")


def test_names_and_files_read_back() -> None:
    assert spelled(MIXED) == "chunk64-bf16/recurrent-fp32"
    assert contract_from_name(spelled(MIXED)) == MIXED
    assert parse_contract(to_toml(MIXED), "text").contract(None) == MIXED
    text = 'form = "chunk"\nchunk_size = 64\noperands = "inputs"\nbackward = "chunk32-inputs"'
    assert parse_contract(text, "text").contract("fp16") == contract_from_name(
        "chunk64-fp16/chunk32-fp16"
    )


def test_every_way_to_declare_it_says_the_same() -> None:
    (contract,) = declared_contracts("chunk64-bf16", ["bf16"], backward="recurrent-fp32").values()
    assert contract == MIXED
    kernel = _port("chunks, then token by token", "channel", "bf16")
    assert kernel.contract("bf16") == MIXED
    words = {"contract": "chunk64-bf16", "backward": "recurrent-fp32"}
    said = declared({"name": "k", "dtypes": "bf16", **words})

    def function(
        q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: Any, initial_state: Any
    ) -> Any: ...

    assert adapted(said, function).contract("bf16") == MIXED


def test_gradients_are_judged_by_the_backward_beside_its_forward() -> None:
    back = MIXED.of_gradients
    assert (back.form, back.forward) == ("recurrent", contract_from_name("chunk64-bf16"))
    assert contract_from_name("chunk64-bf16").of_gradients == contract_from_name("chunk64-bf16")


def test_a_backward_like_its_forward_is_none_of_its_own() -> None:
    assert contract_from_name("chunk64-bf16/chunk64-bf16") == contract_from_name("chunk64-bf16")


def test_a_backward_has_none_of_its_own() -> None:
    with pytest.raises(ContractError, match="a backward has none of its own"):
        contract_from_name("chunk64-bf16/recurrent-fp32/chunk64-bf16")


@pytest.mark.parametrize("option", ["contract", "backward"])
def test_a_file_that_cannot_be_read_is_reported_under_its_option(option: str) -> None:
    words = {"name": "k", "dtypes": "bf16", "contract": "chunk64-bf16", option: "nowhere.toml"}
    with pytest.raises(AdapterError, match=f"^{option}: "):
        declared(words)
