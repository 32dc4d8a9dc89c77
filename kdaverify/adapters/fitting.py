"""The nearest problem that an adapter takes: inside its domain, and past its `supports`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations
from typing import Any, Final

from kdaverify.adapters.base import Adapter
from kdaverify.problems import Problem

MILDER: Final[dict[str, tuple[Any, ...]]] = {
    "gate": ("bound-5", "log-sigmoid", "mild", "slow", "zero"),
    "beta": ("uniform", "one"),
    "state": ("absent",),
    "scale": (None,),
    "HV": ("H",),
}
"""What a field is changed to, in this order, where a problem is refused. Sizes and packs stay: cuts
and laws depend on them."""
CHANGED_AT_MOST: Final = 2


def fitted(adapter: Adapter, problem: Problem, *, backward: bool = False) -> Problem:
    """The problem moved into the adapter's domain; the last one where all are refused.

    A kernel whose author says in `supports` alone that it takes gates above -5 is tested on such
    gates, not skipped.

    Args:
        backward: whether its gradients are tested: a backward may take less than the forward.
    """
    domain = (adapter.backward_domain if backward else None) or adapter.domain
    inside = domain.fit(problem)
    if adapter.supports(inside) is None:
        return inside
    compiled = _at_compiled_widths(adapter, inside)
    tried = chain((compiled,), _milder(compiled))
    return next((one for one in tried if adapter.supports(one) is None), inside)


def _at_compiled_widths(adapter: Adapter, problem: Problem) -> Problem:
    if not adapter.widths:
        return problem
    K, V = (
        min(adapter.widths, key=lambda width: abs(width - wanted))
        for wanted in (problem.K, problem.V)
    )
    return problem.replace(K=K, V=V)


def _milder(problem: Problem) -> Iterator[Problem]:
    changes = [(field, value) for field, values in MILDER.items() for value in values]
    for number in range(1, CHANGED_AT_MOST + 1):
        for chosen in combinations(changes, number):
            named = {field: problem.H if value == "H" else value for field, value in chosen}
            if len(named) == number and any(
                getattr(problem, field) != value for field, value in named.items()
            ):
                yield problem.replace(**named)
