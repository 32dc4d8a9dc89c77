"""Exact values of Kimi Delta Attention, each with what is proven about its error. Mathematics only: no kernel, no tolerance."""

from __future__ import annotations

from oracles.cache import AnswerCache, cached
from oracles.certified import UncertifiedError, certify
from oracles.enclosure import Answer, Enclosure
from oracles.inputs import InputError, Inputs

__all__ = ["Answer", "AnswerCache", "Enclosure", "InputError", "Inputs", "UncertifiedError", "cached", "certify"]
