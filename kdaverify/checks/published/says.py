"""The results that a published rule can have."""

from __future__ import annotations

from enum import StrEnum


class RuleOutcome(StrEnum):
    """A rule's verdict, beside ours."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    FAIL = "fail"
    NOT_APPLICABLE = "n/a"
