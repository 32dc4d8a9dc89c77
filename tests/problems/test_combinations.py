"""The covering arrays of problems: what their rows hold, what a declared domain takes out of them,
what counts as covered.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from kdaverify.adapters import find
from kdaverify.faults.conforming import DOMAINS, conforming
from kdaverify.operators.kda.coverage import rows, space
from kdaverify.problems.combinations import LONG, MANY, CombinationRow, coverage

SHIPPING = {
    "gradients of several wide sequences": {
        "direction": "gradients of both",
        "sequences": "packed",
        "K": "128",
    },
    "gradients of wide values": {"direction": "gradients of o", "V": "128"},
    "long, several heads, a given state": {
        "length": "1024 and more",
        "HV / H": "3",
        "state": "random",
    },
    "dense gradients of resets": {
        "direction": "gradients of o",
        "sequences": "one",
        "gate": "hard-reset",
    },
    "many sequences, one long": {"sequences": "100 and more packed", "length": "1024 and more"},
    "a long pack resumed from a large state": {
        "state": "large",
        "length": "chunks and a tail",
        "sequences": "packed",
    },
}
"""What random problems hardly held."""


def occurs(wanted: dict[str, str], made: tuple[CombinationRow, ...], strength: int) -> bool:
    """Whether every combination of `strength` of these levels occurs."""
    held = frozenset[Any]().union(*(row.combinations(strength) for row in made))
    return all(some in held for some in combinations(sorted(wanted.items()), strength))


@pytest.mark.parametrize("profile", ["smoke", "acceptance"])
def test_every_row_is_what_it_was_chosen_for_and_all_seeds_differ(profile: str) -> None:
    made = rows(find("eager"), profile)
    assert (
        len({row.problem.seed for row in made})
        == len(made)
        == len({row.problem.to_json() + row.direction for row in made})
    )
    assert {row.problem.dtype for row in made} == set(find("eager").dtypes)
    assert all(row.problem.N >= MANY for row in made if row.levels["sequences"].startswith("100"))
    assert all(
        max(row.problem.lengths or (row.problem.T,)) >= LONG
        for row in made
        if row.levels["length"].startswith("1024")
    )


@pytest.mark.rotates
@pytest.mark.parametrize("profile", ["smoke", "acceptance"])
def test_every_row_has_tokens_that_write(profile: str) -> None:
    """Without one v and k have no effect, and without a state all outputs are 0: such rows counted
    as covering combinations of which they show nothing.
    """
    for row in rows(find("eager"), profile):
        assert bool((row.problem.inputs().beta != 0).any()), row.problem.describe()


@pytest.mark.parametrize("profile", ["smoke", "acceptance"])
def test_the_forward_of_every_row_of_gradients_is_a_row(profile: str) -> None:
    """A last chunk of one token whose beta stopped at 1 occurred in gradients alone."""
    made = rows(find("eager"), profile)
    forward = [{**one.levels} for one in made if one.direction == "forward"]
    backward = [one for one in made if one.direction.startswith("gradients")]
    assert len(backward) > 20
    assert all({**one.levels, "direction": "forward"} in forward for one in backward)


@pytest.mark.parametrize("wanted", SHIPPING.values(), ids=SHIPPING)
def test_what_ships_occurs_two_at_a_time_in_smoke_and_three_at_a_time_in_acceptance(
    wanted: dict[str, str],
) -> None:
    eager = find("eager")
    assert occurs(wanted, rows(eager, "smoke"), 2)
    assert occurs(wanted, rows(eager, "acceptance"), min(3, len(wanted)))


@pytest.mark.rotates
@pytest.mark.parametrize("name", DOMAINS.names)
@pytest.mark.parametrize("profile", ["smoke", "acceptance"])
def test_what_a_domain_excludes_is_in_no_row_and_every_row_says_what_it_holds(
    name: str, profile: str
) -> None:
    adapter = getattr(DOMAINS, name)
    made = rows(adapter, profile)
    assert len(made) > 20
    assert not [why for row in made if (why := adapter.domain.refuses(row.problem))]
    axes = {axis: {row.levels[axis] for row in made} for axis in made[0].levels}
    strength = 2 if profile == "smoke" else 3
    judged, possible = coverage(made, made, strength)
    assert judged == possible
    if name == "width_128":
        assert axes["K"] == axes["V"] == {"128"}
    if name == "no_packs":
        assert axes["sequences"] == {"one", "batch"}
    if name == "multiples_of_64":
        assert axes["length"] == {"whole chunks", "1024 and more"}


def test_what_a_backward_excludes_is_in_no_row_of_its_gradients() -> None:
    """Such problems were changed to others before they were judged, and their combinations counted
    as not judged: 192 of 8,332 triples of cuDNN's acceptance.
    """
    cudnn = find("cudnn")
    made = space(cudnn, "smoke").rows(2)
    gradients = [row for row in made if row.direction.startswith("gradients")]
    assert {row.levels["scale"] for row in made} > {row.levels["scale"] for row in gradients}
    assert {row.levels["HV / H"] for row in gradients} == {"1"}
    domain = cudnn.backward_domain
    assert domain is not None and not any(domain.refuses(row.problem) for row in gradients)


def test_states_beside_packs_are_combined_only_where_they_are_taken() -> None:
    without = conforming(packing="segment_ids", padding="undefined")
    assert all(
        row.problem.state == "absent" for row in rows(without, "acceptance") if row.problem.packed
    )
    assert any(
        row.problem.state != "absent"
        for row in rows(without, "acceptance")
        if not row.problem.packed
    )


def test_the_array_of_an_adapter_is_what_its_space_makes() -> None:
    adapter = find("eager-recurrent")
    assert list(rows(adapter, "smoke")) == space(adapter, "smoke").rows(2)


def test_a_part_of_the_rows_covers_a_part_of_the_combinations() -> None:
    made = rows(find("eager"), "smoke")
    judged, possible = coverage(made[: len(made) // 2], made, 2)
    assert 0 < judged < possible
    triples = coverage(made, rows(find("eager"), "acceptance"), 3)
    assert triples[0] / triples[1] < 0.5
