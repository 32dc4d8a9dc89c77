"""The benchmark of tolerances sums up what it measured."""

from __future__ import annotations

from benchmarks.budget_cost import Cost, summary


def test_costs_are_given_in_oracles() -> None:
    found = [Cost(1.0, 2.0, 4.0, 0.5), Cost(3.0, 3.0, 3.0, 3.0), Cost(1.0, 8.0, 1.0, 0.0)]
    assert str(found[0]) == (
        "oracle  1000.00 ms; over it: ensemble 2.000, ceiling 4.000, kept 0.500"
    )
    assert summary(found).splitlines() == [
        "median over 3 cases: ensemble 2.000, ceiling 1.000, kept 0.500",
        "sum over all cases: ensemble 2.600, ceiling 1.600, kept 0.700",
    ]
