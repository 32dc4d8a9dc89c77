"""What an operator brings to the command line: commands about it alone, options that declare it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

Command = Callable[..., int | None]


def of_operator(at: str) -> Any:
    """What an operator's folder holds, by module and name below `kdaverify.operators`: the command
    line has no other way to it, and the other modules of the operator are not loaded for it.
    """
    module, _, name = at.partition(":")
    return getattr(import_module(f"kdaverify.operators.{module}"), name)


def taking(options: Iterable[inspect.Parameter]) -> Callable[[Command], Command]:
    """Gives a command options that others write down, in place of its `**`."""

    def add(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True)
        kept = [found for found in own.parameters.values() if found.kind is not found.VAR_KEYWORD]
        # typer reads a command line off this
        vars(command)["__signature__"] = own.replace(parameters=[*kept, *options])
        return command

    return add
