"""The comparator explains itself, looks at masks first, and finds the row, the element and the
inputs that made them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kdaverify.budgets.backward import emulate_gradients
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.ensemble import emulate, ensemble
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.gradient_standard import gradient_standard
from kdaverify.budgets.standard import Reference, standard
from kdaverify.checks.compare import Comparison, compare, relative_error
from kdaverify.checks.status import Status
from kdaverify.problems import Problem, cotangents
from oracles.inputs import Inputs

CONTRACT, BF16 = contract_from_name("chunk64-bf16"), FORMATS["bf16"]
PACK = Problem.from_json(
    '{"B":1,"H":1,"HV":2,"K":16,"T":90,"V":24,"beta":"uniform","dtype":"bf16","gate":"mild",'
    '"key":"random","lengths":[30,0,50],"op":"kda","seed":2,"state":"random","value":"normal"}'
)
PLACE = "sequence 2, token 12 of 50 (row 42 of the pack), value head 1, column 7"


@pytest.fixture(scope="module")
def pack() -> tuple[Inputs, Reference, torch.Tensor, torch.Tensor]:
    inputs = PACK.inputs()
    o, final = ensemble(CONTRACT, BF16)[0].run(inputs)
    return (
        inputs,
        standard(inputs, CONTRACT, BF16, emulate(inputs, CONTRACT, BF16)),
        o.bfloat16(),
        final.float(),
    )


def spoil(
    pack: tuple[Inputs, Reference, torch.Tensor, torch.Tensor], where: tuple[int, ...], value: float
) -> Comparison:
    inputs, held, o, _ = pack
    o = o.clone()
    o[where] = value
    return compare("o", o, held, inputs)


def test_a_conforming_output_gets_an_a(
    pack: tuple[Inputs, Reference, torch.Tensor, torch.Tensor],
) -> None:
    inputs, held, o, final = pack
    for name, output in (("o", o), ("final_state", final)):
        comparison = compare(name, output, held, inputs)
        assert (comparison.status, comparison.grade) == (Status.PASS, "A")
        assert comparison.ratio <= 1
        assert (
            f" ({comparison.ratio:.3g}x tolerance); grade A: every statistic within tolerance"
            in str(comparison)
        )


def test_one_wrong_element_is_found_and_placed(
    pack: tuple[Inputs, Reference, torch.Tensor, torch.Tensor],
) -> None:
    comparison = spoil(pack, (0, 42, 1, 7), 3.0)
    assert comparison.status is Status.FAIL
    assert comparison.worst is not None
    assert comparison.worst.where == PLACE
    assert "got 3, exact" in str(comparison)
    assert "beta" in str(comparison)


def test_one_zeroed_row_among_many_is_found_by_the_row_rule(
    pack: tuple[Inputs, Reference, torch.Tensor, torch.Tensor],
) -> None:
    inputs, held, o, _ = pack
    o = o.clone()
    row = o[0, :80].abs().amax(-1).flatten().argmin()  # the smallest row: the one a norm would miss
    o.flatten(0, 2)[row] = 0
    comparison = compare("o", o, held, inputs)
    assert comparison.status is Status.FAIL
    assert comparison.statistic == "row"


def test_a_non_finite_element_is_reported_before_anything_else(
    pack: tuple[Inputs, Reference, torch.Tensor, torch.Tensor],
) -> None:
    comparison = spoil(pack, (0, 3, 0, 0), float("inf"))
    assert (comparison.status, comparison.statistic, comparison.grade) == (
        Status.NONFINITE,
        "finite",
        "F",
    )
    assert "sequence 0, token 3 of 30" in str(comparison)
    assert "grade" not in str(comparison), "the head gives the reason of an F"


def test_a_padding_row_must_be_exactly_zero(
    pack: tuple[Inputs, Reference, torch.Tensor, torch.Tensor],
) -> None:
    comparison = spoil(pack, (0, 85, 0, 0), 1e-30)
    assert (comparison.status, comparison.statistic) == (Status.FAIL, "zero")
    assert "padding row 85" in str(comparison)


def test_the_state_of_an_empty_sequence_must_be_the_initial_one(
    pack: tuple[Inputs, Reference, torch.Tensor, torch.Tensor],
) -> None:
    inputs, held, _, final = pack
    final = final.clone()
    final[1] = 0
    comparison = compare("final_state", final, held, inputs)
    assert comparison.status is Status.FAIL
    assert comparison.worst is not None
    assert comparison.worst.where.startswith("sequence 1 (0 tokens)")


def test_the_negated_and_the_shuffled_output_fail(
    pack: tuple[Inputs, Reference, torch.Tensor, torch.Tensor],
) -> None:
    inputs, held, o, _ = pack
    for wrong in (-o, o.flip(-1), o.flip(2), torch.zeros_like(o)):
        assert compare("o", wrong, held, inputs).grade == "F"


@pytest.mark.parametrize("times", [1.0, 1e-170])
def test_a_relative_error_is_that_of_rms_values_of_any_size(times: float) -> None:
    exact = times * torch.tensor([[-3.0, 4.0]], dtype=torch.float64)
    error = times * torch.tensor([[0.6, -0.8]], dtype=torch.float64)
    assert relative_error(error, exact) == pytest.approx(0.2)


def test_a_wrong_shape_is_the_caller_s_mistake(
    pack: tuple[Inputs, Reference, torch.Tensor, torch.Tensor],
) -> None:
    inputs, held, o, _ = pack
    with pytest.raises(ValueError, match="check shapes first"):
        compare("o", o[:, :-1], held, inputs)


def test_ten_per_cent_more_than_the_allowed_rms_is_a_verdict(
    pack: tuple[Inputs, Reference, torch.Tensor, torch.Tensor],
) -> None:
    inputs, held, o, _ = pack
    truth = held.exact("o")
    error = truth.error(o)
    used = compare("o", o, held, inputs).ratios["rms"]
    exact = truth.high
    assert compare("o", exact + error * (0.95 / used), held, inputs).ratios["rms"] <= 1
    assert compare("o", exact + error * (1.05 / used), held, inputs).ratios["rms"] > 1


def test_rms_ratios_are_kept_to_each_conforming_kernel(
    pack: tuple[Inputs, Reference, torch.Tensor, torch.Tensor],
) -> None:
    inputs, held, o, _ = pack
    truth = held.exact("o")
    error = truth.error(o)
    once, twice = (compare("o", truth.high + times * error, held, inputs).peers for times in (1, 2))
    assert once
    assert twice == pytest.approx([2 * ratio for ratio in once])
    # The kernel is one of its own family.
    assert min(abs(ratio - 1) for ratio in once) < 1e-6


def test_the_ceiling_is_named_where_it_alone_is_broken(
    pack: tuple[Inputs, Reference, torch.Tensor, torch.Tensor],
) -> None:
    inputs, held, o, _ = pack
    allowed = held.budgets["o"]
    assert allowed.ceiling is not None
    # A tolerance so wide that nothing else can break, as after an ensemble that errs everywhere.
    wide = replace(
        allowed,
        allowed=replace(
            allowed.allowed,
            rms=1e9,
            largest=1e9,
            rows=allowed.allowed.rows + 1e9,
            median=1e9,
            tail=1e9,
            bias=1e9,
        ),
    )
    loose = Reference(held.truth, {**held.budgets, "o": wide})
    wrong = o.double()
    wrong[0, 42, 1, 7] += 1e3
    comparison = compare("o", wrong, loose, inputs)
    assert (comparison.status, comparison.statistic) == (Status.FAIL, "ceiling")
    assert comparison.value == pytest.approx(1e3, rel=1e-3)
    assert comparison.ratio == pytest.approx(comparison.value / comparison.budget)
    assert comparison.worst is not None
    assert comparison.worst.where == PLACE
    assert comparison.ceiling
    assert compare("o", o, loose, inputs).statistic != "ceiling"
    both = Reference(
        held.truth,
        {**held.budgets, "o": replace(wide, allowed=replace(wide.allowed, largest=1e3 / 1.5))},
    )
    found = compare("o", wrong, both, inputs)
    assert (found.statistic, found.budget) == ("largest", 1e3 / 1.5), (
        "the ceiling is named where it alone is broken"
    )


def test_a_relative_statistic_is_placed_where_the_relative_error_is_worst(
    pack: tuple[Inputs, Reference, torch.Tensor, torch.Tensor],
) -> None:
    inputs, held, _, _ = pack
    allowed, exact = held.budgets["o"], held.exact("o").high
    tail = replace(
        allowed.allowed,
        rms=1e9,
        largest=1e9,
        rows=allowed.allowed.rows + 1e9,
        median=1e9,
        tail=1e-3,
        bias=1e9,
    )
    strict = Reference(
        held.truth, {**held.budgets, "o": replace(allowed, allowed=tail, ceiling=None)}
    )
    wrong = exact.clone()
    wrong[0, 5:30] *= 2.25
    small = exact[0, 40:60].abs().amax((0, 2)).argmin()
    wrong[0, 41, small, 3] *= 2.75
    comparison = compare("o", wrong, strict, inputs)
    assert comparison.statistic == "tail" and comparison.worst is not None
    assert comparison.worst.index == (0, 41, int(small), 3)
    assert comparison.exact == exact[0, 41, small, 3]
    assert str(comparison).startswith("o: relative tail error")


def test_the_headline_names_the_worst_statistic_and_not_a_mask(
    pack: tuple[Inputs, Reference, torch.Tensor, torch.Tensor],
) -> None:
    inputs, held, o, _ = pack
    reported = str(compare("o", 1.5 * o.double(), held, inputs))
    assert (
        reported.startswith("o: ")
        and " error " in reported.splitlines()[0]
        and "elements differ" not in reported
    )


def test_a_row_is_found_in_a_result_of_three_axes_too() -> None:
    tested = PACK.replace(T=40, lengths=None, H=2, HV=4)
    inputs, given = tested.inputs(), cotangents(tested, "both")
    held = gradient_standard(
        inputs, given, CONTRACT, BF16, emulate_gradients(inputs, given, CONTRACT, BF16)
    )
    exact, allowed = held.exact("dbeta").high, held.budgets["dbeta"]
    rows = replace(allowed.allowed, rms=1e9, largest=1e9, median=1e9, tail=1e9, bias=1e9)
    wrong = exact.clone()
    wrong[0, 23, 2] += 100 * float(allowed.allowed.rows[23])
    comparison = compare(
        "dbeta",
        wrong,
        Reference(held.truth, {**held.budgets, "dbeta": replace(allowed, allowed=rows)}),
        inputs,
    )
    assert (
        comparison.statistic == "row"
        and comparison.worst is not None
        and comparison.worst.index == (0, 23, 2)
    )


def test_no_elements_are_no_error() -> None:
    inputs = PACK.replace(B=1, T=0, lengths=(0,)).inputs()
    held = standard(inputs, CONTRACT, BF16, emulate(inputs, CONTRACT, BF16))
    comparison = compare("o", torch.zeros(1, 0, 2, 24, dtype=torch.bfloat16), held, inputs)
    assert (comparison.status, comparison.worst, comparison.found, comparison.exact) == (
        Status.PASS,
        None,
        0.0,
        0.0,
    )
