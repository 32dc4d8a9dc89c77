"""Test attention kernels of the delta-rule family against proven reference values.

Start with: kdaverify verify --impl my_port.py

Exit codes: 0 accept, 1 reject, 2 harness or usage error, 3 not enough evidence.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from typer.exceptions import TyperException

import kdaverify
from kdaverify.cli.campaign import campaign
from kdaverify.cli.complaint import Complaint, complain, guarded
from kdaverify.cli.contracts import contracts
from kdaverify.cli.diagnose import diagnose
from kdaverify.cli.drift import drift
from kdaverify.cli.export import export
from kdaverify.cli.gate import gate
from kdaverify.cli.kill_matrix import kill_matrix
from kdaverify.cli.ledger import app as ledger
from kdaverify.cli.listing import list_
from kdaverify.cli.mailboxes import mailboxes
from kdaverify.cli.merge import merge
from kdaverify.cli.nightly import nightly
from kdaverify.cli.oracle import oracle
from kdaverify.cli.problem import problem
from kdaverify.cli.replay import replay
from kdaverify.cli.report import report
from kdaverify.cli.score import score
from kdaverify.cli.splits import splits
from kdaverify.cli.survey import survey
from kdaverify.cli.verify import verify

app = typer.Typer(
    name="kdaverify",
    help=__doc__,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
JUDGE, DECIDE, EXACT, HARNESS = (
    "Test a kernel",
    "Decide and report",
    "Look things up",
    "Test designs, and the harness itself",
)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 # as typer calls it
    if wanted:
        print(f"kdaverify {kdaverify.__version__}")  # noqa: T201 # plain text for other programs
        raise typer.Exit


@app.callback(help=__doc__)
def options(
    version: Annotated[  # an option of the command line
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="print the version and exit"
        ),
    ] = False,
) -> None:
    """Options of kdaverify itself."""
    del version


app.command(rich_help_panel=JUDGE)(verify)
app.command(rich_help_panel=JUDGE, context_settings={"ignore_unknown_options": False})(replay)
app.command(rich_help_panel=JUDGE)(diagnose)
app.command(rich_help_panel=JUDGE)(drift)
app.command(rich_help_panel=JUDGE)(campaign)
app.command(rich_help_panel=JUDGE)(nightly)
app.command(rich_help_panel=JUDGE)(survey)
app.command(rich_help_panel=JUDGE)(export)
app.command(rich_help_panel=JUDGE)(score)
app.command(rich_help_panel=DECIDE)(gate)
app.command(rich_help_panel=DECIDE)(report)
app.command(rich_help_panel=DECIDE)(merge)
app.add_typer(ledger, name="ledger", rich_help_panel=DECIDE)
app.command("list", rich_help_panel=EXACT)(list_)
app.add_typer(contracts, name="contracts", rich_help_panel=EXACT)
app.command(rich_help_panel=EXACT)(oracle)
app.command(rich_help_panel=EXACT)(problem)
app.command(rich_help_panel=HARNESS)(mailboxes)
app.command(rich_help_panel=HARNESS)(splits)
app.command("kill-matrix", rich_help_panel=HARNESS)(kill_matrix)


def main() -> None:
    """Runs the command line; every misuse is one line on the error stream."""
    sys.exit(guarded(_run))


def _run() -> int:
    try:
        return app(standalone_mode=False) or 0
    except Complaint as error:
        return complain(str(error))
    except TyperException as error:
        return complain(error.format_message())
