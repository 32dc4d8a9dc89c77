"""What every suite asks of a problem, by the suite's name, so that a verdict can be replayed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from kdaverify.adapters.base import Adapter
from kdaverify.checks.activations import activations
from kdaverify.checks.calls import calls
from kdaverify.checks.calls.rules import RULES
from kdaverify.checks.causality import causality
from kdaverify.checks.combined import combined
from kdaverify.checks.cotangent_linearity import cotangent_linearity
from kdaverify.checks.drift import drift
from kdaverify.checks.forward import forward
from kdaverify.checks.gradcheck import gradcheck
from kdaverify.checks.gradients import gradients
from kdaverify.checks.jacobian import jacobian
from kdaverify.checks.laws.registry import LAWS, laws
from kdaverify.checks.options import options
from kdaverify.checks.outcome import Outcome, skipped
from kdaverify.checks.packing import packing
from kdaverify.checks.probes import probes
from kdaverify.checks.resume import resume
from kdaverify.checks.self_consistency import self_consistency
from kdaverify.checks.stages import backward_stages, stages
from kdaverify.problems import ActivationProblem, Problem, ProblemError
from oracles.autograd import ForwardOnlyError
from oracles.operations import OPERATIONS

PROPERTIES: Mapping[str, Callable[..., list[Outcome]]] = {
    "forward": forward,
    "panel": forward,
    "state": forward,
    "extreme_gates": forward,
    "resume": resume,
    "packing": packing,
    "causality": causality,
    "options": options,
    "combined": combined,
    "gradients": gradients,
    "gradcheck": gradcheck,
    "self_consistency": self_consistency,
    "jacobian": jacobian,
    "cotangent_linearity": cotangent_linearity,
    "laws": laws,
    "stages": stages,
    "backward_stages": backward_stages,
    "activations": activations,
    "probes": probes,
    "drift": drift,
    "calls": calls,
}


OF_GRADIENTS: Final = ("gradients", "gradcheck", "self_consistency", "jacobian", "cotangent_linearity")
"""Properties of the backward alone."""


def check(name: str, adapter: Adapter, problem: Problem | ActivationProblem, detail: Mapping[str, Any]) -> list[Outcome]:
    """The outcomes of property `name`, or the reason why `adapter` does not support the problem.

    Args:
        name: a key of PROPERTIES.
        detail: the property's own arguments (direction, cut, way, arrangement, variant, of, exponent, feed, order, law, probe, rule,
            times).
    Raises:
        ProblemError: the property is not asked of such a problem.
    """
    beside = isinstance(problem, ActivationProblem)
    if beside != (name == "activations"):
        raise ProblemError(f"problem: property {name} is not asked of {problem.op}; activations is asked of {', '.join(OPERATIONS)} alone")
    if problem.dtype not in adapter.dtypes:
        return skipped(f"{adapter.name} does not take {problem.dtype} (it takes {', '.join(adapter.dtypes)})")
    if not adapter.differentiable and is_of_gradients(name, detail):
        # Before a problem is built: at real sizes that takes longer than most forward checks.
        return skipped(str(ForwardOnlyError(f"{adapter.name} has no backward")))
    adapter.begin(f"{name} {problem.to_json()} {json.dumps(detail, sort_keys=True)}")
    reason = None if isinstance(problem, ActivationProblem) else adapter.supports(problem)
    return skipped(reason) if reason else PROPERTIES[name](adapter, problem, **detail)


def is_of_gradients(name: str, detail: Mapping[str, Any]) -> bool:
    """Whether only gradients are tested: by the property, or by its direction, law or rule."""
    if name == "combined":
        return str(detail.get("direction")).startswith("gradients")
    law, rule = LAWS.get(str(detail.get("law"))), RULES.get(str(detail.get("rule")))
    return name in OF_GRADIENTS or (law is not None and law.backward) or (rule is not None and rule.backward)
