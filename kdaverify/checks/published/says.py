"""What a published rule can say of an output."""

from __future__ import annotations

from enum import StrEnum


class RuleOutcome(StrEnum):
    """A rule's verdict, beside ours."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    FAIL = "fail"
    NOT_APPLICABLE = "n/a"
