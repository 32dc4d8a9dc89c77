"""One property of one problem, tested of one implementation: by a suite, a campaign or a replay."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kdaverify.adapters import device_memory
from kdaverify.adapters.base import Adapter
from kdaverify.canonical import Canonical, ProblemError
from kdaverify.checks.calls.rules import RULES
from kdaverify.checks.laws.registry import LAWS
from kdaverify.checks.outcome import Outcome, declined, skipped
from kdaverify.checks.property_table import PROPERTIES, named
from kdaverify.operator import operator_of
from oracles.autograd import ForwardOnlyError


def check(
    name: str, adapter: Adapter, problem: Canonical, detail: Mapping[str, Any]
) -> list[Outcome]:
    """The outcomes of property `name`, or the reason why `adapter` does not support the problem.

    Args:
        name: a key of PROPERTIES.
        detail: the property's own arguments (direction, cut, way, arrangement, variant, of,
            exponent, feed, order, law, probe, rule, times).
    Raises:
        ProblemError: the property does not apply to such a problem.
    """
    operator = operator_of(problem)
    if operator.group not in PROPERTIES[name].groups:
        own = ", ".join(named(lambda found: operator.group in found.groups))
        raise ProblemError(
            f"problem: property {name} is not tested on {problem.op}, which has {own}"
        )
    if problem.dtype not in adapter.dtypes:
        return skipped(
            f"{adapter.name} does not take {problem.dtype} (it takes {', '.join(adapter.dtypes)})"
        )
    if not adapter.differentiable and is_of_gradients(name, detail):
        # Before a problem is built: at real sizes that takes longer than most forward checks.
        return skipped(str(ForwardOnlyError(f"{adapter.name} has no backward")))
    adapter.begin(f"{name} {problem.to_json()} {json.dumps(detail, sort_keys=True)}")
    reason = operator.refusal(adapter, problem)
    if reason:
        return skipped(reason)
    found = declined(PROPERTIES[name].check(adapter, problem, **detail))
    device_memory.release()
    # What stands in for outputs while calls are written down breaks whatever law looks at it.
    return found if adapter.answers else skipped("exported, not judged")


def is_of_gradients(name: str, detail: Mapping[str, Any]) -> bool:
    """Whether only gradients are tested: by the property, or by its direction, law or rule."""
    if name == "combined":
        return str(detail.get("direction")).startswith("gradients")
    law, rule = LAWS.get(str(detail.get("law"))), RULES.get(str(detail.get("rule")))
    return (
        PROPERTIES[name].of_gradients
        or (law is not None and law.backward)
        or (rule is not None and rule.backward)
    )
