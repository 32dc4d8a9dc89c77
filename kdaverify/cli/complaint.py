"""How the command line refuses, one sentence, and how it breaks, a traceback: both with exit code
2, never with that of a decision.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager

HARNESS = 2


class Complaint(Exception):
    """A request of the user cannot be met; the message names it, and what to do."""


@contextmanager
def as_complaint(*errors: type[Exception], prefix: str = "") -> Generator[None]:
    """Whatever of `errors` is raised inside becomes a complaint, `prefix` before its message."""
    try:
        yield
    except errors as error:
        raise Complaint(f"{prefix}{error}") from None


def guarded(work: Callable[[], int]) -> int:
    """The exit code of `work`, or HARNESS where it raises:
    Python's own exit code for that is 1, which means reject.
    """
    try:
        return work()
    except Exception:  # noqa: BLE001 # whatever it is, it is ours
        traceback.print_exc()
        return HARNESS


def complain(message: str) -> int:
    """Reports in one line what is wrong with the call; the exit code."""
    # the one place that complains
    print(f"kdaverify: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201
    return HARNESS
