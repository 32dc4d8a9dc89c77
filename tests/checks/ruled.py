"""What rules of calls say of a kernel."""

from __future__ import annotations

from collections.abc import Collection

from kdaverify.adapters.base import Adapter
from kdaverify.checks.calls import questions
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status


def statuses(adapter: Adapter, rules: Collection[str]) -> dict[str, set[Status]]:
    """By rule, of all its cases in smoke."""
    found = dict[str, set[Status]]()
    for one in questions(adapter, "smoke"):
        if one.rule.name in rules:
            said = check("calls", adapter, one.problem, one.detail)
            found.setdefault(one.rule.name, set()).update(outcome.status for outcome in said)
    return found
