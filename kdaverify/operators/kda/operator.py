"""Kimi Delta Attention as the machinery sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, final

from kdaverify.adapters.base import Adapter, Output
from kdaverify.adapters.fitting import fitted
from kdaverify.budgets.backward import emulate_gradients
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.ensemble import emulate
from kdaverify.budgets.formats import Format
from kdaverify.budgets.standard import FLOAT64_ORACLE_PRECISION, Reference, gradient_standard, standard
from kdaverify.checks.digits import Recurrence
from kdaverify.checks.place import ElementPlace
from kdaverify.diagnosis.call import DiagnosedCall
from kdaverify.diagnosis.question import DiagnosisCase, PropertyCase
from kdaverify.operator import CallOperator
from kdaverify.operators.kda.place import place
from kdaverify.operators.kda.smaller import smaller
from kdaverify.problems import Problem, cost
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs
from oracles.tensors import OUTPUTS, SIGNATURE

# Writes of a token to its state, in all: above this, launching kernels on an accelerator costs less than it saves.
LARGE: Final = 2**26


@final
class KdaOperator(CallOperator):
    """Math: 2."""

    name = "kda"
    group = "delta"
    problem = Problem
    signature = SIGNATURE
    call = Inputs
    staged = True
    resampled = True

    def reference(self, call: Inputs, contract: Contract, io: Format, *, cuts: tuple[int, ...] = ()) -> Reference:
        return standard(call, contract, io, lambda: emulate(call, contract, io, cuts=cuts, single=True), cuts=cuts)

    def gradient_reference(self, call: Inputs, cotangents: Cotangents, contract: Contract, io: Format) -> Reference:
        loss = cotangents.on(call.q.device)
        return gradient_standard(call, loss, contract, io, lambda: emulate_gradients(call, loss, contract, io, single=True))

    def is_large(self, call: Inputs, contract: Contract) -> bool:
        writes = call.B * call.T * call.HV * call.K * call.V
        return writes > LARGE and contract.operands.precision <= FLOAT64_ORACLE_PRECISION

    def output_format(self, output: str, contract: Contract, io: Format) -> Format:
        return contract.output_formats(io)[output]

    def returned(self, values: Mapping[str, Any]) -> Output | Gradients[Any]:
        return Output(**values) if {*values} == {*OUTPUTS} else Gradients(**values)

    def cotangents(self, values: Mapping[str, Any]) -> Cotangents:
        return Cotangents(**values)

    def place(self, output: str, index: tuple[int, ...], call: Inputs) -> ElementPlace:
        return place(output, index, call)

    def baseline(self, call: Inputs, contract: Contract, io: Format) -> Recurrence:
        return Recurrence(call, contract, io)

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
