"""Kernels that raised in every case for one reason: they cannot run here; no evidence."""

from __future__ import annotations

import re
from typing import Final

from kdaverify.checks.status import Status
from kdaverify.verdicts.tally import VerdictCounts, VerdictKind

CANNOT_RUN: Final = "cannot run here"
# Where it was raised: forward and backward reach the same missing function from different lines.
_PLACE: Final = re.compile(r" \([^()]*:\d+ in .*\)$")
_TYPE: Final = re.compile(r"\braised (?P<type>\w+):")
# What Python raises for a name that another version of a package has, whichever names they are.
_MISSING: Final = {"AttributeError", "ImportError", "ModuleNotFoundError", "NotImplementedError"}


def cannot_run(counted: VerdictCounts) -> str:
    """Why an implementation cannot run here; "" where it can, or where problems decide.

    A kernel that gave any output was judged by it: there an error in other cases is a rejection.
    """
    judged = [
        kind for kind in counted.kinds if Status(kind.status).judged and not _refused_a_call(kind)
    ]
    if not judged or any(kind.status != Status.ERROR for kind in judged):
        return ""
    errors = {_PLACE.sub("", error) for error in counted.errors}
    types = {match["type"] if (match := _TYPE.search(error)) else "" for error in errors}
    if len(errors) > 1 and not types <= _MISSING:
        return ""
    count = counted.cases[Status.ERROR]
    others = f" (and {len(errors) - 1} others)" if len(errors) > 1 else ""
    return (
        f"{CANNOT_RUN}: {counted.errors[0]}{others}; so in {'each of ' if count > 1 else ''}{count}"
        f" case{'s' if count > 1 else ''} tried"
    )


def _refused_a_call(kind: VerdictKind) -> bool:
    """Whether a kernel passed by refusing a wrong call, which needs no working kernel."""
    return kind.property == "calls" and kind.output == "call" and kind.status == Status.PASS
