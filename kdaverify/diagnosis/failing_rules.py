"""The rules of calls that failures break, where most other rules hold: what memory, order or number
of calls has to do with them, which no trait of a problem says.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kdaverify.checks.calls import RULES
from kdaverify.verdicts.verdict import Verdict

MOST: Final = 4
"""Rules in a sentence: a kernel that breaks more is wrong in plain calls too, or in several ways,
and its failures say more than their number."""
HOLDING: Final = 2
"""Rules that hold for each that is broken, at least. A kernel that is wrong whenever it is called
breaks nearly all; the least that a run of smoke tests is 22 rules, of a kernel without packs and
gradients."""


def failing_rules(verdicts: Iterable[Verdict]) -> list[str]:
    """One sentence on the rules that are broken; [] where there are none, or too many to say.

    Failures that are the same as one of a plain call are no news of a rule.

    Args:
        verdicts: of one implementation.
    """
    broken = dict[str, bool]()
    for row in verdicts:
        rule = str(row.detail.get("rule"))
        if rule in RULES and row.status.judged and not row.left_open():
            rejects = row.status.rejects and not row.same_as
            broken[rule] = broken.get(rule, False) or rejects
    wrong = [rule for rule, is_broken in broken.items() if is_broken]
    if not 0 < len(wrong) <= MOST or len(broken) - len(wrong) < HOLDING * len(wrong):
        return []
    listed = "; ".join(f"{rule} ({RULES[rule].about})" for rule in sorted(wrong))
    verb = "is" if len(wrong) == 1 else "are"
    return [f"{len(wrong)} of {len(broken)} rules of calls {verb} broken: {listed}"]
