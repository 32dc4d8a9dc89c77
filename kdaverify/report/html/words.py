"""What statuses, rulings, grades and columns are called on the page."""

from __future__ import annotations

from typing import Final

from kdaverify.checks.status import MEANING, Status
from kdaverify.report.html.facts import PURPOSES
from kdaverify.verdicts.decision import Ruling

RULINGS: Final = {
    Ruling.ACCEPT: "accepted",
    Ruling.REJECT: "rejected",
    Ruling.ERROR: "not judged",
    Ruling.INSUFFICIENT: "undecided",
}
SIGNS: Final = {"accept": "✓", "provisional": "✓", "reject": "✗", "error": "!", "insufficient": "?"}
"""By the style of a decision."""
STATUSES: Final = {
    Status.PASS: "within tolerance",
    Status.FAIL: "with an error over the tolerance",
    Status.NONFINITE: "infinite or NaN where the exact value is finite",
    Status.SHAPE: "of the wrong shape",
    Status.DTYPE: "of the wrong number format",
    Status.TYPE: "not a tensor",
    Status.MISSING: "missing",
    Status.MUTATED_INPUT: "beside an input that was changed",
    Status.ALIASED_OUTPUT: "sharing memory with another tensor",
    Status.ERROR: "without a result, as the kernel raised an error",
    Status.CRASH: "without a result, as the kernel's process crashed",
    Status.HANG: "not returned within the time limit",
    Status.OOM: "out of memory",
    Status.CONVENTION: "right under another convention than the declared one",
    Status.WRONG_KERNEL: "from another kernel than the one named",
    Status.ORACLE_UNCERTIFIED: "without a certified reference value",
    Status.SKIP: "not supported, so not tested",
    Status.UNANSWERED: "without an answer",
}
GRADES: Final = MEANING
__all__ = ["GRADES", "PURPOSES", "RULINGS", "SIGNS", "STATUSES", "counted", "figure", "headline"]
MOST_TITLED: Final = 3


def counted(number: int, noun: str) -> str:
    """`1 case`, `2,718 cases`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def figure(ratio: float | None) -> str:
    """A multiple of a tolerance in three digits; "-" where there is none."""
    if ratio is None:
        return "-"
    return "∞" if ratio == float("inf") else f"{ratio:.3g}"


def headline(text: str) -> str:
    """The first line."""
    return text.partition("\n")[0]
