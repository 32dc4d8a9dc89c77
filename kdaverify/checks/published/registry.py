"""Every published rule there is, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kdaverify.checks.published import (
    ascend,
    ascend_atk,
    attention_gym,
    backendbench,
    fla,
    flash_attention,
    flashinfer_bench,
    kernelbench,
    torch_testing,
    tt_metal,
)
from kdaverify.checks.published.rule import PublishedRule, RuleResult
from kdaverify.checks.published.sample import Sample

_PUBLISHERS: Final = (
    ascend,
    ascend_atk,
    fla,
    flash_attention,
    attention_gym,
    torch_testing,
    kernelbench,
    backendbench,
    flashinfer_bench,
    tt_metal,
)
RULES: Final[Mapping[str, PublishedRule]] = {
    rule.name: rule for publisher in _PUBLISHERS for rule in publisher.RULES
}


def findings(sample: Sample) -> dict[str, RuleResult]:
    """The result of every rule for one output."""
    return {name: rule.says(sample) for name, rule in RULES.items()}
