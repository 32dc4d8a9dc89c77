"""Sequences of every number of chunks: kernels that are wrong for some are rejected by the rules
about it alone, right ones with other conventions pass.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch

from kdaverify.adapters import kernel
from kdaverify.adapters.base import Adapter
from kdaverify.adapters.registry import find
from kdaverify.checks.calls import questions
from kdaverify.checks.calls.case import CallRuleCase
from kdaverify.checks.calls.chunk_counts import (
    ACTIVE,
    MORE,
    MOST,
    RULES,
    ActiveTokens,
    LongSequence,
)
from kdaverify.checks.status import Status
from kdaverify.faults.planted.broken_calls import Outputs, Patch, port, right
from kdaverify.faults.planted.catalogue import PLANTED
from kdaverify.faults.planted.segments import segments_from_the_start
from oracles.inputs import Inputs
from tests.checks.ruled import statuses

NAMES: Final = [rule.name for rule in RULES]
NEAR: Final = ("late", "late-backward", "masked-loss-backward")
BROKEN: Final = {"CHUNKS1": {*NAMES}, "CHUNKS2": {"chunk-counts-backward"},
                "CHUNKS3": {"chunk-counts-backward"}}  # fmt: skip
"""Of a wrong forward autograd makes wrong gradients."""
COUNTS: Final = (*range(1, MOST + 1), *MORE)


def token_loop(**declared: Any) -> Adapter:
    """A recurrence of heads before tokens, which takes log gates to base 2 and no packs."""

    @kernel(contract="recurrent-fp32", dtypes=("fp32",), layout="bhtd", gate="log2", **declared)
    def port(q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: Any, initial_state: Any) -> Any:
        repeat = v.shape[1] // q.shape[1]
        q, k = (x.repeat_interleave(repeat, dim=1) for x in (q, k))
        state = v.new_zeros(*v.shape[:2], k.shape[-1], v.shape[-1])
        state = state if initial_state is None else state + initial_state
        o = list[Any]()
        for t in range(v.shape[2]):
            state = state * torch.exp2(g[:, :, t, :, None])
            read = torch.einsum("bhkv,bhk->bhv", state, k[:, :, t])
            u = beta[:, :, t, None] * (v[:, :, t] - read)
            state = state + k[:, :, t, :, None] * u[:, :, None]
            o.append(scale * torch.einsum("bhkv,bhk->bhv", state, q[:, :, t]))
        return torch.stack(o, dim=2), state

    return port


def case_of(adapter: Adapter, rule: str) -> CallRuleCase:
    (one,) = (x for x in questions(adapter, "smoke") if x.rule.name == rule)
    return CallRuleCase(adapter, one.problem, 1)


@pytest.mark.parametrize("fault", BROKEN)
def test_it_is_found_by_the_rule_about_it_alone(fault: str) -> None:
    found = statuses(PLANTED[fault].adapter(), (*NAMES, *NEAR))
    rejecting = {rule for rule, said in found.items() if any(one.rejects for one in said)}
    assert rejecting == BROKEN[fault]


def test_every_rule_has_a_fault() -> None:
    assert {rule for rules in BROKEN.values() for rule in rules} == {*NAMES}


@pytest.mark.parametrize("name", ["eager", "eager-recurrent"])
def test_a_right_kernel_passes_and_is_skipped_nowhere(name: str) -> None:
    assert statuses(find(name), NAMES) == {rule: {Status.PASS} for rule in NAMES}


def test_a_recurrence_without_packs_passes() -> None:
    assert statuses(token_loop(), NAMES) == {rule: {Status.PASS} for rule in NAMES}


def right_patch(x: Inputs, _: dict[Any, Any]) -> Outputs:
    return right(x)


@pytest.mark.parametrize("patch", [segments_from_the_start, right_patch])
def test_a_kernel_without_neutral_tokens_is_tested_on_fewer_chunks(patch: Patch) -> None:
    found = statuses(port(patch, gate_range=(-5.0, -0.01)), ["chunk-counts"])["chunk-counts"]
    assert any(one.rejects for one in found) == (patch is segments_from_the_start)
    assert Status.SKIP not in found


def test_without_packs_and_neutral_tokens_it_is_skipped() -> None:
    strong = token_loop(gate_range=(-5.0, -0.01))
    assert statuses(strong, NAMES) == {rule: {Status.SKIP} for rule in NAMES}


def test_every_number_of_chunks_is_there_once() -> None:
    active = ActiveTokens.of(case_of(find("eager"), "chunk-counts"))
    (call,) = active.calls
    size = active.case.adapter.contract(active.case.problem.dtype).chunk_size
    assert sorted(-(-length // size) for length in call.lengths) == [*COUNTS]
    assert any(length % size for length in call.lengths)
    assert active.case.problem.lengths == tuple(ACTIVE * n for n in COUNTS)


def test_neutral_tokens_write_and_decay_nothing() -> None:
    active = ActiveTokens.of(case_of(find("eager"), "chunk-counts"))
    ((call,), (rows,)) = active.calls, active.places
    for name in ("g", "beta"):
        x = getattr(call, name).clone()
        assert bool(x[:, rows].any())
        x[:, rows] = 0
        assert not bool(x.any())


@pytest.mark.parametrize("multiple", [1, 16])
def test_active_tokens_are_the_last_of_each_chunk(multiple: int) -> None:
    one = LongSequence(16, 3, multiple)
    tail = 43 if multiple == 1 else 48
    assert one.tokens == tail
    assert one.active().tolist() == [14, 15, 30, 31, tail - 2, tail - 1]
