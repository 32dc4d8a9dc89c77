"""A problem as people hand it over: a file, or the JSON itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kdaverify.cli.complaint import Complaint

if TYPE_CHECKING:
    from kdaverify.problems import Problem


def is_inline(text: str) -> bool:
    return text.lstrip().startswith("{")


def problem_from(text: str) -> Problem:
    """The problem that `text`, a path or inline JSON, holds.

    Raises:
        Complaint: no such file, or no problem in it.
    """
    from kdaverify.problems import Problem, ProblemError

    if not is_inline(text) and not Path(text).is_file():
        raise Complaint(f"problem: no file {text}; give the path of a problem's JSON, or the JSON itself in single quotes")
    try:
        return Problem.from_json(text if is_inline(text) else Path(text).read_text())
    except (ProblemError, UnicodeDecodeError) as error:
        raise Complaint(str(error)) from None
