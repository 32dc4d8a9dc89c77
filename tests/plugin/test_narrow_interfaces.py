"""Kernels compiled for one width, or for bounded gates, are asked what they can be asked, and what they are not asked is said."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kdaverify.adapters.activations import ActivationCall
from kdaverify.adapters.eager import EAGER, Eager
from kdaverify.adapters.fitting import fitted
from kdaverify.plugin.expected import expected
from kdaverify.plugin.options import Subject
from kdaverify.problems import Problem, panel
from kdaverify.problems.panel import NamedProblem
from kdaverify.problems.regimes.gate import EXTREME


class Narrow(Eager):
    """The embedded kernel behind the interface of a compiled one."""

    widths = (16, 128)

    def __init__(self, *refused: str) -> None:
        super().__init__("narrow", {"bf16": "chunk64-bf16"})
        self._refused = refused

    def supports(self, problem: Problem) -> str | None:
        if not {problem.K, problem.V} <= {*self.widths}:
            return "K and V of 16 or 128"
        return "gates of at least -5" if problem.gate in self._refused else None


def excused(adapter: Eager) -> dict[str, str]:
    return dict(expected(Subject("narrow", adapter, None), set(), "smoke").excused)


@pytest.mark.parametrize("entry", panel("bf16", "smoke"), ids=lambda entry: entry.name)
def test_the_panel_comes_at_widths_that_the_kernel_takes(entry: NamedProblem) -> None:
    asked = fitted(Narrow(), entry.problem)
    assert Narrow().supports(asked) is None
    assert asked == entry.problem.replace(K=asked.K, V=asked.V)
    assert fitted(EAGER, entry.problem) == entry.problem


def test_widths_that_it_takes_are_left_alone() -> None:
    problem = panel("bf16", "smoke")[0].problem.replace(K=128, V=16)
    assert fitted(Narrow(), problem) == problem


def test_a_kernel_that_takes_no_extreme_gate_is_excused_from_them_aloud() -> None:
    assert excused(Narrow(*EXTREME))["extreme_gates"] == "it takes no extreme gate (gates of at least -5)"


def test_one_that_takes_some_is_not() -> None:
    assert "extreme_gates" not in excused(Narrow(*EXTREME[1:]))
    assert "extreme_gates" not in excused(Narrow())


def test_one_that_exposes_no_activation_is_excused_from_them_aloud() -> None:
    class Bare(Narrow):
        def activations(self, dtype: str) -> Mapping[str, ActivationCall]:
            return {}

    assert excused(Bare())["activations"] == "it exposes no activation, beta or l2norm"
    assert "activations" not in excused(Narrow())
