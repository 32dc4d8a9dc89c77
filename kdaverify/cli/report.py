"""`kdaverify report`: the page of one or more records, and its summary for a pull request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

import kdaverify
from kdaverify.cli.complaint import Complaint
from kdaverify.verdicts.decision import Decision, Ruling, heaviest
from kdaverify.verdicts.record import RecordError

if TYPE_CHECKING:
    from kdaverify.report.html.page import Page

MISSING = "the page needs jinja2 and polars: pip install 'kdaverify[html]'"
Html = Annotated[Path | None, typer.Option(help="write one self-contained page to this .html file")]


def report(
    records: Annotated[list[Path], typer.Argument(help="records of `kdaverify verify`, .jsonl or .parquet")],
    html: Html = None,
    markdown: Annotated[Path | None, typer.Option(help="write a summary for a pull request to this file; - prints it")] = None,
    against: Annotated[Path | None, typer.Option(help="record of an earlier run, or of another implementation, to compare with")] = None,
) -> int:
    """Write the page of one or more records: the decision and why, the worst cases, and what stands behind them.

    Examples:
    kdaverify report records/eager.jsonl --html eager.html
    kdaverify report new.parquet --against old.parquet --html change.html --markdown -

    The exit code says whether the page was written; the decision is on it. A suite without a pass in the record is missing evidence.

    Exit codes: 0 written, 2 harness or usage error.
    """
    if html is None and markdown is None:
        raise Complaint("report: wanted --html FILE, --markdown FILE or both, got neither")
    if html is not None:
        check_html(html)
    console = Console(stderr=True)
    with console.status("reading the record"):
        page = _page(records, against)
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


def page_of(ruling: Ruling, decisions: Sequence[Decision], path: Path, *, record: Path | None) -> None:
    """Writes the page of a session.

    Args:
        ruling: of the whole session: a harness error is one of every implementation.
        record: where its verdicts lie.
    Raises:
        Complaint: as `written`.
    """
    from kdaverify.report.html.page import Page
    from kdaverify.report.html.rows import rows_of
    from kdaverify.report.html.rulings import ruled

    rows = rows_of(verdict for decision in decisions for verdict in decision.verdicts)
    if ruling is Ruling.ERROR and heaviest(decisions) is not Ruling.ERROR:
        decisions = [
            replace(one, ruling=ruling, reasons=("the session ended before every case was judged", *one.reasons)) for one in decisions
        ]
    written(Page(rows, tuple(ruled(decisions, rows)), () if record is None else (record.name,)), path)


def written(page: Page, path: Path) -> None:
    """Writes the page.

    Raises:
        Complaint: the file cannot be written, or the kill matrix that it quotes is malformed.
    """
    from kdaverify.report.html.credential import CredentialError
    from kdaverify.report.html.page import write_html

    try:
        write_html(page, path)
    except (OSError, CredentialError) as error:
        raise Complaint(f"--html: {error}") from None


def _page(records: list[Path], against: Path | None) -> Page:
    try:
        from kdaverify.report.html.page import Page
        from kdaverify.report.html.rows import read_rows
        from kdaverify.report.html.rulings import as_asked, ruled_from_rows
    except ImportError:
        raise Complaint(f"report: {MISSING}") from None
    try:
        rows, cut_off = read_rows(records)
        before, before_cut_off = (None, ()) if against is None else read_rows([against])
    except (RecordError, OSError) as error:
        raise Complaint(str(error)) from None
    suites = sorted(path.stem.removeprefix("test_") for path in kdaverify.suites_folder().rglob("test_*.py"))
    return Page(
        rows=rows,
        ruled=tuple(ruled_from_rows(rows, as_asked(rows, suites))),
        sources=tuple(path.name for path in records),
        troubles=(*cut_off, *before_cut_off),
        before=None if before is None or against is None else (before, against.name),
    )


def _summarise(page: Page, path: Path) -> None:
    from kdaverify.report.html.page import render

    text = render(page, "summary.md")
    if str(path) == "-":
        print(text, end="")  # noqa: T201 # to be piped
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Complaint(f"--markdown: {error}") from None
