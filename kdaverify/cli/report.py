"""`kdaverify report`: the page of one or more records, and its summary for a pull request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from kdaverify.cli.complaint import Complaint, as_complaint
from kdaverify.cli.gate import LedgerFolder, Records, Rules, Waivers, question_of
from kdaverify.verdicts.decision import Decision, Ruling, heaviest
from kdaverify.verdicts.record import RecordError
from kdaverify.verdicts.toml_file import FileError

if TYPE_CHECKING:
    from kdaverify.report.html.page import Page
    from kdaverify.verdicts.gate import GateCriteria
    from kdaverify.verdicts.seal import Account

CUT_SHORT = "the session ended before every case was judged"
MISSING = "the page needs jinja2 and polars: pip install 'kdaverify[html]'"
PRINTED = Path("-")
Html = Annotated[Path | None, typer.Option(help="write one self-contained page to this .html file")]


def report(
    records: Records,
    html: Html = None,
    markdown: Annotated[
        Path | None,
        typer.Option(
            help="write a summary for a pull request to this file; - prints it, as without --html"
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            help="record of an earlier run, or of another implementation, to compare with"
        ),
    ] = None,
    rules: Rules = None,
    waivers: Waivers = None,
    ledger: LedgerFolder = None,
) -> int:
    """Write the page of one or more records: the decision and its reasons, failures, limits of the
    evidence, what was run.

    Examples:
    kdaverify report records/eager.jsonl
    kdaverify report records/eager.jsonl --html eager.html
    kdaverify report new.parquet --against old.parquet --html change.html

    The exit code says whether the page was written; the decision is on it: that of `kdaverify gate`
    on the same files.

    Exit codes: 0 written, 2 harness or usage error.
    """
    if html is None and markdown is None:
        markdown = PRINTED
    if html is not None:
        check_html(html)
    console = Console(stderr=True)
    with as_complaint(RecordError, FileError, OSError), console.status("reading the record"):
        page = _page(records, against, question_of(rules, waivers, ledger))
    if html is not None:
        with console.status("writing the page"):
            written(page, html)
        console.print(Text(f"page: {html}"), soft_wrap=True)
    if markdown is not None:
        _summarise(page, markdown)
    return 0


def check_html(path: Path) -> None:
    """Refuses before any work is done what could not be written.

    Raises:
        Complaint: another ending, or a package that is not installed.
    """
    from importlib.util import find_spec

    if path.suffix not in (".html", ".htm"):
        raise Complaint(f"--html: wanted a file ending in .html, got {path}")
    if find_spec("jinja2") is None or find_spec("polars") is None:
        raise Complaint(f"--html: {MISSING}")


def page_of(
    ruling: Ruling,
    decisions: Sequence[Decision],
    path: Path,
    *,
    record: Path | None,
    account: Account | None,
) -> None:
    """Writes the page of a session.

    Args:
        ruling: of the whole session: a harness error is one of every implementation.
        record: the file of its verdicts.
        account: its summary beside them.
    Raises:
        Complaint: as `written`.
    """
    from kdaverify.report.html.page import Page
    from kdaverify.report.html.rows import rows_of
    from kdaverify.report.html.rulings import ruled

    rows = rows_of(verdict for decision in decisions for verdict in decision.verdicts)
    if ruling is Ruling.ERROR and heaviest(decisions) is not Ruling.ERROR:
        decisions = [
            replace(
                one,
                ruling=ruling,
                reasons=(CUT_SHORT, *one.reasons),
                limits=(CUT_SHORT, *one.limits),
            )
            for one in decisions
        ]
    accounts = {} if account is None else {one.implementation: (account,) for one in decisions}
    written(
        Page(
            rows,
            tuple(ruled(decisions, rows, accounts=accounts)),
            () if record is None else (record.name,),
        ),
        path,
    )


def written(page: Page, path: Path) -> None:
    """Writes the page.

    Raises:
        Complaint: the file cannot be written, or the kill matrix that it quotes is malformed.
    """
    from kdaverify.report.html.credential import CredentialError
    from kdaverify.report.html.page import write_html

    with as_complaint(OSError, CredentialError, prefix="--html: "):
        write_html(page, path)


def _page(records: list[Path], against: Path | None, question: GateCriteria) -> Page:
    try:
        from kdaverify.report.html.page import Page
        from kdaverify.report.html.rows import rows_in
        from kdaverify.report.html.rulings import ruled
    except ImportError:
        raise Complaint(f"report: {MISSING}") from None
    from kdaverify.verdicts.gate import decided, heaviest_first, unfinished
    from kdaverify.verdicts.record import scan

    tables = [scan(path) for path in dict.fromkeys(records)]
    before = None if against is None else (scan(against), against.name)
    rows, found = rows_in(tables), heaviest_first(decided(tables, question))
    return Page(
        rows=rows,
        ruled=tuple(
            ruled(
                found,
                rows,
                {one.implementation: one.waived.rows for one in found},
                {one.implementation: one.accounts for one in found},
                {one.implementation: one.rules for one in found},
            )
        ),
        sources=tuple(path.name for path in records),
        troubles=(
            *unfinished(tables),
            *(
                []
                if before is None
                else [f"{before[1]}: {said}" for said in unfinished([before[0]])]
            ),
        ),
        waivers=tuple(dict.fromkeys(held for one in found for held in one.waived.held)),
        before=None if before is None else (rows_in([before[0]]), before[1]),
    )


def _summarise(page: Page, path: Path) -> None:
    from kdaverify.report.html.page import render

    text = render(page, "summary.md")
    if str(path) == "-":
        print(text, end="")  # noqa: T201 # to be piped
        return
    with as_complaint(OSError, prefix="--markdown: "):
        path.write_text(text, encoding="utf-8")
