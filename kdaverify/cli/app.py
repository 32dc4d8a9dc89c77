"""Test kernels of the delta rule, of softmax attention and of their neighbours against proven
reference values.

Start with: kdaverify verify --impl my_port.py

Exit codes: 0 accept, 1 reject, 2 harness or usage error, 3 not enough evidence.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Annotated

import typer
from typer.exceptions import TyperException

import kdaverify
from kdaverify.cli.campaign import campaign
from kdaverify.cli.complaint import Complaint, complain, guarded
from kdaverify.cli.diagnose import diagnose
from kdaverify.cli.export import export
from kdaverify.cli.gate import gate
from kdaverify.cli.kill_matrix import kill_matrix
from kdaverify.cli.ledger import app as ledger
from kdaverify.cli.listing import list_
from kdaverify.cli.merge import merge
from kdaverify.cli.nightly import nightly
from kdaverify.cli.options import of_operator
from kdaverify.cli.problem import problem
from kdaverify.cli.replay import replay
from kdaverify.cli.report import report
from kdaverify.cli.score import score
from kdaverify.cli.splits import splits
from kdaverify.cli.survey import survey
from kdaverify.cli.verify import verify


def _help(text: str | None) -> str:
    """A docstring whose paragraphs are one line each, but for examples: rich keeps the line breaks
    of a source file.
    """
    return "\n\n".join(
        paragraph if paragraph.startswith("Examples:") else paragraph.replace("\n", " ")
        for paragraph in inspect.cleandoc(text or "").split("\n\n")
    )


app = typer.Typer(
    name="kdaverify",
    help=_help(__doc__),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
JUDGE = "Test a kernel"
DECIDE = "Decide and report"
EXACT = "Look things up"
HARNESS = "Test designs, and the harness itself"


def _print_version(wanted: bool) -> None:  # noqa: FBT001 # as typer calls it
    if wanted:
        print(f"kdaverify {kdaverify.__version__}")  # noqa: T201 # plain text for other programs
        raise typer.Exit


@app.callback(help=_help(__doc__))
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


def _add(command: Callable[..., int | None], panel: str, name: str | None = None) -> None:
    app.command(name, rich_help_panel=panel, help=_help(command.__doc__))(command)


def _add_group(group: typer.Typer, panel: str, name: str) -> None:
    for command in group.registered_commands:
        command.help = _help(command.callback and command.callback.__doc__)
    app.add_typer(group, name=name, rich_help_panel=panel)


_add(verify, JUDGE)
_add(replay, JUDGE)
_add(diagnose, JUDGE)
_add(of_operator("kda.commands.drift:drift"), JUDGE)
_add(campaign, JUDGE)
_add(nightly, JUDGE)
_add(survey, JUDGE)
_add(export, JUDGE)
_add(score, JUDGE)
_add(gate, DECIDE)
_add(report, DECIDE)
_add(merge, DECIDE)
_add_group(ledger, DECIDE, "ledger")
_add(list_, EXACT, "list")
_add_group(of_operator("kda.commands.contracts:contracts"), EXACT, "contracts")
_add(of_operator("kda.commands.oracle:oracle"), EXACT)
_add(problem, EXACT)
_add(of_operator("kda.commands.mailboxes:mailboxes"), HARNESS)
_add(splits, HARNESS)
_add(kill_matrix, HARNESS, "kill-matrix")


def main() -> None:
    """Runs the command line; every misuse is one line on the error stream."""
    sys.exit(guarded(_run))


def _run() -> int:
    try:
        return app(standalone_mode=False) or 0
    except Complaint as error:
        return complain(str(error))
    except TyperException as error:
        # pydantic's prefix, where typer checks a choice
        message = error.format_message().replace("Value error, ", "")
        return complain(f"{message}{_commands_instead(error, message)}")


def _commands_instead(error: TyperException, message: str) -> str:
    """What there is, where a command is none and no other has a name like it."""
    if not message.startswith("No such command") or "Did you mean" in message:
        return ""
    context = getattr(error, "ctx", None)
    return f" There are {', '.join(context.command.commands)}." if context else ""
