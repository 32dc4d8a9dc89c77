"""Every law passes legal kernels of either form and rejects a kernel that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
import torch
from hypothesis import given, seed, settings
from torch import Tensor

import kdaverify as kv
from kdaverify.adapters import find
from kdaverify.adapters.base import Adapter, Output
from kdaverify.adapters.eager import Eager
from kdaverify.checks.laws.draws import law_problems
from kdaverify.checks.laws.registry import LAWS
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.problems import Problem, ProblemError
from kdaverify.problems.profiles import settings_for
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs

DENSE: Final = Problem(
    B=2, T=21, H=2, HV=4, K=8, V=6, dtype="fp32", gate="log-sigmoid", key="coherent-0.6", beta="uniform", state="random", value="normal",
    seed=5,
)  # fmt: skip
PACKED: Final = DENSE.replace(B=1, lengths=(7, 0, 9), T=20)
ABSENT: Final = DENSE.replace(state="absent")
ZERO: Final = DENSE.replace(state="zero")
Call = Callable[[Inputs], tuple[Tensor, Tensor]]


def asked(adapter: Adapter, law: str, problem: Problem) -> list[Outcome]:
    found = check("laws", adapter, problem, {"law": law})
    assert not any(outcome.status is Status.SKIP for outcome in found), found
    return found


def rejected(adapter: Adapter, law: str, problem: Problem = DENSE) -> set[str]:
    return {outcome.output for outcome in asked(adapter, law, problem) if outcome.status.rejects}


def fitting(law: str) -> Problem:
    return DENSE if LAWS[law].asked(DENSE) is None else PACKED


@pytest.mark.parametrize("impl", ["eager", "eager-recurrent"])
@pytest.mark.parametrize("law", LAWS)
def test_legal_kernels_keep_every_law(law: str, impl: str) -> None:
    for dtype in ("fp32", "bf16"):
        assert rejected(find(impl), law, fitting(law).replace(dtype=dtype)) == set()


class Wrong(Eager):
    """The embedded kernel with something wrong around its call, there or back."""

    def __init__(self, there: Callable[[Call, Inputs], tuple[Tensor, Tensor]] | None = None, back: Any = None) -> None:
        super().__init__("wrong", {"fp32": "eager", "bf16": "eager"})
        self._there, self._back = there, back

    def forward(self, inputs: Inputs) -> Output:
        def right(x: Inputs) -> tuple[Tensor, Tensor]:
            found = Eager.forward(self, x)
            return found.o, found.final_state

        return Output(*(right(inputs) if self._there is None else self._there(right, inputs)))

    def gradients(self, inputs: Inputs, cotangents: Cotangents) -> Gradients[Any]:
        found = super().gradients(inputs, cotangents)
        return found if self._back is None else self._back(found, inputs)


def _sees_one_token_ahead(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    o, final = right(x)
    return o + 1e-7 * x.v.roll(-1, dims=1), final


def _gradients_of_the_next_token(found: Gradients[Any], x: Inputs) -> Gradients[Any]:
    return replace(found, dv=found.dv + 1e-7 * x.v.roll(-1, dims=1))


def _state_of_the_neighbour(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    o, final = right(x)
    return o, final + 1e-7 * final.roll(1, dims=0)


def _last_row_read(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    o, final = right(x)
    return o, final + 1e-7 * x.v[0, -1, :, None, :]


def _head_of_the_neighbour(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    o, final = right(x)
    return o + 1e-7 * o.roll(1, dims=2), final


def _epsilon_on_values(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    return right(replace(x, v=torch.where(x.v.abs() < 1e-6, torch.zeros_like(x.v), x.v)))


def _first_scale_kept() -> Callable[[Call, Inputs], tuple[Tensor, Tensor]]:
    first: list[float] = []

    def call(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
        first.append(x.factor)
        return right(replace(x, scale=first[0]))

    return call


def _offset(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    o, final = right(x)
    return o + 1e-6, final


def _keys_added_to_values(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    o, final = right(x)
    return o + 1e-6 * x.k[..., :1].repeat_interleave(x.HV // x.H, dim=2), final


def _left_over() -> Callable[[Call, Inputs], tuple[Tensor, Tensor]]:
    left: list[Tensor] = []

    def call(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
        if x.initial_state is None and left:
            x = replace(x, initial_state=left[0])
        o, final = right(x)
        left[:] = [final]
        return o, final

    return call


def _clamped(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    o, final = right(x)
    return o.clamp(-0.5, 0.5), final


def _decays_where_there_is_none(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    return right(replace(x, g=torch.where(x.g == 0, torch.full_like(x.g, -1e-4), x.g)))


def _flat_gates_misread(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    flat = (x.g == x.g[..., :1]).all(-1, keepdim=True)
    return right(replace(x, g=torch.where(flat, x.g * 1.4427, x.g)))


def _one_head_s_key_for_all_where_they_are_as_many(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    return right(replace(x, k=x.k[:, :, :1].expand_as(x.k).contiguous()) if x.H == x.HV else x)


def _scale_of_the_width(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    return right(replace(x, scale=x.K**-0.5))


def _columns_past_eight_swapped(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    o, final = right(x)
    return (o.flip(-1) if x.V > 8 else o), final


def _first_channel_s_gate_bounds_all(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    return right(replace(x, g=torch.minimum(x.g, x.g[..., :1])))


def _state_of_the_first_tile(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    o, final = right(x)
    return o, right(x.span(0, 16, x.initial_state))[1] if x.T > 32 else final


BROKEN: Final[dict[str, tuple[Adapter, Problem]]] = {
    "later-tokens": (Wrong(_sees_one_token_ahead), DENSE),
    "prefix-gradients": (Wrong(back=_gradients_of_the_next_token), DENSE),
    "neighbours": (Wrong(_state_of_the_neighbour), PACKED),
    "padding": (Wrong(_last_row_read), PACKED),
    "other-heads": (Wrong(_head_of_the_neighbour), DENSE),
    "other-entries": (Wrong(_state_of_the_neighbour), DENSE),
    "scaled-values": (Wrong(_epsilon_on_values), DENSE),
    "scaled-output": (Wrong(_first_scale_kept()), DENSE),
    "negated-values": (Wrong(_offset), DENSE),
    "negated-queries": (Wrong(_offset), DENSE),
    "negated-keys": (Wrong(_keys_added_to_values), DENSE),
    "no-writes": (Wrong(_keys_added_to_values), DENSE),
    "absent-state": (Wrong(_left_over()), ABSENT),
    "linearity": (Wrong(_clamped), DENSE),
    "no-decay": (Wrong(_decays_where_there_is_none), DENSE),
    "equal-channels": (Wrong(_flat_gates_misread), DENSE),
    "repeated-heads": (Wrong(_one_head_s_key_for_all_where_they_are_as_many), DENSE),
    "padded-keys": (Wrong(_scale_of_the_width), DENSE),
    "padded-values": (Wrong(_columns_past_eight_swapped), DENSE),
    "permuted-channels": (Wrong(_first_channel_s_gate_bounds_all), DENSE),
    "appended-tokens": (Wrong(_state_of_the_first_tile), DENSE),
}


def test_every_law_has_a_kernel_that_breaks_it() -> None:
    assert set(BROKEN) == set(LAWS)


@pytest.mark.parametrize("law", BROKEN)
def test_a_kernel_that_breaks_the_law_is_rejected(law: str) -> None:
    adapter, problem = BROKEN[law]
    assert rejected(adapter, law, problem)


def test_a_state_of_zeros_is_no_other_than_an_absent_one() -> None:
    def leaks(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
        zeros = x.initial_state is not None and not bool(x.initial_state.any())
        return right(replace(x, initial_state=x.state + 1.0 if zeros else x.initial_state))

    assert rejected(Wrong(leaks), "absent-state", ZERO) == {"o", "final_state"}
    assert rejected(find("eager"), "absent-state", ZERO) == set()


def test_rows_and_columns_that_nothing_writes_must_stay_zero() -> None:
    def wide(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
        o, final = right(x)
        idle = torch.arange(final.shape[-2])[:, None] >= DENSE.K
        return o, final.masked_fill(idle, 1e-30)

    assert rejected(Wrong(wide), "padded-keys") == {"final_state"}


def test_only_bits_that_every_legal_kernel_keeps_are_demanded() -> None:
    """A power of two makes outputs subnormal here, which a unit may flush."""

    def flushes(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
        o, final = right(x)
        return o.where(o.abs() >= torch.finfo(torch.float32).tiny, torch.zeros_like(o)), final

    faint = DENSE.replace(scale=2.0**-120)
    assert rejected(Wrong(flushes), "scaled-output", faint) == set()


def test_a_kernel_that_gives_other_bits_at_every_call_is_left_to_its_budget() -> None:
    calls: list[int] = []

    def noisy(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
        o, final = right(x)
        calls.append(0)
        return o * (1 + len(calls) * 2.0**-22), final

    (outcome,) = check("laws", Wrong(noisy), DENSE, {"law": "other-heads"})
    assert outcome.status is Status.SKIP and "not the same bits at every call" in outcome.message


@pytest.mark.parametrize(
    ("law", "problem", "reason"),
    [
        ("neighbours", DENSE, "wanted a pack"),
        ("padding", PACKED.replace(T=16), "tokens past its last offset"),
        ("other-heads", DENSE.replace(H=1, HV=1), "one value head"),
        ("other-entries", DENSE.replace(B=1), "one batch entry"),
        ("later-tokens", PACKED, "wanted a dense problem"),
        ("repeated-heads", DENSE.replace(H=4), "a key head of its own"),
        ("appended-tokens", PACKED, "cannot be appended"),
        ("scaled-values", DENSE.replace(dtype="fp16"), "may be subnormal"),
    ],
)
def test_a_law_that_does_not_apply_is_skipped_and_says_why(law: str, problem: Problem, reason: str) -> None:
    (outcome,) = check("laws", find("eager"), problem, {"law": law})
    assert outcome.status is Status.SKIP and reason in outcome.message


def test_what_a_kernel_does_not_support_is_skipped_not_passed() -> None:
    @kv.kernel(name="fixed", contract="chunk64-fp32", dtypes=("fp32",))
    def fixed(q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
        raise AssertionError("never asked")

    for law in ("scaled-output", "absent-state"):
        (outcome,) = check("laws", fixed, ABSENT, {"law": law})
        assert outcome.status is Status.SKIP, law


def test_an_unknown_law_is_refused_by_name() -> None:
    with pytest.raises(ProblemError, match="law: no law named 'gravity'; known ones are later-tokens"):
        check("laws", find("eager"), DENSE, {"law": "gravity"})


@pytest.mark.parametrize("law", LAWS)
def test_what_is_drawn_for_a_law_can_be_asked_of_it(law: str) -> None:
    found: list[Problem] = []

    @seed(1)
    @settings(settings_for("smoke", fixed=True), max_examples=1)
    @given(problem=law_problems(LAWS[law], find("eager"), "bf16", {"max_cost": 0.1, "widths": ()}))
    def take(problem: Problem) -> None:
        found.append(problem)

    take()
    assert found and all(LAWS[law].asked(problem) is None and problem.T >= 3 for problem in found)


def test_a_kernel_of_one_scale_without_packs_is_asked_what_it_takes() -> None:
    @kv.kernel(name="fixed", contract="chunk64-fp32", dtypes=("fp32",))
    def fixed(q: Any, k: Any, v: Any, g: Any, beta: Any, *, initial_state: Any) -> Any:
        raise AssertionError("never asked")

    @seed(1)
    @settings(settings_for("smoke", fixed=True), max_examples=5)
    @given(problem=law_problems(LAWS["negated-values"], fixed, "fp32", {"max_cost": 0.1, "widths": ()}))
    def take(problem: Problem) -> None:
        assert fixed.supports(problem) is None

    take()
