"""Commands that heed Ctrl-C wherever the tests run:
a background job of a shell ignores it, and so do its children.
"""

from __future__ import annotations

import sys
from typing import Final

HEEDING: Final = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1],"
    " sys.argv[1:])"
)


def interruptible(command: list[str]) -> list[str]:
    """The command, run in the same process after Ctrl-C has its usual meaning again."""
    return [sys.executable, "-c", HEEDING, *command]
