"""Every law passes conforming kernels of either form and rejects a kernel that breaks it."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, seed, settings
from torch import Tensor

import kdaverify as kv
from kdaverify.adapters import find
from kdaverify.adapters.base import Adapter, Output
from kdaverify.checks.laws.independence import before, resampled
from kdaverify.checks.laws.law import law_problems, stated
from kdaverify.checks.laws.rearranged import turned
from kdaverify.checks.laws.registry import LAWS
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.faults.conforming import conforming
from kdaverify.problems import EVERYTHING, Bounds, Domain, Problem, ProblemError
from kdaverify.problems.axes import Gates
from kdaverify.problems.cost import cost
from kdaverify.problems.profiles import settings_for
from oracles.gradients import Gradients
from oracles.inputs import Inputs
from tests.checks.lawbreakers import ABSENT, BROKEN, DENSE, HEADS, PACKED, ZERO, Call, Wrong


def outcomes_of(adapter: Adapter, law: str, problem: Problem) -> list[Outcome]:
    found = check("laws", adapter, problem, {"law": law})
    assert not any(outcome.status is Status.SKIP for outcome in found), found
    return found


def rejected(adapter: Adapter, law: str, problem: Problem = DENSE) -> set[str]:
    return {
        outcome.output for outcome in outcomes_of(adapter, law, problem) if outcome.status.rejects
    }


def fitting(law: str) -> Problem:
    return next(
        problem for problem in (DENSE, PACKED, HEADS) if LAWS[law].untestable(problem) is None
    )


def conforming_ones(impl: str, problem: Problem) -> Adapter:
    """A conforming kernel of that name, for problems of as many gates."""
    right = copy.copy(find(impl))
    right.domain = Domain(gates=problem.gates)
    return right


@pytest.mark.rotates
@pytest.mark.parametrize("impl", ["eager", "eager-recurrent"])
@pytest.mark.parametrize("law", LAWS)
def test_conforming_kernels_keep_every_law(law: str, impl: str) -> None:
    for dtype in ("fp32", "bf16"):
        problem = fitting(law).replace(dtype=dtype)
        assert rejected(conforming_ones(impl, problem), law, problem) == set()


@pytest.mark.parametrize("law", LAWS)
def test_calls_that_are_only_written_down_break_no_law(law: str) -> None:
    """Ones stand in for outputs: they are no zeros in rows that nothing writes."""
    problem = fitting(law)

    class Recording(Wrong):
        answers = False

        def forward(self, inputs: Inputs) -> Output:
            return Output(*(torch.ones_like(y) for y in vars(super().forward(inputs)).values()))

    outcomes = check("laws", Recording(gates=problem.gates), problem, {"law": law})
    assert {outcome.status for outcome in outcomes} <= {Status.SKIP}


@pytest.mark.rotates
@pytest.mark.parametrize("gates", ["head", "none"])
@pytest.mark.parametrize("law", LAWS)
def test_kernels_of_fewer_gates_keep_every_law_that_is_theirs(law: str, gates: Gates) -> None:
    for plain in (DENSE, PACKED):
        problem = Domain(gates=gates).fit(plain.replace(gates=gates))
        if LAWS[law].untestable(problem) is None:
            assert rejected(conforming_ones("eager", problem), law, problem) == set()


def test_the_laws_of_shared_gates_are_none_of_a_kernel_with_a_gate_for_every_channel() -> None:
    shared = ("rotated-channels", "shifted-gates", "permuted-heads")
    assert {LAWS[law].untestable(DENSE) for law in shared} == {
        "every key channel has a gate of its own"
    }
    assert {LAWS[law].untestable(HEADS) for law in shared} == {None}


def sizes_of(x: Inputs) -> tuple[object, ...]:
    return x.T, x.H, x.HV, x.K, x.V, x.factor, x.initial_state is None, *x.lengths


@pytest.mark.parametrize("law", LAWS)
def test_a_law_calls_nothing_but_what_it_says_a_kernel_must_support(law: str) -> None:
    called: set[tuple[object, ...]] = set()

    class Watched(Wrong):
        def forward(self, inputs: Inputs) -> Output:
            called.add(sizes_of(inputs))
            return super().forward(inputs)

    problem = fitting(law).replace(H=2, HV=2)
    outcomes = outcomes_of(Watched(gates=problem.gates), law, problem)
    assert called <= {
        sizes_of(reported.inputs()) for reported in (problem, *LAWS[law].becomes(problem))
    }
    assert LAWS[law].judged == any(outcome.comparison is not None for outcome in outcomes)


def test_every_law_has_a_kernel_that_breaks_it() -> None:
    assert set(BROKEN) == set(LAWS)


@pytest.mark.parametrize("law", BROKEN)
def test_a_kernel_that_breaks_the_law_is_rejected(law: str) -> None:
    adapter, problem = BROKEN[law]
    assert rejected(adapter, law, problem)


@pytest.mark.parametrize(("law", "lengths"), [("neighbours", (7, 4, 9)), ("padding", (7, 4, 8))])
def test_a_pack_without_empty_sequences_shows_a_neighbour_and_padding_too(
    law: str, lengths: tuple[int, ...]
) -> None:
    assert rejected(BROKEN[law][0], law, PACKED.replace(lengths=lengths)) == {"final_state"}


@pytest.mark.parametrize(
    ("law", "problem", "axis", "pair"),
    [
        ("other-entries", DENSE, 0, (0, 1)),
        ("other-heads", DENSE, 1, (0, 1)),
        ("neighbours", PACKED, 0, (0, 2)),
    ],
)
@pytest.mark.parametrize("forward", [True, False])
def test_a_leak_from_one_to_the_other_alone_is_rejected_either_way(
    law: str, problem: Problem, axis: int, pair: tuple[int, int], *, forward: bool
) -> None:
    source, target = pair if forward else pair[::-1]

    def leaks(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
        o, final = right(x)
        final.select(axis, target).add_(1e-7 * final.select(axis, source))
        return o, final

    assert rejected(Wrong(leaks), law, problem) == {"final_state"}


@pytest.mark.parametrize("T", [20, 21])
def test_the_cut_moves_with_the_seed_and_leaves_tokens_on_both_sides(T: int) -> None:
    cuts = {int(before(DENSE.replace(T=T, seed=number))[0].sum()) for number in range(40)}
    assert cuts == set(range(1, T))


def test_heads_are_repeated_where_every_one_has_its_own() -> None:
    adapter, _ = BROKEN["repeated-heads"]
    for heads in (1, 2, 3):
        assert rejected(adapter, "repeated-heads", DENSE.replace(H=heads, HV=heads)) == (
            set() if heads == 1 else {"o", "final_state"}
        )


def test_what_is_drawn_again_differs_at_every_seed() -> None:
    own, nothing = DENSE.replace(seed=0), torch.zeros(DENSE.B, DENSE.T, dtype=torch.bool)
    assert not torch.equal(resampled(own, tokens=nothing).q, own.inputs().q)


@pytest.mark.parametrize("name", ["dq", "dk", "dv", "dbeta", "dg"])
def test_later_gradients_are_compared_but_those_of_gates_which_may_be_differences(
    name: str,
) -> None:
    def from_its_own_token(found: Gradients[Any], x: Inputs) -> Gradients[Any]:
        leak = x.beta[..., None] if name == "dg" else getattr(x, name[1:])
        return replace(found, **{name: getattr(found, name) + 1e-7 * leak})

    assert rejected(Wrong(back=from_its_own_token), "prefix-gradients") == (
        set() if name == "dg" else {name}
    )


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


def test_only_bits_that_every_conforming_kernel_keeps_are_demanded() -> None:
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
        ("neighbours", PACKED.replace(lengths=(0, 7, 0)), "wanted a pack of two sequences"),
        ("neighbours", PACKED.replace(lengths=(0, 0)), "wanted a pack of two sequences"),
        ("padding", PACKED.replace(T=16), "tokens past its last offset"),
        ("other-heads", DENSE.replace(H=1, HV=1), "one value head"),
        ("other-entries", DENSE.replace(B=1), "one batch entry"),
        ("later-tokens", PACKED, "wanted a dense problem"),
        ("appended-tokens", PACKED, "cannot be appended"),
        ("scaled-values", DENSE.replace(dtype="fp16"), "may be subnormal"),
        ("scaled-values", DENSE.replace(B=1, gate="bound-5"), "sum to -105 over a sequence"),
        ("no-decay", DENSE.replace(gate_range=(-5.0, -0.1)), "at most -0.1"),
        ("no-writes", DENSE.replace(beta_range=(0.1, 1.0)), "at least 0.1"),
    ],
)
def test_a_law_that_does_not_apply_is_skipped_and_says_why(
    law: str, problem: Problem, reason: str
) -> None:
    (outcome,) = check("laws", find("eager"), problem, {"law": law})
    assert outcome.status is Status.SKIP and reason in outcome.message


def test_a_law_applies_up_to_the_last_problem_of_its_kind() -> None:
    short = PACKED.replace(gate="bound-5", lengths=(10, 10))
    assert LAWS["scaled-values"].untestable(short) is None, "-50 in each sequence, -100 in all"
    assert LAWS["no-decay"].untestable(DENSE.replace(gate_range=(-5.0, 0.0))) is None
    assert LAWS["no-writes"].untestable(DENSE.replace(beta_range=(0.0, 1.0))) is None


def test_a_statement_is_a_docstring_as_part_of_a_sentence() -> None:
    def law() -> None:
        """Every V is kept."""

    assert stated(law) == "every V is kept"


def test_turned_channels_keep_their_products() -> None:
    own = torch.eye(11, dtype=torch.float64)
    assert torch.equal(turned(own) @ turned(own).mT, own)


def test_a_folded_scale_is_divided_only_where_q_stays_normal() -> None:
    # fp16, K = 32: 90 of 6,560 elements of q * scale / 4 were subnormal, and one element of a right
    # kernel's o was another unit.
    def found(dtype: str) -> list[Outcome]:
        return check(
            "laws",
            conforming(scale="folded", dtype=dtype),
            DENSE.replace(dtype=dtype),
            {"law": "scaled-output"},
        )

    (skipped,) = found("fp16")
    assert skipped.status is Status.SKIP and "may be subnormal" in skipped.message
    assert {outcome.status for outcome in found("bf16")} == {Status.PASS}


def test_what_a_kernel_does_not_support_is_skipped_not_passed() -> None:
    @kv.kernel(name="fixed", contract="chunk64-fp32", dtypes=("fp32",))
    def fixed(q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
        raise AssertionError("never called")

    for law in ("scaled-output", "absent-state"):
        (outcome,) = check("laws", fixed, ABSENT, {"law": law})
        assert outcome.status is Status.SKIP, law


def test_an_unknown_law_is_refused_by_name() -> None:
    with pytest.raises(
        ProblemError, match="law: no law named 'gravity'; known ones are later-tokens"
    ):
        check("laws", find("eager"), DENSE, {"law": "gravity"})


@pytest.mark.parametrize("law", LAWS)
def test_what_is_drawn_for_a_law_can_be_tested_of_it(law: str) -> None:
    found: list[Problem] = []
    gates = fitting(law).gates
    bounds: Bounds = {"max_cost": 0.1, "widths": (), "domain": Domain(gates=gates)}

    @seed(1)
    @settings(settings_for("smoke", fixed=True), max_examples=3)
    @given(problem=law_problems(LAWS[law], conforming_ones("eager", fitting(law)), "bf16", bounds))
    def take(problem: Problem) -> None:
        found.append(problem)

    take()
    assert found and all(
        LAWS[law].untestable(problem) is None and problem.T >= 3 for problem in found
    )
    assert all(cost(problem) <= (0.1 / 16 if LAWS[law].judged else 0.1) for problem in found)


def test_a_kernel_of_one_scale_without_packs_is_tested_what_it_takes() -> None:
    @kv.kernel(name="fixed", contract="chunk64-fp32", dtypes=("fp32",))
    def fixed(q: Any, k: Any, v: Any, g: Any, beta: Any, *, initial_state: Any) -> Any:
        raise AssertionError("never called")

    @seed(1)
    @settings(settings_for("smoke", fixed=True), max_examples=5)
    @given(
        problem=law_problems(
            LAWS["negated-values"],
            fixed,
            "fp32",
            {"max_cost": 0.1, "widths": (), "domain": EVERYTHING},
        )
    )
    def take(problem: Problem) -> None:
        assert fixed.supports(problem) is None

    take()
