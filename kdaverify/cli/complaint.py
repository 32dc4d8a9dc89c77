"""How the command line refuses: one sentence, exit code 2."""

from __future__ import annotations

HARNESS = 2


class Complaint(Exception):
    """Something the user asked for cannot be done; the message says what, and what to do."""
