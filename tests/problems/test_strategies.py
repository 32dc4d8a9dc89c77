"""Strategies draw valid problems of every kind, within their cost,
and shrink to the simplest one that fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import find, settings

from kdaverify.problems import DRAWN_LIMIT, REGIMES, Problem, cost, problems, settings_for

Drawing = Callable[..., list[Problem]]


def test_every_dtype_regime_packing_and_kind_of_head_is_drawn(drawn: Drawing) -> None:
    seen = drawn(problems(), 400)
    for axis, table in REGIMES.items():
        assert {getattr(problem, axis) for problem in seen} == {
            name for name, regime in table.items() if regime.weight
        }
    assert {problem.dtype for problem in seen} == set(DRAWN_LIMIT)
    assert {(problem.packed, problem.HV > problem.H) for problem in seen} == {
        (a, b) for a in (False, True) for b in (False, True)
    }
    assert {problem.B for problem in seen} == {1, 2}
    assert sum(problem.K != problem.V for problem in seen) > 200
    assert len({problem.id for problem in seen}) > 390


def test_lengths_reach_edges_tails_and_three_chunks(drawn: Drawing) -> None:
    lengths = [length for problem in drawn(problems(), 400) for _, _, length in problem.spans]
    assert {0, 1, 2, 15, 16, 17, 31, 33, 47, 48, 63, 64, 65, 127, 128, 129} <= set(lengths)
    assert sum(length > 192 for length in lengths) > 20
    assert sum(length % 64 != 0 for length in lengths) > 0.7 * len(lengths)


def _padding(problem: Problem) -> int:
    return problem.B * problem.T - sum(length for _, _, length in problem.spans)


def test_packs_have_empty_sequences_in_every_place_and_padding(drawn: Drawing) -> None:
    packs = drawn(problems(packed=True), 300)
    lengths = [[length for _, _, length in problem.spans] for problem in packs]
    assert all(any(pack) for pack in lengths)
    assert sum(_padding(problem) > 0 for problem in packs) > 60
    long = [pack for pack in lengths if len(pack) > 2]
    assert any(pack[0] == 0 for pack in long)
    assert any(0 in pack[1:-1] for pack in long)
    assert any(pack[-1] == 0 for pack in long)


def test_no_drawn_problem_costs_more_than_its_dtype_allows(drawn: Drawing) -> None:
    assert all(cost(problem) <= DRAWN_LIMIT[problem.dtype] for problem in drawn(problems(), 300))
    for most in (0.00083, 0.01):
        assert all(cost(problem) <= most for problem in drawn(problems(max_cost=most), 100))


@pytest.mark.parametrize(
    "wanted",
    [
        {"dtype": "bf16"},
        {"gate": ("zero", "mixed")},
        {"key": "identical"},
        {"beta": ("one",)},
        {"state": "asymmetric"},
        {"value": ["large"]},
    ],
)
def test_filters_keep_what_is_tested_for(drawn: Drawing, wanted: dict[str, Any]) -> None:
    ((axis, names),) = wanted.items()
    assert {getattr(problem, axis) for problem in drawn(problems(**wanted), 40)} == (
        {names} if isinstance(names, str) else set(names)
    )


def test_packing_can_be_tested_for_or_excluded(drawn: Drawing) -> None:
    assert all(problem.packed for problem in drawn(problems(packed=True), 40))
    assert not any(problem.packed for problem in drawn(problems(packed=False), 40))


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (
            {"gate": "mixd"},
            r"gate: wanted names among zero, slow, .*, got \['mixd'\]; correct \['mixd'\]",
        ),
        (
            {"dtype": ("fp32", "fp8")},
            (
                r"dtype: wanted names among fp64, fp32, bf16, fp16, got \['fp32', 'fp8'\]; correct"
                r" \['fp8'\]"
            ),
        ),
        ({"state": ()}, r"state: .*correct the empty list"),
        (
            {"max_cost": 1e-9},
            (
                r"max_cost: wanted at least 8.2e-04 s \(two tokens of one narrow head\), got 1e-09;"
                r" raise it"
            ),
        ),
    ],
)
def test_a_wrong_filter_is_refused_at_once(wanted: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        problems(**wanted)


SIMPLEST = Problem(
    B=1,
    T=1,
    H=1,
    HV=1,
    K=1,
    V=1,
    dtype="fp64",
    gate="zero",
    key="random",
    beta="one",
    state="absent",
    value="normal",
    seed=0,
)


def _smallest(fails: Callable[[Problem], bool]) -> Problem:
    ours = settings(settings_for("nightly"), max_examples=1000, database=None)
    return find(problems(), fails, settings=ours, random=random.Random(0))


SHRUNK: dict[str, tuple[Callable[[Problem], bool], dict[str, Any]]] = {
    "always": (lambda p: True, {}),
    "length-and-gate": (lambda p: p.T >= 17 and p.gate == "mixed", {"T": 17, "gate": "mixed"}),
    "tail": (lambda p: any(length > 64 and length % 64 for _, _, length in p.spans), {"T": 65}),
    "sequences": (lambda p: p.N >= 2, {"B": 2}),
    "packed": (lambda p: p.packed, {"lengths": (1,)}),
    "padding": (
        lambda p: p.packed and p.spans[0][2] == 0 and _padding(p) > 0,
        {"lengths": (0, 1), "T": 2},
    ),
    "widths-and-state": (
        lambda p: p.K != p.V and p.state == "asymmetric",
        {"V": 8, "state": "asymmetric"},
    ),
    "heads": (lambda p: p.HV > p.H and p.T > 1, {"T": 2, "HV": 2}),
    "keys": (
        lambda p: p.key.startswith("coherent") and p.K >= 30 and p.dtype == "bf16",
        {"dtype": "bf16", "K": 32, "key": "coherent-0.3"},
    ),
}


@pytest.mark.parametrize("planted", SHRUNK)
def test_a_failure_shrinks_to_the_simplest_problem_that_fails(planted: str) -> None:
    fails, expected = SHRUNK[planted]
    assert _smallest(fails) == SIMPLEST.replace(**expected)
