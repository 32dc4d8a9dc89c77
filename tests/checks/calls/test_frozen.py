"""Every set of inputs is differentiated, or every state of any four where calls are expensive."""

from __future__ import annotations

from itertools import combinations, product
from typing import Final

import pytest

from kdaverify.checks.calls.autograd import parts
from kdaverify.checks.calls.frozen import others, states_of_five
from kdaverify.faults.planted.catalogue import PLANTED
from tests.checks.ruled import statuses

NAMES: Final = ("q", "k", "v", "g", "beta", "initial_state")


def tested(names: tuple[str, ...], *, slow: bool) -> list[frozenset[str]]:
    """Those of `frozen-inputs` and of `frozen-subsets`, and the call with all."""
    return [frozenset(part) for part in (names, *parts(names), *others(names, slow=slow))]


@pytest.mark.parametrize("count", range(2, len(NAMES) + 1))
def test_every_set_is_tested_once(count: int) -> None:
    names = NAMES[:count]
    found = tested(names, slow=False)
    assert {*found} == {
        frozenset(part) for size in range(1, count + 1) for part in combinations(names, size)
    }
    assert len(others(names, slow=False)) == 2**count - 1 - len({names, *parts(names)})


def test_every_state_of_four_inputs_is_tested_where_calls_are_slow() -> None:
    found = tested(NAMES, slow=True)
    for four in combinations(NAMES, 4):
        states = {tuple(name in part for name in four) for part in found}
        assert {*product((False, True), repeat=4)} == states
    assert len(others(NAMES, slow=True)) < len(others(NAMES, slow=False)) / 2


def test_every_state_of_five_inputs_is_tested_over_several_chunks() -> None:
    found = [*map(frozenset, states_of_five(NAMES, slow=False)), frozenset(NAMES), frozenset()]
    for five in combinations(NAMES, 5):
        states = {tuple(name in part for name in five) for part in found}
        assert {*product((False, True), repeat=5)} == states


@pytest.mark.parametrize(
    ("fault", "rule"),
    [("AUTO19", "no-grad-chunks-packed"), ("AUTO20", "frozen-subsets-chunks")],
)
def test_what_shows_over_several_chunks_alone_is_found_there(fault: str, rule: str) -> None:
    near = ("frozen-inputs", "frozen-subsets", "no-grad", "inference-mode", "no-grad-chunks")
    found = statuses(PLANTED[fault].adapter(), (rule, *near))
    assert {name for name, said in found.items() if any(one.rejects for one in said)} == {rule}
