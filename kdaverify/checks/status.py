"""What can be said of one output of one run: its status, and how good it is, as a letter."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Literal, TypeAlias

REFUSED = "refused by the kernel: "
"""How the reason of a skip begins where the kernel itself said that it takes no such call; the
decision lists those as not tested."""


class Status(StrEnum):
    """PASS, SKIP and UNANSWERED are the only values that do not reject."""

    PASS = "PASS"  # noqa: S105 - a verdict, not a password
    FAIL = "FAIL"  # finite, but further from the truth than any conforming kernel
    NONFINITE = "NONFINITE"  # inf or NaN where the exact value is finite
    SHAPE = "SHAPE"
    DTYPE = "DTYPE"
    TYPE = "TYPE"  # not a torch tensor
    MISSING = "MISSING"  # None where an output was declared
    MUTATED_INPUT = "MUTATED_INPUT"
    ALIASED_OUTPUT = "ALIASED_OUTPUT"
    ERROR = "ERROR"  # the kernel raised
    CRASH = "CRASH"  # the kernel took its process with it, or left its device unusable
    HANG = "HANG"  # the kernel did not return within the time limit
    OOM = "OOM"  # the kernel requested more memory than there is, or than it may have
    CONVENTION = "CONVENTION"  # right under another convention than the declared one
    WRONG_KERNEL = "WRONG_KERNEL"  # another kernel ran than the one named
    ORACLE_UNCERTIFIED = "ORACLE_UNCERTIFIED"
    SKIP = "SKIP"  # the implementation does not support the problem; never counts as a pass
    UNANSWERED = "UNANSWERED"  # no outputs came back for an exported call; never counts as a pass

    @property
    def takes_process(self) -> bool:
        """Whether the kernel may have taken its process with it: run it in one of its own."""
        return self in (Status.CRASH, Status.HANG, Status.OOM)

    @property
    def names_cause(self) -> bool:
        """Whether the message is complete: the form of the call is wrong, whatever the numbers."""
        return self in _OF_FORM

    @property
    def judged(self) -> bool:
        """Whether there was something to judge."""
        return self not in (Status.SKIP, Status.UNANSWERED)

    @property
    def localised(self) -> bool:
        """Whether a stage may be to blame: a numeric failure, with the process still there."""
        elsewhere = (Status.CONVENTION, Status.WRONG_KERNEL, Status.ORACLE_UNCERTIFIED)
        return self.rejects and not self.takes_process and self not in elsewhere

    @property
    def rejects(self) -> bool:
        return self.judged and self is not Status.PASS


_OF_FORM = (
    Status.SHAPE, Status.DTYPE, Status.TYPE, Status.MISSING, Status.MUTATED_INPUT,
    Status.ALIASED_OUTPUT,
)  # fmt: skip


class RuleOutcome(StrEnum):
    """A rule's verdict, beside ours."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    FAIL = "fail"
    NOT_APPLICABLE = "n/a"


Grade: TypeAlias = Literal["A", "B", "C", "F"]
"""A componentwise, B row-scaled, C norm only, F."""
MEANING: Final[Mapping[str, str]] = {
    "A": "every statistic within tolerance",
    "B": "only relative errors of single elements over tolerance",
    "C": "rms within tolerance, rows or elements over it",
    "F": "rms over tolerance, an element above its proven bound, or no valid output",
}
"""What a letter says of an output, in one line."""


def grade_of(ratios: dict[str, float]) -> Grade:
    """The finest measure whose statistics, and those of every coarser one, are within tolerance."""
    over = {name for name, ratio in ratios.items() if ratio > 1}
    if not over:
        return "A"
    if over <= {"median", "tail"}:
        return "B"
    return "F" if over & {"rms", "ceiling"} else "C"
