"""KDA in ball arithmetic: every number carries a proven radius. Two independent forms, and the precision that a caller needs."""

from __future__ import annotations

from oracles.certified.certify import UncertifiedError, certify
from oracles.certified.chunk_form import chunk
from oracles.certified.token_form import recurrence

__all__ = ["UncertifiedError", "certify", "chunk", "recurrence"]
