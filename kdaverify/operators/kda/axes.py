"""What a suite's tests go over: formats, regimes, problems, laws, stages, with ids, and what bounds
random problems: cost, widths, domain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kdaverify.operator import Choices, called

if TYPE_CHECKING:
    from kdaverify.adapters.base import Adapter
    from kdaverify.problems import Bounds, Problem
    from kdaverify.problems.panel import NamedProblem

BEYOND_FP16: Final = "beyond-fp16"
_SMOKE: Final = "smoke"
_USUAL: Final = ("bf16", "fp32")
_COMMON: Final = 3
"""Problems of a shape that a kernel is compiled for in every format: of 52 shapes of the panel four
have as many. With every shape in three formats FLA's acceptance had 101 sets of constants here."""


def _same(names: Iterable[str]) -> Choices:
    return [(name, name) for name in names]


def _named(adapter: Adapter, profile: str) -> Choices:
    from kdaverify.adapters.fitting import fitted
    from kdaverify.problems import panel

    found: list[tuple[str, Problem]] = []
    one_format = _one_format(adapter, profile)
    for dtype in adapter.dtypes:
        for entry in panel(dtype, profile, real_sizes=takes_real_sizes(adapter, dtype)):
            problem = fitted(adapter, entry.problem)
            if any(getattr(problem, x) != getattr(entry.problem, x) for x in entry.about):
                continue
            if problem.state == BEYOND_FP16 and stores_states_in_fp16(adapter, dtype):
                continue
            if one_format.get(entry.name, dtype) == dtype:
                found.append((f"{dtype}-{entry.name}", problem))
    return found


def _one_format(adapter: Adapter, profile: str) -> Mapping[str, str]:
    """The panel's problems that a profile tests in one format, by name: formats take turns.

    Of a kernel that is compiled for sizes these are the problems of a shape that hardly any other
    has, too, all of a shape in the same format.
    """
    from kdaverify.problems.panel import PANEL, REAL_SIZES

    entries = (*PANEL, *REAL_SIZES)
    alone = [entry for entry in entries if profile == _SMOKE and profile in entry.one_format]
    turns = {entry.name: number for number, entry in enumerate(alone)}
    if adapter.compiled and profile != "nightly":
        turns = _turns_of_shapes([one for one in entries if one.profile in (_SMOKE, profile)])
    formats = {
        entry.name: [dtype for dtype in adapter.dtypes if dtype in entry.dtypes]
        for entry in entries
    }
    return {
        name: formats[name][turn % len(formats[name])]
        for name, turn in turns.items()
        if formats[name]
    }


def _turns_of_shapes(entries: Sequence[NamedProblem]) -> Mapping[str, int]:
    """By name the number of its shape. Problems of common shapes are left out, but for those about
    sizes alone.
    """
    from kdaverify.problems.compiled_shapes import compiled_for

    shapes: dict[tuple[object, ...], list[NamedProblem]] = {}
    for entry in entries:
        shapes.setdefault(compiled_for(entry.problem), []).append(entry)
    return {
        entry.name: number
        for number, some in enumerate(shapes.values())
        for entry in some
        if entry.one_format or len(some) < _COMMON
    }


def stores_states_in_fp16(adapter: Adapter, dtype: str) -> bool:
    """Whether the contract permits infinite states past 65,504."""
    from kdaverify.budgets.formats import FORMATS

    contract, io = adapter.contract(dtype), FORMATS[dtype]
    return any(contract.storage(tensor, io).name == "fp16" for tensor in ("S", "h"))


def _named_backward(adapter: Adapter, profile: str) -> Choices:
    from kdaverify.budgets.standard import FLOAT64_ORACLE_PRECISION
    from kdaverify.problems.cost import gradients_are_quick

    def quick(problem: Problem) -> bool:
        balls = (
            adapter.backward_contract(problem.dtype).operands.precision > FLOAT64_ORACLE_PRECISION
        )
        return gradients_are_quick(problem, accelerated=adapter.device != "cpu", balls=balls)

    found = _named(adapter, profile)
    return found if profile == "nightly" else [choice for choice in found if quick(choice[1])]


def _overflowing(adapter: Adapter, profile: str) -> Choices:
    from kdaverify.adapters.fitting import fitted
    from kdaverify.problems.cotangents import OVERFLOWING

    del profile
    dtype = OVERFLOWING.dtype
    return [(dtype, fitted(adapter, OVERFLOWING))] if dtype in adapter.dtypes else []


def _rows(adapter: Adapter, profile: str) -> Choices:
    from kdaverify.operators.kda.coverage import rows

    return [(f"{row.problem.dtype}-{row.problem.seed}", row) for row in rows(adapter, profile)]


def _probed(adapter: Adapter, profile: str) -> Choices:
    from kdaverify.adapters.fitting import fitted
    from kdaverify.problems.probes import probes

    return [
        (f"{dtype}-{probe.name}", probe.of(fitted(adapter, probe.problem)))
        for dtype in adapter.dtypes
        for probe in probes(dtype, profile)
    ]


def _lawful(adapter: Adapter, profile: str) -> Choices:
    from kdaverify.checks.laws.registry import LAWS

    return [
        (f"{dtype}-{law}", (law, dtype))
        for dtype in lawful_dtypes(adapter, profile)
        for law in LAWS
        if _can_hold(adapter, law, dtype)
    ]


def _can_hold(adapter: Adapter, law: str, dtype: str) -> bool:
    """Whether the domain has problems of the kind that the law needs."""
    from kdaverify.checks.laws.registry import LAWS
    from kdaverify.problems import panel

    chosen, domain = LAWS[law], adapter.domain
    if chosen.wanted.get("packed") and not domain.packed:
        return False
    tried = (domain.fit(entry.problem) for entry in panel(dtype, _SMOKE))
    return any(
        chosen.untestable(problem) is None and not any(map(domain.refuses, chosen.becomes(problem)))
        for problem in tried
    )


def _activated(adapter: Adapter, profile: str) -> Choices:
    from kdaverify.operators.pointwise.check import activated

    del profile
    return [(f"{op}-{dtype}", (op, dtype)) for op, dtype in activated(adapter)]


def _staged(*, backward: bool) -> Callable[[Adapter, str], Choices]:
    def choices(adapter: Adapter, profile: str) -> Choices:
        from kdaverify.checks.stages import staged

        del profile
        return _same(staged(adapter, backward=backward))

    return choices


def _gate(adapter: Adapter, profile: str) -> Choices:
    from kdaverify.problems.regimes import GATES

    del profile
    # Regimes without weight are named by probes alone; a kernel whose channels share a gate cannot
    # be given all of them.
    return _same(
        name for name, regime in GATES.items() if regime.weight and adapter.domain.has(name)
    )


def lawful_dtypes(adapter: Adapter, profile: str) -> tuple[str, ...]:
    """The formats that laws are tested in: in smoke the usual ones, where taken."""
    usual = tuple(dtype for dtype in adapter.dtypes if dtype in _USUAL)
    return usual if usual and profile == _SMOKE else adapter.dtypes


def drifting(adapter: Adapter, profile: str) -> Choices:
    """The drift cases of a profile for the implementation: feeding and problem."""
    from kdaverify.adapters.fitting import fitted
    from kdaverify.problems.drift_probes import drift_cases

    return [
        (f"{dtype}-{case.name}", (case.way, fitted(adapter, case.problem(dtype))))
        for dtype in adapter.dtypes
        for case in drift_cases(profile, dtype, adapter.dtypes)
    ]


def takes_real_sizes(adapter: Adapter, dtype: str) -> bool:
    """Kernels on an accelerator with a sharp float64 oracle: balls would take hours."""
    from kdaverify.budgets.standard import FLOAT64_ORACLE_PRECISION

    return (
        adapter.device != "cpu"
        and adapter.contract(dtype).operands.precision <= FLOAT64_ORACLE_PRECISION
    )


REAL_SIZES: Final = 8.0
"""How many times the cost of a random problem may grow for kernels on an accelerator."""
INTERPRETED: Final = 1 / 3
"""And what is left of it for interpreted ones, whose tokens cost a thousand times what compiled
ones do: still two chunks."""


def bounds_of(adapter: Adapter, chosen: Mapping[str, Any], profile: str) -> Bounds:
    """The bounds of one test.

    Args:
        chosen: the axes of the test; that of the format counts.
    """
    from kdaverify.problems.profiles import cost_of

    cost = cost_of(profile)
    dtype = next(
        (chosen[axis] for axis in ("dtype", "staged", "staged_backward") if axis in chosen), None
    )
    # On an accelerator a token of full width costs little, and a case of a single chunk shows
    # little.
    if dtype in adapter.dtypes and takes_real_sizes(adapter, dtype):
        cost *= REAL_SIZES
    if adapter.environment()["mode"] == "interpreted":
        cost *= INTERPRETED
    return {
        "max_cost": cost,
        "widths": adapter.widths,
        "domain": adapter.domain,
        "compiled": adapter.compiled,
    }


AXES: Final[Mapping[str, Callable[[Adapter, str], Choices]]] = {
    "dtype": lambda adapter, _: _same(adapter.dtypes),
    "double": lambda adapter, _: _same(dtype for dtype in adapter.dtypes if dtype == "fp64"),
    "staged": _staged(backward=False),
    "staged_backward": _staged(backward=True),
    "activated": _activated,
    "variant": lambda adapter, _: _same(adapter.variants()),
    "lawful": _lawful,
    "gate": _gate,
    "named": _named,
    "named_backward": _named_backward,
    "overflowing": _overflowing,
    "probed": _probed,
    "drifting": drifting,
    "row": _rows,
    "called": called,
}
"""By the fixture's name, in the order of a test's id: what it goes over for an implementation under
a profile."""
