"""A keyword that a function does not have is refused:
a misspelt one would be left out in silence.
"""

from __future__ import annotations

from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.status import Status

UNKNOWN = "inital_state"


def _refused(case: CallRuleCase) -> list[Outcome]:
    try:
        case.adapter.called_with(case.inputs.copied(), {UNKNOWN: None})
    except NotImplementedError as reason:
        raise Unreachable(str(reason)) from None
    except Exception as error:  # noqa: BLE001 # however it refuses
        return [
            Outcome("call", Status.PASS, f"call: {UNKNOWN}=None is refused: {type(error).__name__}")
        ]
    return [
        Outcome(
            "call",
            Status.FAIL,
            f"call: takes {UNKNOWN}=None without a word; name the keywords, or raise TypeError for"
            " others",
        )
    ]


RULES = (
    CallRule(
        "unknown-keyword",
        f"a keyword that no kernel has ({UNKNOWN}) raises",
        "keywords swallowed: offsets, states and flags lost (V10, V11)",
        _refused,
        inside=True,
    ),
)
