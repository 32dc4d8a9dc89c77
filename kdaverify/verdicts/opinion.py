"""The result of one published rule for one output, as a record keeps it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from kdaverify.checks.status import RuleOutcome


class Opinion(BaseModel):
    """One rule's verdict.

    Args:
        says: pass, fail or n/a.
        statistic: what it measured, or why nothing was.
        value, limit: of that; None where there is no figure.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    says: RuleOutcome
    statistic: str
    value: float | None = None
    limit: float | None = None
