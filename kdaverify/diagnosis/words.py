"""A diagnosis as a record keeps it, in words, and what they name; read without what makes it."""

from __future__ import annotations

import re
from typing import Final

FITS: Final = "matches "
"""How a diagnosis in words begins that names something."""
KNOWN: Final = "known bug "
OR: Final = f", or {KNOWN}"
SIMPLE: Final = "a simple mistake: "
DIFFERS: Final = "results differ between runs of the same inputs"
"""How the diagnosis of a race begins."""
PERHAPS: Final = "perhaps a race: "
"""How it begins where a race was found in another call of the same kernel alone."""
NOTHING_FAILS: Final = "run again, nothing fails"
"""How the diagnosis of a failure begins that does not come back."""
BRIEFLY: Final = "; in short: "
SAME_AS: Final = f"the wrong results are those of {KNOWN}"
NONFINITE_AS: Final = f"NaN or infinity is where it is with {KNOWN}"
RESIDUAL: Final = " (residual "
MORE: Final = ", and {} more"
"""Behind the bugs that are named, where others match as well."""
_MORE: Final = re.compile(MORE.format(r"\d+") + "$")
CONSISTENT: Final = "consistent with an error "
"""How an analysis of the error itself begins that singles out no mistake."""
FURTHER: Final = "not the whole cause: "
"""How a diagnosis goes on where what matches does not explain another failure of the call."""


def names_of(reported: str) -> tuple[str, ...]:
    """Of a diagnosis in words, the names of what fits; () where nothing does."""
    if not reported.startswith(FITS):
        return ()
    found = reported.removeprefix(FITS).partition(RESIDUAL)[0].partition(BRIEFLY)[0]
    return tuple(sorted(found.removeprefix(KNOWN).split(OR)))


def further(reported: str) -> str:
    """Of a diagnosis in words, what the bug that matches leaves of another failure; "" else."""
    return reported.partition(FURTHER)[2].partition("; ")[0]


def known_bugs(reported: str) -> dict[str, str]:
    """Of a diagnosis in words, the titles of the known bugs that fit, by id.

    {} where more fit than are named: a failure that nineteen bugs match distinguishes none of them,
    and was taken for a third bug of two.
    """
    names = names_of(reported) if reported.startswith(FITS + KNOWN) else ()
    if any(map(_MORE.search, names)):
        return {}
    pairs = (name.partition(": ") for name in names)
    return {bug: title for bug, _, title in pairs}
