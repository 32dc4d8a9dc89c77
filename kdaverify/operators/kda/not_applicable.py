"""Which suites do not apply to an implementation, and why: what it does not declare."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from kdaverify.checks.property_table import named
from kdaverify.operator import FILES, NO_BACKWARD
from kdaverify.operators.kda.axes import drifting

if TYPE_CHECKING:
    from kdaverify.adapters.base import Adapter


@lru_cache(maxsize=8)
def not_applicable(adapter: Adapter, profile: str) -> dict[str, str]:
    """The properties that an implementation declares to lack, and why: no case has them."""
    outputs = exposed(adapter, profile)
    if adapter.differentiable:
        backward = {}
    else:
        backward = dict.fromkeys(named(lambda found: found.backward), NO_BACKWARD)
    return {**_undeclared(adapter, outputs), **backward}


def exposed(adapter: Adapter, profile: str) -> tuple[str, ...]:
    """The outputs it declares to return for any problem of the panel that it takes."""
    from kdaverify.adapters.fitting import fitted
    from kdaverify.problems import panel

    tested = [
        fitted(adapter, entry.problem)
        for dtype in adapter.dtypes
        for entry in panel(dtype, profile)
    ]
    return tuple(
        sorted(
            {
                output
                for problem in tested
                if adapter.supports(problem) is None
                for output in adapter.exposes(problem)
            }
        )
    )


def _undeclared(adapter: Adapter, outputs: tuple[str, ...]) -> dict[str, str]:
    from kdaverify.checks.stages import staged
    from kdaverify.operators.pointwise.check import activated

    refused = _all_refused(adapter)
    lacks = {
        "packing": _no_packs(adapter),
        "options": "" if adapter.variants() else "it declares no options",
        "stages": "" if staged(adapter) else "it exposes no stage",
        "backward_stages": (
            "" if staged(adapter, backward=True) else "it exposes no stage of the backward"
        ),
        "activations": "" if activated(adapter) else "it exposes no activation, beta or l2norm",
        "gradcheck": "" if "fp64" in adapter.dtypes else "it takes no fp64",
        "resume": _no_resume(adapter, outputs),
        "jacobian": _no_tiny_problem(adapter),
        "self_consistency": "it takes fp64 alone" if {*adapter.dtypes} <= {"fp64"} else "",
        "drift": _no_drift(adapter),
        "calls": "" if adapter.open_ended else FILES,
        "extreme_gates": f"it takes no extreme gate ({refused})" if refused else "",
    }
    return {name: reason for name, reason in lacks.items() if reason}


def _no_packs(adapter: Adapter) -> str:
    if adapter.conventions.packing == "none":
        return "it declares packing='none'"
    return "" if adapter.domain.packed else "it takes no packed sequences"


def _no_resume(adapter: Adapter, outputs: tuple[str, ...]) -> str:
    from oracles.tensors import OUTPUTS

    if not {*OUTPUTS} <= {*outputs}:
        return "it exposes no final state"
    return "" if adapter.domain.states else "it takes no initial state"


def _no_tiny_problem(adapter: Adapter) -> str:
    """Why no problem is small enough to differentiate every output element; "" if one is."""
    from kdaverify.checks.jacobian import most_rows, rows
    from kdaverify.problems import Problem

    if {*adapter.dtypes} <= {"fp64"}:
        return "it takes fp64 alone"
    named = {
        "dtype": adapter.dtypes[-1],
        "gate": "mild",
        "key": "random",
        "beta": "uniform",
        "state": "absent",
        "value": "normal",
    }
    tiny = Problem.model_validate(
        {**dict.fromkeys(("B", "T", "H", "HV", "K", "V"), 1), **named, "seed": 0}
    )
    least = rows(adapter.domain.fit(tiny))
    return f"its smallest problem has {least} output elements" if least > most_rows(adapter) else ""


def _no_drift(adapter: Adapter) -> str:
    """Why it cannot be tested on a long run of smoke; "" if it takes one."""
    if {*adapter.dtypes} <= {"fp64"}:
        return "it takes fp64 alone"
    reasons = [adapter.supports(problem) for _, (_, problem) in drifting(adapter, "smoke")]
    return f"it takes no long run ({reasons[0]})" if all(reasons) else ""


def _all_refused(adapter: Adapter) -> str | None:
    """Why its interface expresses none of the extreme gates; None if it takes one."""
    from kdaverify.adapters.fitting import fitted
    from kdaverify.problems import panel
    from kdaverify.problems.regimes.gate import EXTREME

    plain = fitted(adapter, panel(adapter.dtypes[-1], "smoke")[0].problem)
    reasons = [adapter.supports(plain.replace(gate=gate)) for gate in EXTREME]
    return reasons[0] if all(reasons) and adapter.supports(plain) is None else None


def outside(adapter: Adapter) -> tuple[str, ...]:
    """What no case is generated for: problems outside the domain, invisible memory."""
    taken = adapter.domain.leaves_out()
    problems = (f"{what} (outside the declared domain)" for what in taken)
    backward = () if adapter.backward_domain is None else adapter.backward_domain.leaves_out()
    gradients = (
        f"gradients of {what} (outside the declared domain of the backward)"
        for what in backward
        if what not in taken
    )
    parameters = adapter.conventions.gate_parameters
    if adapter.differentiable and parameters != "none" and not adapter.sums_gates:
        unjudged = (f"gradients of {parameters.replace('+', ' and ')} (sums over all tokens)",)
    else:
        unjudged = ()
    hidden = (
        f"rules of calls about {channel} of the kernel ({why})"
        for channel, why in adapter.barriers.items()
    )
    return (*problems, *gradients, *unjudged, *adapter.unjudged, *hidden)
