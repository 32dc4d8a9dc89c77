"""The rules of calls that failures break, where most other rules hold: what memory, order or number
of calls has to do with them, which no trait of a problem says.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kdaverify.checks.calls import RULES
from kdaverify.verdicts.verdict import Verdict

MOST: Final = 5
"""Rules in a sentence: a kernel that breaks more is wrong in plain calls too, or in several ways,
and its failures say more than their number."""
SHARE: Final = 0.5
"""Of all failures, that the rules have at least. Every rule makes calls, and fails where plain
calls of its kind do: of twenty broken ports four that were wrong in packs, or for deep gates, broke
four of forty rules, none of which had to do with it."""
HOLDING: Final = 2
"""Rules that hold for each that is broken, at least. A kernel that is wrong whenever it is called
breaks nearly all; the least that a run of smoke tests is 22 rules, of a kernel without packs and
gradients."""


def failing_rules(verdicts: Iterable[Verdict]) -> list[str]:
    """One sentence on the rules that are broken, or that are in one output where others fail in
    plain calls too; [] where there are none, or too many to say.

    Failures that are the same as one of a plain call are no news of a rule.

    Args:
        verdicts: of one implementation.
    """
    rows = [*verdicts]
    outputs = dict.fromkeys(row.output for row in rows if row.status.rejects)
    # Strides that o ignores were hidden behind a final state that is wrong in every tail.
    parts = ([row for row in rows if row.output == output] for output in outputs)
    said = [_sentence(rows), *(_sentence(part, f" in {part[0].output}") for part in parts)]
    return [*filter(None, said)][:1]


def _sentence(rows: Iterable[Verdict], where: str = "") -> str:
    """The rules that are broken in these verdicts; "" where they are not what is wrong."""
    broken, failures, of_rules = dict[str, bool](), 0, 0
    for row in rows:
        failures += row.status.rejects
        rule = str(row.detail.get("rule"))
        if rule in RULES and row.status.judged and not row.left_open():
            rejects = row.status.rejects and not row.same_as
            broken[rule] = broken.get(rule, False) or rejects
            of_rules += rejects
    wrong = [rule for rule, is_broken in broken.items() if is_broken]
    few = 0 < len(wrong) <= MOST and len(broken) - len(wrong) >= HOLDING * len(wrong)
    if not few or of_rules < SHARE * failures:
        return ""
    listed = "; ".join(f"{rule} ({RULES[rule].about})" for rule in sorted(wrong))
    verb = "is" if len(wrong) == 1 else "are"
    return f"{len(wrong)} of {len(broken)} rules of calls {verb} broken{where}: {listed}"
