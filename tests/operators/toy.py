"""A toy operator, y = alpha a b + bias in two stages: how little one has to bring along."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal, final

import torch
from hypothesis import strategies as st
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.canonical import Canonical
from kdaverify.checks.laws.law import Law
from kdaverify.checks.outcome import Outcome
from kdaverify.kills.known_faults import FaultCatalogue, PlantedFault
from kdaverify.operator import Choices, register
from kdaverify.operators.pipeline import PipelineOperator
from kdaverify.operators.pipeline_kernel import Change, PipelineKernel
from kdaverify.operators.relations import exactly, relation, run
from kdaverify.problems.axes import TORCH
from kdaverify.problems.portable import Stream
from oracles.arithmetic import Arithmetic
from oracles.signature import CallSignature, Role, TensorCall, TensorRole

SIGNATURE: Final = CallSignature(
    inputs=(
        TensorRole("a", Role.TOKEN, ("M", "K"), "da"),
        TensorRole("b", Role.PARAMETER, ("K", "N"), "db"),
        TensorRole("bias", Role.PARAMETER, ("N",), "dbias", optional=True),
    ),
    outputs=(TensorRole("y", Role.TOKEN, ("M", "N"), "dy"),),
)
HERE: Final = "tests.operators.toy"
SHAPES: Final = {"one": (1, 1, 1), "tails": (17, 33, 5), "wide": (8, 128, 64)}


@dataclass(frozen=True)
class ToyCall(TensorCall):
    op: ClassVar = "toy"
    signature: ClassVar = SIGNATURE

    a: Tensor
    b: Tensor
    bias: Tensor | None
    alpha: float = 0.5


class ToyProblem(Canonical):
    op: Literal["toy"] = "toy"
    dtype: Literal["fp32", "bf16"] = "fp32"
    seed: int = 7
    M: int
    K: int
    N: int
    bias: bool = True

    @property
    def regime(self) -> str:
        return "with-bias" if self.bias else "without-bias"

    @property
    def stem(self) -> str:
        return f"toy-{self.dtype}-M{self.M}K{self.K}N{self.N}-{self.regime}"

    def inputs(self) -> ToyCall:
        def drawn(name: str, *shape: int) -> Tensor:
            return torch.from_numpy(Stream(self.seed, name).normal(*shape)).to(TORCH[self.dtype])

        bias = drawn("bias", self.N) if self.bias else None
        return ToyCall(drawn("a", self.M, self.K), drawn("b", self.K, self.N), bias)


@final
class ToyOperator(PipelineOperator):
    name, signature, call, problem = "toy", SIGNATURE, ToyCall, ToyProblem

    def forward(self, call: ToyCall, arithmetic: Arithmetic) -> dict[str, Tensor]:
        product = arithmetic.store("product", arithmetic.dot(call.a, call.b))
        return {"y": arithmetic.store("y", finished(call, product))}

    def backward(
        self, call: ToyCall, cotangents: Mapping[str, Tensor], arithmetic: Arithmetic
    ) -> dict[str, Tensor]:
        dy = cotangents["dy"]
        scaled = arithmetic.store("scaled", call.alpha * dy)
        found = {"da": arithmetic.dot(scaled, call.b.mT), "db": arithmetic.dot(call.a.mT, scaled)}
        if call.bias is not None:
            found["dbias"] = arithmetic.dot(dy.new_ones(1, len(dy)), dy)[0]
        return {name: arithmetic.store(name, gradient) for name, gradient in found.items()}

    def roundings(self, call: ToyCall) -> int:
        return max(*call.a.shape, *call.b.shape) + 2

    def panel(self, adapter: Adapter, profile: str) -> Choices:
        sized = [
            (dtype, name, dict(zip("MKN", shape, strict=True)))
            for dtype in adapter.dtypes
            for name, shape in SHAPES.items()
        ]
        return [
            (f"{dtype}-{name}", ToyProblem.model_validate({"dtype": dtype, **sizes}))
            for dtype, name, sizes in sized
        ]

    def random(self, adapter: Adapter, dtype: str, bounds: Any) -> st.SearchStrategy[ToyProblem]:
        sizes, seeds = dict.fromkeys("MKN", st.integers(1, 40)), st.integers(0, 99)
        others = {"dtype": st.just(dtype), "seed": seeds, "bias": st.booleans()}
        return st.fixed_dictionaries(sizes | others).map(ToyProblem.model_validate)

    def laws(self) -> Mapping[str, Law]:
        return {"doubled": relation("doubled", "y(2 a, 2 bias) = 2 y", "H1", _doubled)}

    def fault_catalogue(self) -> FaultCatalogue:
        right = f"{HERE}:kernel"
        specs = {fault: f"{HERE}:{fault.replace('-', '_')}" for fault in FAULTS}
        made = (PlantedFault(name, name, at, right, ("y",), (right,)) for name, at in specs.items())
        return FaultCatalogue({fault.id: fault for fault in made}, {})


def _doubled(adapter: Adapter, problem: ToyProblem) -> list[Outcome]:
    x = problem.inputs()
    larger = replace(x, a=2 * x.a, bias=None if x.bias is None else 2 * x.bias)
    wanted = {"y": 2 * run(adapter, problem, x)["y"]}
    return exactly(larger, run(adapter, problem, larger), wanted)


def finished(x: ToyCall, product: Tensor) -> Tensor:
    return x.alpha * product if x.bias is None else x.alpha * product + x.bias


TOY: Final = ToyOperator()
register(TOY)
FAULTS: Final[Mapping[str, Change]] = {
    "last-column": lambda x, product: product - x.a[:, -1:] @ x.b[-1:],
    "narrow-sums": lambda x, _: (x.a.bfloat16() @ x.b.bfloat16()).float(),
    "first-tile": lambda x, product: product[torch.arange(len(product)) % 16],
}


def kernel_with(fault: str = "") -> PipelineKernel:
    """The right kernel, or one whose products are wrong."""
    name, changes = (f"toy-{fault}", {"product": FAULTS[fault]}) if fault else ("toy", {})
    return PipelineKernel(TOY, name, ("fp32", "bf16"), changes)


kernel, last_column, narrow_sums, first_tile = map(kernel_with, ("", *FAULTS))
