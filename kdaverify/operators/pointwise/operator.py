"""Operations beside the recurrence as the machinery sees them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, final

from kdaverify.adapters.base import Adapter
from kdaverify.diagnosis.question import DiagnosisCase, PropertyCase
from kdaverify.operators.pointwise.diagnosed import PointwiseCase
from kdaverify.operators.pointwise.problem import ActivationProblem
from kdaverify.operators.sizes import WIDTHS, below
from kdaverify.problem_operator import Operator
from oracles.pointwise.operations import OPERATIONS
from oracles.signature import CallSignature, Role, TensorRole

AXES: Final = {
    "A_log": ("HV",),
    "dt_bias": ("HV", "K"),
    "logits": ("B", "T", "HV"),
    "beta": ("B", "T", "HV"),
}
USUAL: Final = ("B", "T", "HV", "K")


@final
class PointwiseOperator(Operator):
    """Math: 6.

    Args:
        name: a key of `oracles.pointwise.operations.OPERATIONS`.
    """

    group = "pointwise"
    problem = ActivationProblem
    has_known_bugs = True
    is_stage = True

    def __init__(self, name: str) -> None:
        operation = OPERATIONS[name]
        gradients = {source: gradient for gradient, source in operation.gradients.items()}
        self.name, self.about = name, operation.about
        self.signature = CallSignature(
            inputs=tuple(
                TensorRole(
                    tensor,
                    Role.PARAMETER if tensor in ("A_log", "dt_bias") else Role.TOKEN,
                    AXES.get(tensor, USUAL),
                    gradients[tensor],
                    optional=tensor == "dt_bias",
                )
                for tensor in operation.takes
            ),
            outputs=(
                TensorRole(
                    operation.result, Role.TOKEN, AXES.get(operation.result, USUAL), "cotangent"
                ),
            ),
        )

    def refusal(self, adapter: Adapter, problem: ActivationProblem) -> str | None:
        if self.name in adapter.activations(problem.dtype):
            return None
        return f"it does not expose {self.name}"

    def smaller(
        self, problem: ActivationProblem, detail: Mapping[str, Any]
    ) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
        for axis in USUAL:
            yield from (({axis: size}, detail) for size in below(getattr(problem, axis), WIDTHS))

    def example(self) -> ActivationProblem:
        fields = {"op": self.name, "T": 7, "HV": 2, "K": 8, "dtype": "bf16", "values": "normal"}
        return ActivationProblem.model_validate(
            {**fields, **({"K": 1} if self.name == "beta_sigmoid" else {})}
        )

    def diagnosed(self, case: PropertyCase, judged: Adapter) -> DiagnosisCase:
        return PointwiseCase(judged, case.problem)


GATE_SOFTPLUS, GATE_BOUNDED, BETA_SIGMOID, L2NORM = (PointwiseOperator(name) for name in OPERATIONS)
