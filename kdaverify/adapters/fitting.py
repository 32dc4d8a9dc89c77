"""The nearest problem that an adapter takes: inside its domain, and past its `supports`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Final

from pydantic import ValidationError

from kdaverify.adapters.base import Adapter
from kdaverify.problems import Problem
from kdaverify.problems.domain import Domain

Changes = Sequence[Mapping[str, Any]]
"""Fields of a problem that more kernels take, those of one change together, the likest first."""
MILDER: Final[dict[str, tuple[Any, ...]]] = {
    "gate": ("bound-5", "log-sigmoid", "mild", "slow", "zero"),
    "beta": ("uniform", "one"),
    "state": ("absent",),
    "scale": (None,),
}
"""What a field of a delta rule is changed to, in this order, where a problem is refused. Lengths
stay: cuts and laws depend on them."""
USUAL_WIDTHS: Final = (64, 128, 32, 16, 256, 8)
"""Of rows, the commonest of compiled kernels first."""
USUAL_HEADS: Final = (4, 8, 2, 16, 1)
FREELY: Final = 2
TOGETHER: Final = 3
"""Fields changed at once: two to any of their values, three to the two commonest of each. All that
is tried takes 10 ms where everything is refused."""


def fitted(adapter: Adapter, problem: Problem, *, backward: bool = False) -> Problem:
    """The problem moved into the adapter's domain; there, where all are refused.

    A kernel whose author says in `supports` alone that it takes gates above -5 is tested on such
    gates, not skipped.

    Args:
        backward: whether its gradients are tested: a backward may take less than the forward.
    """
    inside = domain_of(adapter, backward=backward).fit(problem)
    if adapter.supports(inside) is None:
        return inside
    compiled = _at_compiled_widths(adapter, inside)
    found = nearest(adapter, compiled, _of_delta_rule(compiled))
    return inside if found is None else found


def domain_of(adapter: Adapter, *, backward: bool) -> Domain:
    """What its forward takes, or its backward."""
    return (adapter.backward_domain if backward else None) or adapter.domain


def nearest(adapter: Adapter, problem: Any, changes: Changes) -> Any:
    """The problem, or the first with some of the changes that `supports` takes; None without one.

    Of a gated norm that takes V % 64 == 0 none of 65 rules of calls was tested: their widths are 8,
    33 and 128.
    """
    if adapter.supports(problem) is None:
        return problem
    tried = _changed(problem, changes)
    return next((one for one in tried if adapter.supports(one) is None), None)


def resized(fields: Sequence[str], sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Changes that give several fields one size."""
    return [dict.fromkeys(fields, size) for size in sizes]


def _of_delta_rule(problem: Problem) -> Changes:
    milder = [{field: value} for field, values in MILDER.items() for value in values]
    widths = [each for fields in ("KV", "K", "V") for each in resized(fields, USUAL_WIDTHS)]
    heads = [each for fields in (("HV", "H"), ("HV",)) for each in resized(fields, USUAL_HEADS)]
    return [*milder, {"HV": problem.H}, *widths, *heads, *([{"B": 1}] if problem.B > 1 else [])]


def _at_compiled_widths(adapter: Adapter, problem: Problem) -> Problem:
    if not adapter.widths:
        return problem
    K, V = (
        min(adapter.widths, key=lambda width: abs(width - wanted))
        for wanted in (problem.K, problem.V)
    )
    return problem.replace(K=K, V=V)


def _changed(problem: Any, changes: Changes) -> Iterator[Any]:
    """Few changes before many; what is no problem is left out."""
    for number in range(1, TOGETHER + 1):
        for chosen in combinations(changes if number <= FREELY else _commonest(changes), number):
            fields = {name: value for change in chosen for name, value in change.items()}
            apart = len(fields) == sum(map(len, chosen))
            if apart and any(getattr(problem, name) != value for name, value in fields.items()):
                try:
                    yield problem.replace(**fields)
                except ValidationError:
                    continue


def _commonest(changes: Changes) -> Changes:
    """The first two of those that change the same fields."""
    of_fields: dict[frozenset[str], list[Mapping[str, Any]]] = {}
    for change in changes:
        of_fields.setdefault(frozenset(change), []).append(change)
    return [change for own in of_fields.values() for change in own[:2]]
