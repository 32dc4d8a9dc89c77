"""A problem as people hand it over: a file, or the JSON itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kdaverify.cli.complaint import Complaint

if TYPE_CHECKING:
    from kdaverify.canonical import Canonical
    from kdaverify.problems import Problem


def is_inline(text: str) -> bool:
    return text.lstrip().startswith("{")


def problem_from(text: str) -> Problem:
    """The problem of a whole call that `text`, a path or inline JSON, holds.

    Raises:
        Complaint: no such file, or no such problem in it.
    """
    from kdaverify.problems import Problem

    tested = any_problem_from(text)
    if not isinstance(tested, Problem):
        raise Complaint(
            f"problem: wanted one of op kda, got op {tested.op}; it has properties of its own"
        )
    return tested


def any_problem_from(text: str) -> Canonical:
    """The same for problems of any operation.

    Raises:
        Complaint: no such file, or no problem in it.
    """
    from kdaverify.canonical import ProblemError
    from kdaverify.operator import problem_from_json

    if not is_inline(text) and not Path(text).is_file():
        raise Complaint(
            f"problem: no file {text}; give the path of a problem's JSON, or the JSON itself in"
            " single quotes"
        )
    try:
        return problem_from_json(text if is_inline(text) else Path(text).read_text())
    except (ProblemError, UnicodeDecodeError) as error:
        raise Complaint(str(error)) from None
