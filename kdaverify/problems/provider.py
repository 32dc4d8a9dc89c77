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

    def _maybe_draw_constant(self, choice_type: Any, constraints: Any, *, p: float = 0.05) -> None:
        return None

    def draw_integer(
        self,
        min_value: int | None = None,
        max_value: int | None = None,
        *,
        weights: dict[int, float] | None = None,
        shrink_towards: int = 0,
    ) -> int:
        if weights is None and min_value is not None and max_value is not None:
            assert self._random is not None
            return self._random.randint(min_value, max_value)
        return super().draw_integer(min_value, max_value, weights=weights, shrink_towards=shrink_towards)


AVAILABLE_PROVIDERS[BACKEND] = Provider
