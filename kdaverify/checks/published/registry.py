"""Every published rule there is, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kdaverify.checks.published import ascend, frameworks, libraries
from kdaverify.checks.published.rule import PublishedRule, RuleResult
from kdaverify.checks.published.sample import Sample

RULES: Final[Mapping[str, PublishedRule]] = {
    rule.name: rule for publisher in (ascend, libraries, frameworks) for rule in publisher.RULES
}


def findings(sample: Sample) -> dict[str, RuleResult]:
    """The result of every rule for one output."""
    return {name: rule.says(sample) for name, rule in RULES.items()}
