"""Exact values of Kimi Delta Attention with proven errors. No kernel, no tolerance."""

from __future__ import annotations

from oracles.cache import AnswerCache, cached
from oracles.certified import UncertifiedError, certify, certify_gradients
from oracles.enclosure import CertifiedOutputs, Enclosure
from oracles.gradients import Cotangents, GradientAnswer, Gradients
from oracles.inputs import InputError, Inputs

__all__ = [
    "AnswerCache", "CertifiedOutputs", "Cotangents", "Enclosure", "GradientAnswer", "Gradients",
    "InputError", "Inputs", "UncertifiedError", "cached", "certify", "certify_gradients",
]  # fmt: skip
