"""What other published standards say: counts of a session, one output in full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from kdaverify.checks.status import RuleOutcome
from kdaverify.report.plain import reported
from kdaverify.verdicts.verdict import Verdict

TITLE = "what other published standards would have said"


@dataclass(frozen=True)
class PublishedRuleCounts:
    """The results of one rule on the outputs of a session.

    Args:
        passed, failed, not_applicable: outputs with this result.
        passed_rejected: outputs it passes and we reject.
        failed_passed: outputs it fails and we pass.
    """

    rule: str
    passed: int
    failed: int
    not_applicable: int
    passed_rejected: int
    failed_passed: int


def tallies(verdicts: Sequence[Verdict]) -> list[PublishedRuleCounts]:
    """One for every rule that was applied, in the order of the rules."""
    counts = Counter[tuple[str, str, bool]](
        (name, opinion.says.value, v.status.rejects)
        for v in verdicts
        for name, opinion in v.published.items()
    )
    return tallied(counts, dict.fromkeys(name for name, _, _ in counts))


def tallied(
    counts: Counter[tuple[str, str, bool]], rules: Iterable[str]
) -> list[PublishedRuleCounts]:
    """One for every rule, in the order given.

    Args:
        counts: outputs by rule, its result, and whether we reject.
    """

    def count(rule: str, says: RuleOutcome, *rejected: bool) -> int:
        return sum(counts[rule, says.value, ours] for ours in rejected)

    return [
        PublishedRuleCounts(
            rule=rule,
            passed=count(rule, RuleOutcome.PASS, True, False),
            failed=count(rule, RuleOutcome.FAIL, True, False),
            not_applicable=count(rule, RuleOutcome.NOT_APPLICABLE, True, False),
            passed_rejected=count(rule, RuleOutcome.PASS, True),
            failed_passed=count(rule, RuleOutcome.FAIL, False),
        )
        for rule in rules
    ]


def standards_table(verdicts: Sequence[Verdict]) -> Table | None:
    """Every rule's counts beside ours; None where no output was compared."""
    tested = [verdict for verdict in verdicts if verdict.published]
    if not tested:
        return None
    table = Table(
        title=TITLE,
        title_justify="left",
        title_style="bold",
        caption=reported(_compared_with(tested)),
        caption_justify="left",
    )
    table.add_column("rule", no_wrap=True)
    for name in ("passes", "fails", "n/a", "passes,\nwe reject", "fails,\nwe pass"):
        table.add_column(name, justify="right", no_wrap=True)
    rejected = sum(verdict.status.rejects for verdict in tested)
    table.add_row("ours", str(len(tested) - rejected), str(rejected), "-", "-", "-", style="bold")
    for tally in tallies(tested):
        figures = (tally.passed, tally.failed, tally.not_applicable)
        table.add_row(
            reported(tally.rule),
            *map(str, figures),
            _marked(tally.passed_rejected, "red"),
            _marked(tally.failed_passed, "yellow"),
        )
    return table


def standards_line(verdicts: Sequence[Verdict]) -> Text | None:
    """All rules in one line; None where no output was compared."""
    tested = [verdict for verdict in verdicts if verdict.published]
    if not tested:
        return None
    found = tallies(tested)
    missing, stricter = (
        sum(bool(getattr(rule, field)) for rule in found)
        for field in ("passed_rejected", "failed_passed")
    )
    said = (
        f"of {len(found)}, {missing} pass an output that is rejected here and {stricter} fail one"
        " that passes here"
    )
    return reported(f"other published standards: {said}; --standards shows each", "dim")


def opinions_table(verdict: Verdict) -> Table:
    """The result of every rule on one output, with its statistic and limit."""
    title, caption = f"{TITLE} of {verdict.output}", _compared_with([verdict])
    table = Table(
        title=reported(title),
        caption=reported(caption),
        box=SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("rule", no_wrap=True)
    table.add_column("result")
    table.add_column("measured", overflow="fold")
    for name in ("value", "limit"):
        table.add_column(name, justify="right")
    colours = {
        RuleOutcome.PASS: "green",
        RuleOutcome.FAIL: "red",
        RuleOutcome.NOT_APPLICABLE: "dim",
    }
    for name, opinion in verdict.published.items():
        figures = (
            "-" if figure is None else f"{figure:.4g}" for figure in (opinion.value, opinion.limit)
        )
        table.add_row(
            reported(name),
            Text(opinion.says, style=colours[opinion.says]),
            reported(opinion.statistic),
            *figures,
        )
    return table


def _compared_with(verdicts: Sequence[Verdict]) -> str:
    names = Counter(verdict.benchmark for verdict in verdicts)
    [(most, _)] = names.most_common(1)
    more = f"; and {len(names) - 1} more, named in the record" if len(names) > 1 else ""
    return f"benchmark: {most}{more}; rules in full: kdaverify list standards"


def _marked(count: int, colour: str) -> Text:
    return Text(str(count), style=colour if count else "dim")
