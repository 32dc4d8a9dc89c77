"""The rules of calls that failures break, where most other rules hold: what memory, order or number
of calls has to do with them, which no trait of a problem says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from kdaverify.checks.calls import RULES
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.property_table import PROPERTIES, plain_call
from kdaverify.checks.status import Status
from kdaverify.diagnosis.words import DIFFERS
from kdaverify.verdicts.verdict import Verdict

MOST: Final = 5
"""Rules in a sentence: a kernel that breaks more is wrong in plain calls too, or in several ways,
and its failures say more than their number."""
EXPLAINED: Final = 2
"""Rules in a sentence that says what known kernels broke each by: a first-time user found a bug's
mechanism there, in the reference."""
SHARE: Final = 0.5
"""Of their failures and those of plain calls, that the rules have at least. Failures of laws are of
no plain call: a limit of a launch was hidden behind a final state that is wrong in short tails,
which three runs in parts began from. Every rule makes calls, and fails where plain
calls of its kind do: of twenty broken ports four that were wrong in packs, or for deep gates, broke
four of forty rules, none of which had to do with it."""
HOLDING: Final = 2
"""Rules that hold for each that is broken, at least. A kernel that is wrong whenever it is called
breaks nearly all; the least that a run of smoke tests is 22 rules, of a kernel without packs and
gradients."""
KINDS: Final[Mapping[str, Callable[[CallRule], bool]]] = {
    "of the decode entry point": lambda rule: rule.decode,
    "about addresses and strides": lambda rule: rule.channel == "memory",
    "of more than 1,000 tokens": lambda rule: rule.size in ("real", "long"),
}
"""What rules are about, where too many are broken to list. Beside a bug in whole sequences, six of
nine rules of the decode entry point were broken in the final state and no other rule, and no line
mentioned decoding."""
LEAST: Final = 3
"""Broken rules of a kind, at least."""
LEAST_J: Final = 0.4
"""As of sentences on cases (`common_factor`): strides that are ignored broke 13 of 25 rules about
them, and another bug of the same port 5 of 57 others."""
CHANCE: Final = 15.0
"""Least chi-squared (Pearson, one degree of freedom): p = 1e-4, 0.003 for some thirty pairs of a
kind and an output."""


def failing_rules(verdicts: Iterable[Verdict]) -> list[str]:
    """Sentences on the rules that are broken, or that are in one output where others fail in plain
    calls too: each, where they are few, else the kinds that they are of; [] where there are none.

    Failures that are the same as one of a plain call are no news of a rule.

    Args:
        verdicts: of one implementation.
    """
    rows = [*verdicts]
    outputs = dict.fromkeys(row.output for row in rows if row.status.rejects)
    # Strides that o ignores were hidden behind a final state that is wrong in every tail.
    parts = [
        (rows, ""),
        *(([row for row in rows if row.output == name], f" in {name}") for name in outputs),
        *((_failing_so(rows, status), f" by {status}") for status in _statuses(rows)),
    ]
    # A race breaks rules at random: of one five of fifteen were listed, of whatever was run.
    if not any(f"{row.diagnosis} {row.contrast}".count(DIFFERS) for row in rows):
        few = next(filter(None, (_sentence(part, where) for part, where in parts)), "")
        if few:
            return [few]
    return _kinds_of(parts)


def _statuses(rows: Iterable[Verdict]) -> list[Status]:
    """That calls raise, where others return wrong numbers: a kernel that raised at addresses of its
    own was hidden behind packs that were wrong. NaN of one call may make the next one raise.
    """
    found = {row.status for row in rows if row.status.rejects}
    apart = found >= {Status.ERROR, Status.FAIL} and Status.NONFINITE not in found
    return [Status.ERROR] if apart else []


def _failing_so(rows: Iterable[Verdict], status: Status) -> list[Verdict]:
    """The rows without other ways to fail than this one."""
    return [row for row in rows if row.status is status or not row.status.rejects]


def _sentence(rows: Sequence[Verdict], where: str) -> str:
    """The rules that are broken in these verdicts; "" where they are not what is wrong."""
    broken, rejected = _broken(rows), [row for row in rows if row.status.rejects]
    of_rules = sum(_is_of_rule(row) and not (row.same_as or row.left_open()) for row in rejected)
    plain = sum(
        not _is_of_rule(row)
        and row.property in PROPERTIES
        and plain_call(row.property, row.detail) != ""
        for row in rejected
    )
    wrong = [rule for rule, is_broken in broken.items() if is_broken]
    few = 0 < len(wrong) <= MOST and len(broken) - len(wrong) >= HOLDING * len(wrong)
    if not few or of_rules < SHARE * (of_rules + plain):
        return ""
    why = len(wrong) <= EXPLAINED
    listed = "; ".join(
        f"{rule} ({RULES[rule].about}{f'; it exposes {RULES[rule].exposes}' if why else ''})"
        for rule in sorted(wrong)
    )
    verb = "is" if len(wrong) == 1 else "are"
    return f"{len(wrong)} of {len(broken)} rules of calls {verb} broken{where}: {listed}"


def _is_of_rule(row: Verdict) -> bool:
    return str(row.detail.get("rule")) in RULES


def _broken(rows: Iterable[Verdict]) -> dict[str, bool]:
    """Of each rule that was judged, whether it is broken."""
    broken = dict[str, bool]()
    for row in rows:
        if _is_of_rule(row) and row.status.judged and not row.left_open():
            rule = str(row.detail["rule"])
            broken[rule] = broken.get(rule, False) or (row.status.rejects and not row.same_as)
    return broken


def _kinds_of(parts: Sequence[tuple[Sequence[Verdict], str]]) -> list[str]:
    """One sentence for each kind of which more rules are broken than of the others."""
    tables = [(_broken(part), where) for part, where in parts]
    found = (
        next(filter(None, (_kind(broken, where, about) for broken, where in tables)), "")
        for about in KINDS
    )
    return [*filter(None, found)]


def _kind(broken: Mapping[str, bool], where: str, about: str) -> str:
    """The sentence on one kind of rules; "" where others are broken as often.

    Math: Youden's J = a / m - (k - a) / (n - m), and chi-squared = n J^2 m (n - m) / (k (n - k)),
    of n rules m broken, k of the kind, a both.
    """
    kind = [rule for rule in broken if KINDS[about](RULES[rule])]
    wrong = [rule for rule in kind if broken[rule]]
    n, m, k, a = len(broken), sum(broken.values()), len(kind), len(wrong)
    if a < LEAST or not 0 < m < n or not 0 < k < n:
        return ""
    J = a / m - (k - a) / (n - m)
    if J < LEAST_J or n * J * J * m * (n - m) / (k * (n - k)) < CHANCE:
        return ""
    more = ", ..." if a > MOST else ""
    listed = ", ".join(wrong[:MOST])
    return f"{a} of {k} rules {about} are broken{where}, {m - a} of {n - k} others: {listed}{more}"
