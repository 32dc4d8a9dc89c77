"""What a session wants shown of an implementation before it is accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kdaverify.checks.property_table import named
from kdaverify.plugin.options import Subject
from kdaverify.plugin.suite_files import shipped
from kdaverify.verdicts.seal import Expected
from kdaverify.verdicts.verdict import Verdict

if TYPE_CHECKING:
    from kdaverify.adapters.base import Adapter


def expected(
    subject: Subject, tested: set[str], profile: str, verdicts: Sequence[Verdict] = ()
) -> Expected:
    """All that it declares, by every suite there is.

    Args:
        tested: properties that were tested.
        verdicts: what came of them.
    """
    adapter = subject.adapter
    # All that ship, so that a part of them accepts nothing.
    return declared(
        adapter, tested | shipped(adapter.op), profile, verdicts, missing=subject.missing
    )


def declared(
    adapter: Adapter,
    properties: set[str],
    profile: str,
    verdicts: Sequence[Verdict],
    *,
    missing: str | None = None,
) -> Expected:
    """Some properties, in every format and output that an implementation declares.

    Args:
        missing: why it cannot run here, or None.
    """
    operator = adapter.operator
    outputs = () if missing else operator.exposed(adapter, profile)
    not_applicable = (
        {} if missing else {**operator.not_applicable(adapter, profile), **_forward_only(verdicts)}
    )
    return Expected(
        implementation=adapter.name,
        op=adapter.op,
        dtypes=adapter.dtypes,
        outputs=outputs,
        properties=tuple(sorted(properties)),
        not_applicable={name: why for name, why in not_applicable.items() if name in properties},
        outside=() if missing else operator.outside(adapter),
        covered=() if missing else operator.covered(adapter, profile, verdicts),
    )


def _forward_only(verdicts: Sequence[Verdict]) -> dict[str, str]:
    from oracles.autograd import FORWARD_ONLY

    found: dict[str, str] = {}
    for name in named(lambda found: found.of_gradients):
        tested = [verdict for verdict in verdicts if verdict.property == name]
        reported = [
            verdict.message for verdict in tested if verdict.message.startswith(FORWARD_ONLY)
        ]
        if reported and not any(verdict.status.judged for verdict in tested):
            found[name] = reported[0]
    return found
