"""A domain holds what it declares: everything is moved inside, nothing inside is touched, and what
is left out is listed.
"""

from __future__ import annotations

import pytest
from hypothesis import given

from kdaverify.problems import EVERYTHING, PANEL, Domain, DomainError, Problem, problems
from kdaverify.problems.regimes import GATES

DOMAINS = {
    "widths": Domain(widths=(64, 128)),
    "square": Domain(square=True, widest=64),
    "heads": Domain(head_ratios=(1, 2)),
    "gates": Domain(gate_range=(-5.0, 0.0)),
    "bounded": Domain(gate_range=(-4.5, -0.125), beta_range=(0.0, 1.0)),
    "lengths": Domain(length_multiple=64, longest=256),
    "dense": Domain(packed=False, scales=False, states=False),
    "packs": Domain(packed_states=False),
}


@pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS)
@pytest.mark.parametrize(
    "problem",
    [entry.problem for entry in PANEL if entry.problem.T < 300],
    ids=lambda problem: problem.id,
)
def test_every_problem_of_the_panel_has_a_nearest_one_inside(
    domain: Domain, problem: Problem
) -> None:
    inside = domain.fit(problem)
    assert domain.refuses(inside) is None
    assert domain.fit(inside) == inside
    assert (
        inside == problem
        or domain.refuses(problem) is not None
        or inside.replace(gate_range=None, beta_range=None) == problem
    )


@given(problem=problems(dtype="fp32"))
def test_the_whole_of_it_changes_nothing(problem: Problem) -> None:
    assert (
        EVERYTHING.fit(problem) == problem
        and EVERYTHING.refuses(problem) is None
        and EVERYTHING.leaves_out() == ()
    )


@pytest.mark.parametrize("gate", GATES)
def test_gates_of_every_regime_are_moved_into_their_range(gate: str) -> None:
    plain = PANEL[0].problem.replace(gate=gate, beta="two")
    x = DOMAINS["bounded"].fit(plain).inputs()
    assert float(x.g.min()) >= -4.5 and float(x.g.max()) <= -0.125 and float(x.beta.max()) == 1.0


@given(problem=problems(dtype="bf16", domain=DOMAINS["lengths"]))
def test_drawn_problems_lie_inside(problem: Problem) -> None:
    lengths = (problem.T,) if problem.lengths is None else (problem.T, *problem.lengths)
    assert all(length % 64 == 0 for length in lengths) and max(lengths[1:] or lengths) <= 256


def test_what_is_left_out_is_named() -> None:
    assert DOMAINS["bounded"].leaves_out() == (
        "gates below -4.5",
        "gates above -0.125",
        "beta above 1",
    )
    assert "packed sequences" in DOMAINS["dense"].leaves_out()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"gate_range": (0.0, -5.0)}, r"gate_range: wanted \(lowest, highest\)"),
        ({"gate_range": (-5.0, 1.0)}, "gate_range"),
        ({"beta_range": (0.0, 3.0)}, "beta_range"),
        ({"widths": (0,)}, "widths: wanted whole numbers of at least 1, got 0"),
        ({"length_multiple": 64, "longest": 32}, "longest: wanted at least length_multiple = 64"),
    ],
)
def test_a_domain_without_problems_is_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(DomainError, match=said):
        Domain(**wrong)  # pyright: ignore[reportArgumentType]
