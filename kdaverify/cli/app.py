"""Numerical verification of Kimi Delta Attention kernels.

Exit codes: 0 accept, 1 reject, 2 harness or usage error, 3 not enough evidence.
"""

from __future__ import annotations

import sys

import typer
from typer.exceptions import TyperException

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
from kdaverify.cli.replay import replay
from kdaverify.cli.report import report
from kdaverify.cli.score import score
from kdaverify.cli.verify import verify

app = typer.Typer(
    name="kdaverify",
    help=__doc__,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(verify)
app.command(context_settings={"ignore_unknown_options": False})(replay)
app.command()(diagnose)
app.command("list")(list_)
app.add_typer(contracts, name="contracts")
app.command()(oracle)
app.command()(export)
app.command()(score)
app.command()(gate)
app.command()(merge)
app.add_typer(ledger, name="ledger")
app.command()(report)
app.command()(drift)
app.command()(campaign)
app.command()(nightly)
app.command()(mailboxes)
app.command("kill-matrix")(kill_matrix)


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
