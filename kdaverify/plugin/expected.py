"""What a session wants shown of an implementation before it is accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import kdaverify
from kdaverify.plugin.collect import property_of
from kdaverify.plugin.coverage import covered
from kdaverify.plugin.not_applicable import excuses, exposed
from kdaverify.plugin.options import Subject
from kdaverify.verdicts.seal import Expected
from kdaverify.verdicts.verdict import Verdict

if TYPE_CHECKING:
    from kdaverify.adapters.base import Adapter


def expected(subject: Subject, asked: set[str], profile: str, verdicts: Sequence[Verdict] = ()) -> Expected:
    """All that it declares, by every suite there is.

    Args:
        asked: properties that were asked of it.
        verdicts: what came of them.
    """
    adapter = subject.adapter
    # All that ship, so that a part of them accepts nothing.
    return declared(adapter, asked | shipped(), profile, verdicts, missing=subject.missing)


def shipped() -> set[str]:
    """The property of every suite."""
    return {property_of(path) for path in kdaverify.suites_folder().rglob("test_*.py")}


def declared(adapter: Adapter, properties: set[str], profile: str, verdicts: Sequence[Verdict], *, missing: str | None = None) -> Expected:
    """Some properties, in every format and output that an implementation declares.

    Args:
        missing: why it cannot run here, or None.
    """
    outputs = () if missing else exposed(adapter, profile)
    excused = {} if missing else excuses(adapter, profile, verdicts)
    return Expected(
        implementation=adapter.name,
        dtypes=adapter.dtypes,
        outputs=outputs,
        properties=tuple(sorted(properties)),
        excused={name: why for name, why in excused.items() if name in properties},
        outside=() if missing else _outside(adapter),
        covered=() if missing or "combined" not in properties else covered(adapter, profile, verdicts),
    )


def _outside(adapter: Adapter) -> tuple[str, ...]:
    """What no case is generated for: problems outside the domain, and rules of calls about what nobody can see."""
    taken = adapter.domain.leaves_out()
    problems = (f"{what} (outside the declared domain)" for what in taken)
    backward = () if adapter.backward_domain is None else adapter.backward_domain.leaves_out()
    gradients = (f"gradients of {what} (outside the declared domain of the backward)" for what in backward if what not in taken)
    hidden = (f"rules of calls about {channel} of the kernel ({why})" for channel, why in adapter.barriers.items())
    return (*problems, *gradients, *hidden)
