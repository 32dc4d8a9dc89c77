"""A source of Hypothesis choices that depends on the seed alone.

Hypothesis mixes constants found in the source of imported local modules into what it draws, so a problem drawn from a given seed
would change with what else was imported. It also draws bounded integers through logarithms, whose last bit differs between machines.
"""

from __future__ import annotations

from typing import Any

from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider

BACKEND = "kdaverify"


class Provider(HypothesisProvider):
    """Hypothesis' own provider, without constants and with uniform bounded integers."""

    def _maybe_draw_constant(self, *_choice: Any, **_options: Any) -> None:
        return None

    def _draw_integer_from_distribution(self, min_value: int | None, max_value: int | None) -> int:
        if min_value is None or max_value is None:
            return super()._draw_integer_from_distribution(min_value, max_value)
        assert self._random is not None
        return self._random.randint(min_value, max_value)


AVAILABLE_PROVIDERS[BACKEND] = Provider
