"""What an implementation is not asked, and why: a suite that asks for what it does not declare proves nothing against it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kdaverify.plugin.collect import drifting, fitted

if TYPE_CHECKING:
    from kdaverify.adapters.base import Adapter
    from kdaverify.verdicts.verdict import Verdict

NEED_A_BACKWARD: Final = ("gradients", "gradcheck", "self_consistency", "jacobian", "cotangent_linearity")
"""Properties that ask for derivatives."""


def excuses(adapter: Adapter, outputs: tuple[str, ...], verdicts: Sequence[Verdict]) -> dict[str, str]:
    """The reason by property.

    Args:
        adapter: one that can run here.
        outputs: those that it exposes.
        verdicts: what has come of it.
    """
    return {**_undeclared(adapter, outputs), **_forward_only(verdicts)}


def _undeclared(adapter: Adapter, outputs: tuple[str, ...]) -> dict[str, str]:
    from kdaverify.checks.activations import activated
    from kdaverify.checks.stages import staged

    refused = _all_refused(adapter)
    lacks = {
        "packing": "it declares packing='none'" if adapter.conventions.packing == "none" else "",
        "options": "" if adapter.variants() else "it declares no options",
        "stages": "" if staged(adapter) else "it exposes no stage",
        "backward_stages": "" if staged(adapter, backward=True) else "it exposes no stage of the backward",
        "activations": "" if activated(adapter) else "it exposes no activation, beta or l2norm",
        "gradcheck": "" if "fp64" in adapter.dtypes else "it takes no fp64",
        "resume": "" if "final_state" in outputs else "it exposes no final state",
        "drift": _no_drift(adapter),
        "calls": "" if adapter.open_ended else "its outputs come from files",
        "extreme_gates": f"it takes no extreme gate ({refused})" if refused else "",
    }
    return {name: reason for name, reason in lacks.items() if reason}


def _forward_only(verdicts: Sequence[Verdict]) -> dict[str, str]:
    from oracles.autograd import FORWARD_ONLY

    found: dict[str, str] = {}
    for name in NEED_A_BACKWARD:
        asked = [verdict for verdict in verdicts if verdict.property == name]
        told = [verdict.message for verdict in asked if verdict.message.startswith(FORWARD_ONLY)]
        if told and not any(verdict.status.judged for verdict in asked):
            found[name] = told[0]
    return found


def _no_drift(adapter: Adapter) -> str:
    """Why it cannot be asked any long run of smoke; "" if it takes one."""
    if {*adapter.dtypes} <= {"fp64"}:
        return "it takes fp64 alone"
    reasons = [adapter.supports(problem) for _, (_, problem) in drifting(adapter, "smoke")]
    return f"it takes no long run ({reasons[0]})" if all(reasons) else ""


def _all_refused(adapter: Adapter) -> str | None:
    """Why its interface expresses none of the extreme gates; None if it takes one."""
    from kdaverify.problems import panel
    from kdaverify.problems.regimes.gate import EXTREME

    plain = fitted(adapter, panel(adapter.dtypes[-1], "smoke")[0].problem)
    reasons = [adapter.supports(plain.replace(gate=gate)) for gate in EXTREME]
    return reasons[0] if all(reasons) and adapter.supports(plain) is None else None
