"""KDA in ball arithmetic, every number with a radius: two independent forms."""

from __future__ import annotations

from oracles.certified.adjoint import adjoint
from oracles.certified.certify import UncertifiedError, adjoint_bits, certify, certify_gradients
from oracles.certified.chunk_form import chunk
from oracles.certified.directional import directional, slope
from oracles.certified.token_form import recurrence

__all__ = [
    "UncertifiedError", "adjoint", "adjoint_bits", "certify", "certify_gradients", "chunk",
    "directional", "recurrence", "slope",
]  # fmt: skip
