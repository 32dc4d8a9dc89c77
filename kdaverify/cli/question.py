"""A problem as people hand it over: a file, or the JSON itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kdaverify.cli.complaint import Complaint

if TYPE_CHECKING:
    from kdaverify.canonical import Canonical


def is_inline(text: str) -> bool:
    return text.lstrip().startswith("{")


def any_problem_from(text: str) -> Canonical:
    """The problem, of any operator, that `text`, a path or inline JSON, holds.

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
