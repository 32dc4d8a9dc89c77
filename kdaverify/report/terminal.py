"""A session's terminal summary: what was tested, what is wrong, where, how to repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import MappingProxyType

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kdaverify.checks.status import Status
from kdaverify.report.evidence import evidence
from kdaverify.report.plain import plain, reported
from kdaverify.report.published import standards_line, standards_table
from kdaverify.report.reported_kinds import (
    ReportedKind,
    by_bug,
    contrasts_of,
    left_open,
    minimised_or_why,
    order_of_evidence,
    random_failures,
    reported_kinds,
    same,
    several_bugs,
)
from kdaverify.verdicts.code_identity import CodeIdentity
from kdaverify.verdicts.decision import (
    COVERAGE,
    NOT_TESTED,
    Decision,
    Ruling,
    count_cases,
    worst_grade,
)
from kdaverify.verdicts.verdict import Verdict

COLOURS = {
    Ruling.ACCEPT: "bold green",
    Ruling.REJECT: "bold red",
    Ruling.ERROR: "bold magenta",
    Ruling.INSUFFICIENT: "bold yellow",
}
MOST_FAILURES = 8
ALWAYS_SAID = (NOT_TESTED, COVERAGE)
MOST_REASONS = 8
DECLINED = (
    "mend it, or declare what the kernel does not take (dtypes=, widths=, head_ratios=, supports="
    " of @kdaverify.kernel)"
)


def show(
    console: Console,
    decisions: Sequence[Decision],
    *,
    record: Path | None,
    standards: bool = False,
    judged: Mapping[str, CodeIdentity] = MappingProxyType({}),
) -> None:
    """Writes the table, failures and decision of every implementation, and the record's place.

    Args:
        standards: whether every published standard has its row, or all of them one line.
        judged: the code of every implementation, where it is known.
    """
    for decision in decisions:
        # What cannot run here, or was stopped, has one failure, which is the reason of its
        # decision.
        if decision.stop is None and not decision.cannot_run:
            _show_table(console, decision)
            _show_common_factors(console, decision)
            _show_failures(console, decision)
            _show_evidence(console, decision, standards=standards)
    for decision in decisions:
        if decision.stop is None:
            _show_decision(console, decision)
        else:
            _show_stop(console, decision, decision.stop)
    for name, identity in judged.items():
        console.print(reported(f"code of {name}: {identity}"))
    if record is not None:
        console.print(f"record: {record}", soft_wrap=True, highlight=False)


def _show_table(console: Console, decision: Decision) -> None:
    if not decision.verdicts:
        return
    console.print(_table(decision))
    for line in _ran(decision.verdicts):
        console.print(line)


def _show_evidence(console: Console, decision: Decision, *, standards: bool) -> None:
    """What else the verdicts show: below the failures, which come first where there are any."""
    for line in evidence(decision):
        said, *pasted = line.split("\n")
        console.print(said)
        for command in pasted:
            _show_to_paste(console, command.plain.strip())
    said = standards_table(decision.verdicts) if standards else standards_line(decision.verdicts)
    if said and decision.verdicts:
        console.print(said)


def _show_common_factors(console: Console, decision: Decision) -> None:
    """Above all single failures: which cases fail, and which do not."""
    if decision.ruling is not Ruling.REJECT:
        return
    # The command line starts without torch.
    from kdaverify.diagnosis.common_factor import common_factors, in_words
    from kdaverify.diagnosis.failing_rules import failing_rules

    contrasts = (
        f"changing one thing at a time: {said}" for said in contrasts_of(decision.failures)
    )
    factors = in_words(common_factors(decision.verdicts))
    rules = failing_rules(decision.verdicts)
    for said in (
        *several_bugs(decision.failures),
        *random_failures(decision.failures),
        *factors,
        *rules,
        *contrasts,
    ):
        console.print(reported(said, "bold"))


def _show_failures(console: Console, decision: Decision) -> None:
    failures = decision.failures
    kinds = reported_kinds(failures)
    # Of twelve kinds of failure of two bugs, seven were of the first: the second was not shown.
    repeated = [kind for group in by_bug(kinds) for kind in group[1:]]
    found = [kind for kind in kinds if not kind.perhaps_a_race and kind not in repeated]
    for group in found[:MOST_FAILURES]:
        _show_failure(console, group, decision)
    for said in filter(None, (*same(failures), left_open(failures))):
        console.print(reported(f"{said}\n", "bold"))
    _list_kinds(console, repeated, why=", of a bug that is named above")
    _list_kinds(console, found[MOST_FAILURES:])
    # A race fails in whatever was run: of twenty kinds of failure twelve showed nothing else.
    raced = [group for group in kinds if group.perhaps_a_race]
    _list_kinds(console, raced, why=", perhaps of the same race")


def _list_kinds(console: Console, kinds: Sequence[ReportedKind], *, why: str = "") -> None:
    """What is not shown in whole, by name."""
    if kinds:
        head = f"{len(kinds)} more kind{'s' if len(kinds) > 1 else ''} of failure"
        listed = ", ".join(map(_kind_and_stage, kinds))
        console.print(reported(f"  and {head}{why}: {listed}\n"))


def _table(decision: Decision) -> Table:
    table = Table(
        title=reported(decision.implementation),
        title_justify="left",
        title_style="bold",
        caption_justify="left",
    )
    for name in ("op", "dtype"):
        table.add_column(name, no_wrap=True)
    for name in ("cases", "skipped"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("error /\ntolerance", justify="right", min_width=len("tolerance"))
    table.add_column("grade", justify="center")
    rows = sorted(decision.verdicts, key=lambda verdict: (verdict.op, verdict.dtype))
    groups = [(key, [*own]) for key, own in groupby(rows, key=lambda row: (row.op, row.dtype))]
    # A name of an output was broken in two at 80 columns.
    words = " ".join(_first_failing(own).plain for _, own in groups).split()
    table.add_column("first failing", overflow="fold", min_width=max(map(len, words), default=0))
    # That none is exposed is said of each failure: in a column it left outputs no room.
    staged = any(verdict.names_stage() for verdict in decision.verdicts)
    if staged:
        table.add_column("wrong\nstage", overflow="fold")
    for (op, dtype), verdicts in groups:
        figures = (*_counts(verdicts), _worst(verdicts), worst_grade(verdicts) or "-")
        table.add_row(
            reported(op),
            reported(dtype or "-"),
            *figures,
            _first_failing(verdicts),
            *([_first_wrong_stage(verdicts)] if staged else []),
        )
    return table


def _ran(verdicts: Sequence[Verdict]) -> list[Text]:
    """Where the kernels ran, and which; interpreted: no evidence of a device."""
    seen: dict[tuple[str, str], Counter[str]] = {}
    for verdict in verdicts:
        if "kernel" in verdict.versions:
            seen.setdefault((verdict.mode, verdict.device), Counter())[
                verdict.versions["kernel"]
            ] += 1
    lines: list[Text] = []
    for (mode, device), kernels in seen.items():
        line = reported(f"ran {mode} on {device}: ", "bold")
        line.append(plain(kernels.most_common(1)[0][0]), style="not bold")
        if len(kernels) > 1:
            line.append(
                f"; and {len(kernels) - 1} other choices of kernels, named in the record",
                style="not bold",
            )
        lines.append(line)
    return lines


def _counts(verdicts: Sequence[Verdict]) -> tuple[str, str]:
    skipped = [verdict for verdict in verdicts if verdict.status is Status.SKIP]
    return str(count_cases(v for v in verdicts if v.status.judged)), str(count_cases(skipped))


def _worst(verdicts: Sequence[Verdict]) -> str:
    ratios = [verdict.ratio for verdict in verdicts if verdict.ratio is not None]
    return f"{max(ratios):.3g}" if ratios else "-"


def _first_failing(verdicts: Sequence[Verdict]) -> Text:
    failures = (verdict for verdict in verdicts if verdict.status.rejects)
    failing = min(failures, key=order_of_evidence, default=None)
    if failing is None:
        return Text("-")
    return reported(f"{failing.property} {failing.output} {failing.status}", "red")


def _first_wrong_stage(verdicts: Sequence[Verdict]) -> Text:
    """Of the first failure that names one; else what is said in its place."""
    found = sorted(
        (verdict for verdict in verdicts if verdict.stage is not None),
        key=lambda verdict: not verdict.names_stage(),
    )
    if found:
        return reported(found[0].stage or "-", "red" if found[0].names_stage() else "")
    return Text("-")


def _kind_and_stage(group: ReportedKind) -> str:
    return next(
        (f"{group.name} in {row.stage}" for row in group.rows if row.names_stage()), group.name
    )


def _show_failure(console: Console, group: ReportedKind, decision: Decision) -> None:
    """The smallest of a kind: what is wrong, where, how badly, how to replay it."""
    shown = group.shown
    dtypes = ", ".join(sorted({verdict.dtype for verdict in group.rows}))
    times = "once" if len(group.rows) == 1 else f"{len(group.rows)} times"
    console.print(
        reported(f"{shown.implementation}: {group.name} in {dtypes}, {times}", "bold red")
    )
    for said in (*_extent(group), *_right(shown, decision.verdicts)):
        console.print(Padding(reported(said), (0, 0, 0, 2), expand=False))
    console.print(Padding(reported(shown.message), (0, 0, 0, 2), expand=False))
    if shown.stage is not None:
        console.print(Padding(reported(shown.whereabouts(), "bold"), (0, 0, 0, 2), expand=False))
    if shown.diagnosis:
        console.print(
            Padding(reported(f"diagnosis: {shown.diagnosis}", "bold"), (0, 0, 0, 2), expand=False)
        )
    if shown.case:
        console.print(Padding(reported(f"case {shown.case}"), (0, 0, 0, 2), expand=False))
    _show_to_paste(console, shown.replay)
    said, _, smallest = minimised_or_why(group, decision.failures).partition("\n")
    console.print(Padding(reported(said), (0, 0, 0, 2), expand=False))
    _show_to_paste(console, smallest)
    console.print()


def _show_to_paste(console: Console, line: str) -> None:
    """A command, never broken."""
    if line:
        console.print(f"  {plain(line)}", soft_wrap=True, highlight=False, markup=False)


def _extent(group: ReportedKind) -> list[str]:
    """Where else the kind fails: in suites with the same call, in the same calls' outputs."""
    suites = ", ".join(f"{name} {times}" for name, times in group.elsewhere.items())
    outputs = ", ".join(f"{name} ({times})" for name, times in group.beside.items())
    return [
        *([f"of these in other suites that make the same call: {suites}"] if suites else []),
        *([f"in the same calls also wrong: {outputs}"] if outputs else []),
    ]


def _right(shown: Verdict, verdicts: Sequence[Verdict]) -> list[str]:
    """The outputs of the same case that are right: of a recurrence whose final state is, only what
    o reads is wrong.
    """
    found = [
        row.output
        for row in verdicts
        if row.status is Status.PASS and row.case_key() == shown.case_key()
    ]
    return [f"right in this case: {', '.join(found)}"] if found else []


def shortened(reasons: Sequence[str], most: int = MOST_REASONS) -> list[str]:
    """The heaviest reasons, how many more, and all about what was and was not tested."""
    said = [reason for reason in reasons if reason.startswith(ALWAYS_SAID)]
    others = [reason for reason in reasons if reason not in said]
    left_out = len(others) - most
    return [*others[:most], *([f"and {left_out} more"] if left_out > 0 else []), *said]


def _show_stop(console: Console, decision: Decision, stop: Verdict) -> None:
    """One message: faults of every call once, and nothing of what could not be scored."""
    console.print(
        reported(f"{decision.implementation}: {decision.ruling.upper()}", COLOURS[decision.ruling])
    )
    console.print(
        Padding(
            reported(stop.message.removeprefix(f"{stop.property}: ")), (0, 0, 0, 2), expand=False
        )
    )
    if stop.replay:
        console.print(f"  {plain(stop.replay)}", soft_wrap=True, highlight=False, markup=False)
    console.print(reported("  found before the suites, which were not run"))
    # Some exceptions come with their own mend.
    if stop.status is Status.ERROR and "declare" not in stop.message:
        console.print(Padding(reported(DECLINED), (0, 0, 0, 2), expand=False))


def _show_decision(console: Console, decision: Decision) -> None:
    head = reported(
        f"{decision.implementation}: {decision.ruling.upper()}", COLOURS[decision.ruling]
    )
    head.append(
        f"  ({decision.cases} cases judged, {decision.skipped} skipped, {len(decision.failures)}"
        " failing verdicts)",
        style="not bold",
    )
    console.print(head)
    for reason in shortened(decision.reasons):
        console.print(Padding(reported(f"- {reason}"), (0, 0, 0, 2), expand=False))
