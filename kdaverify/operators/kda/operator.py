"""Kimi Delta Attention as the machinery sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, final

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.fitting import fitted
from kdaverify.diagnosis.call import DiagnosedCall
from kdaverify.diagnosis.question import DiagnosisCase, PropertyCase
from kdaverify.operator import Operator
from kdaverify.operators.kda.smaller import smaller
from kdaverify.problems import Problem, cost
from oracles.tensors import SIGNATURE


@final
class KdaOperator(Operator):
    """Math: 2."""

    name = "kda"
    group = "delta"
    problem = Problem
    signature = SIGNATURE
    staged = True
    resampled = True

    def refusal(self, adapter: Adapter, problem: Problem) -> str | None:
        return adapter.supports(problem)

    def fitted(self, adapter: Adapter, problem: Problem, *, backward: bool) -> Problem:
        return fitted(adapter, problem, backward=backward)

    def cost(self, problem: Problem) -> float:
        return cost(problem)

    def smaller(self, problem: Problem, detail: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
        return smaller(problem, detail)

    def diagnosed(self, case: PropertyCase, judged: Adapter) -> DiagnosisCase:
        return DiagnosedCall(case, judged, case.problem)


KDA: Final = KdaOperator()
