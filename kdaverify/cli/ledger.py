"""`kdaverify ledger`: the precision that is accepted, and what a new run would change of it."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from kdaverify.cli.complaint import Complaint, as_complaint

if TYPE_CHECKING:
    from kdaverify.verdicts.ledger_update import Update

app = typer.Typer(
    help="Accepted precision, case by case; a ratchet for `kdaverify gate --ledger`.",
    no_args_is_help=True,
)

STYLES = {"+": "green", "-": "red", "@": "cyan"}


@app.callback()
def about() -> None:
    """Accepted precision, case by case; a ratchet for `kdaverify gate --ledger`."""


@app.command()
def accept(
    records: Annotated[
        list[Path], typer.Argument(help="closed records whose fixed panel is to be accepted")
    ],
    ledger: Annotated[Path, typer.Option(help="folder of the ledger")] = Path("reports/ledger"),
    loosen: Annotated[
        bool, typer.Option("--loosen", help="also where a case gets worse or is left out")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="write without a prompt")] = False,
) -> int:
    """Show what the records would change of the ledger, and write it once that has been reviewed.

    Example: kdaverify ledger accept records/panel.parquet

    Exit codes: 0 written or nothing to change, 1 refused, 2 harness or usage error.
    """
    from kdaverify.verdicts.ledger_update import updates
    from kdaverify.verdicts.record import RecordError
    from kdaverify.verdicts.toml_file import FileError

    with as_complaint(RecordError, FileError, OSError, prefix="ledger: "):
        found = updates(records, ledger)
    console = Console()
    changed = [update for update in found if update.before != update.after]
    for update in changed:
        _show(console, update)
    worse = [name for update in changed for name in update.loosened]
    if worse and not loosen:
        console.print(
            Text(
                f"refused: {len(worse)} cases get worse or are left out; --loosen accepts that too",
                style="bold red",
            )
        )
        return 1
    if not changed:
        console.print("the ledger holds the same figures already")
        return 0
    if not yes:
        if not sys.stdin.isatty():
            raise Complaint("ledger: review what is shown above, then write it with --yes")
        if not typer.confirm("write this?"):
            return 1
    ledger.mkdir(parents=True, exist_ok=True)
    for update in changed:
        update.path.write_text(update.after, encoding="utf-8")
    console.print(Text(f"written: {', '.join(str(update.path) for update in changed)}"))
    return 0


def _show(console: Console, update: Update) -> None:
    """The change as a diff; a file that begins is not shown line by line."""
    if not update.before:
        console.print(
            Text(f"{update.path}: new, {update.after.count(chr(10)) - 2} cases", style="green")
        )
        return
    names = (str(update.path), "the same, after")
    for line in difflib.unified_diff(
        update.before.splitlines(), update.after.splitlines(), *names, lineterm="", n=1
    ):
        console.print(Text(line, style=STYLES.get(line[:1], "")), soft_wrap=True)
