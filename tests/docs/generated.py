"""Parts of the reference that the code itself gives: tables between marks, and the page of
commands.

    python -m tests.docs.generated --write

`tests/docs/test_generated.py` fails where a page and the code differ.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill
from typing import Any, Final

import typer.main

from kdaverify.cli.app import app
from tests.docs.blocks import ROOT
from tests.docs.reference_tables import TABLES, cell, code, table

REFERENCE: Final = ROOT / "docs" / "reference.md"
IMPLEMENTATIONS: Final = ROOT / "docs" / "implementations.md"
COMMANDS: Final = ROOT / "docs" / "commands.md"
WIDTH: Final = 100
_BLOCK: Final = re.compile(r"(<!-- generated: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def reference(text: str) -> str:
    """The page with every marked table as the code gives it."""
    return _BLOCK.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}{found[4]}", text)


def commands() -> str:
    """The page of commands: the first paragraph of each one's help, and its options."""
    head = (
        "# Commands\n\nGenerated from the command line. The option `--help` of each prints the"
        " same.\n"
    )
    return head + "".join(_commands(typer.main.get_command(app), "kdaverify"))


def _commands(command: Any, name: str) -> Iterator[str]:
    below: dict[str, Any] = getattr(command, "commands", {})
    if not below:
        about, _, rest = inspect.cleandoc(command.help or "").partition("\n\n")
        example = next(
            (
                line.removeprefix("Example: ")
                for line in rest.splitlines()
                if line.startswith("Example: ")
            ),
            "",
        )
        yield f"\n## {name}\n\n{fill(cell(about), WIDTH)}\n" + (
            f"\n    {example}\n" if example else ""
        )
        rows = [*map(_option, command.params)]
        if rows:
            yield "\n" + table(("option", "default", "meaning"), rows)
    for word, found in below.items():
        yield from _commands(found, f"{name} {word}")


def _option(option: Any) -> tuple[str, str, str]:
    is_argument = option.param_type_name == "argument"
    name = option.name.upper() if is_argument else ", ".join((*option.opts, *option.secondary_opts))
    default = (
        ""
        if option.default in (None, False, "") or callable(option.default)
        else code(str(option.default))
    )
    return code(name), default, option.help or ""


def pages() -> dict[Path, str]:
    """Every generated page as it should be."""
    marked = {page: reference(page.read_text()) for page in (REFERENCE, IMPLEMENTATIONS)}
    return {**marked, COMMANDS: commands()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--write", action="store_true", help="write the pages; otherwise say which differ"
    )
    write = parser.parse_args().write
    for path, text in pages().items():
        if not path.exists() or path.read_text() != text:
            sys.stdout.write(f"{path.relative_to(ROOT)} differs\n")
            if write:
                path.write_text(text)


if __name__ == "__main__":
    main()
