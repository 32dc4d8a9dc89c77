"""Every two sizes that can be equal are so in a smoke problem where not all are, and the planted
faults about them are found on these problems.
"""

from __future__ import annotations

from itertools import combinations
from typing import Final

import pytest

from kdaverify.adapters.eager import EAGER
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.faults.planted.catalogue import PLANTED
from kdaverify.operators.kda.axes import AXES
from kdaverify.problems import Problem, panel
from kdaverify.problems.coincidences import COINCIDENT

SIZES: Final = ("B", "T", "H", "HV", "K", "V")
OF_A_PACK: Final = ("N", "T", "H", "HV", "K", "V")
SMOKE: Final = {entry.name: entry.problem for entry in panel("fp32", "smoke")}
DETAILS: Final = {"panel": {}, "gradients": {"of": "both", "exponent": 0}}


def coincide(problem: Problem, pair: tuple[str, str]) -> bool:
    """Whether two sizes are equal, and others are not."""
    sizes = [getattr(problem, size) for size in (OF_A_PACK if problem.packed else SIZES)]
    one, other = (getattr(problem, size) for size in pair)
    return one == other > 1 and len({*sizes}) > 1


@pytest.mark.parametrize("pair", [*combinations(SIZES, 2)], ids="-".join)
def test_any_two_sizes_of_a_batch_are_equal_in_a_smoke_problem(pair: tuple[str, str]) -> None:
    assert any(coincide(problem, pair) for problem in SMOKE.values() if not problem.packed)


@pytest.mark.parametrize("size", OF_A_PACK[1:])
def test_any_size_is_that_of_the_sequences_of_a_pack(size: str) -> None:
    assert any(coincide(problem, ("N", size)) for problem in SMOKE.values() if problem.packed)


def test_all_sizes_are_equal_in_a_smoke_problem() -> None:
    assert any(len({getattr(p, size) for size in SIZES}) == 1 < p.T for p in SMOKE.values())


def test_lengths_follow_every_rule_that_a_kernel_can_take_for_granted() -> None:
    packs = [problem.lengths for problem in SMOKE.values() if problem.lengths]
    assert any(len(lengths) > 2 and len({*lengths}) == 1 < lengths[0] for lengths in packs)
    assert any(len(lengths) > 2 and {*lengths} == {1} for lengths in packs)
    assert any(list(lengths) == sorted({*lengths}) for lengths in packs)
    assert any(list(lengths) == sorted({*lengths}, reverse=True) for lengths in packs)
    assert any(sum(lengths[256:]) and sum(lengths[128:256]) for lengths in packs)


def test_smoke_has_each_in_one_format_and_acceptance_in_all() -> None:
    for profile, times in {"smoke": 1, "acceptance": len(EAGER.dtypes)}.items():
        names = [name.partition("-")[2] for name, _ in AXES["named"](EAGER, profile)]
        assert {names.count(name) for name in COINCIDENT} == {times}


def statuses(name: str, *, twin: bool) -> set[Status]:
    """Of a planted fault, or of its twin, on the problems of its smoke."""
    adapter = PLANTED[name].right() if twin else PLANTED[name].adapter()
    tested = [
        problem
        for title, problem in AXES["named"](adapter, "smoke")
        if title.partition("-")[2] in COINCIDENT
    ]
    return {
        outcome.status
        for problem in tested
        for suite, detail in DETAILS.items()
        for outcome in check(suite, adapter, problem, detail)
    }


@pytest.mark.parametrize("name", [name for name in PLANTED if name.startswith("SIZE")])
def test_a_fault_is_found_on_them(name: str) -> None:
    assert any(status.rejects for status in statuses(name, twin=False))


def test_a_right_kernel_passes_them() -> None:
    assert not any(status.rejects for status in statuses("SIZE1", twin=True))
