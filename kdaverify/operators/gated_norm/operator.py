"""The gated RMSNorm as the machinery sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, final

from hypothesis import strategies as st
from torch import Tensor

from kdaverify.adapters.fitting import USUAL_HEADS, USUAL_WIDTHS, resized
from kdaverify.budgets.bounded import Counted
from kdaverify.budgets.formats import Format
from kdaverify.budgets.sampled import StorageContract
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.laws.law import Law
from kdaverify.checks.place import ElementPlace
from kdaverify.operators.bounded import (
    CASTS,
    PARTIALS,
    BoundedOperator,
    Misreading,
    counted_as,
    gate_freedoms,
    storing,
)
from kdaverify.operators.function import FunctionTakes
from kdaverify.operators.gated_norm.laws import LAWS
from kdaverify.operators.gated_norm.panel import (
    EQUAL,
    MULTIPLES,
    NARROW,
    PAST_16_BITS,
    named_problems,
    random_problems,
)
from kdaverify.operators.gated_norm.problem import GatedNormProblem
from kdaverify.operators.sizes import WIDTHS
from oracles.pointwise.gated_norm import EXACT, SIGNATURE, GatedNorm, GatedNormCall, NormPrecision

NORMED: Final = "normed"
SIZES: Final[Mapping[str, dict[str, Any]]] = {
    "tails": {"B": 2, "T": 17, "H": 3, "V": 33},
    "tiny": {"B": 2, "T": 3, "H": 2, "V": 8},
    "one": {"T": 1, "V": 8},
    "equal": {"B": 4, "T": 4, "H": 4, "V": 4},
    "real": {"B": 2, "T": 512, "H": 8, "V": 128},
    "long": {"B": 1, "T": 1025, "H": 2, "V": 128},
}
"""Several tokens and heads in each but one: leading axes of size 1 lie the same when swapped, and a
backward that misread them was accepted."""
SECONDS: Final = 1e-7


@final
class GatedNormOperator(BoundedOperator):
    """Math: `oracles.pointwise.gated_norm`."""

    name, signature, call, problem = "gated_rms_norm", SIGNATURE, GatedNormCall, GatedNormProblem
    about = "the gated RMSNorm y = rms_norm(x) weight act(gate) [B, T, H, V], forward and backward"
    positional = ("x", "gate", "weight")
    keywords = ("eps", "activation")
    words = {  # noqa: RUF012 # a Final mapping
        "activation": ("silu", "sigmoid"),
        "first": ("norm", "gate"),
    }
    numbers = {"eps": 1e-6}  # noqa: RUF012
    options = {"activation": ("silu", "sigmoid"), "eps": (1e-6, 1e-5)}  # noqa: RUF012
    width = "V"
    has_known_bugs = True
    native = (PAST_16_BITS,)
    of_sizes = frozenset((*EQUAL, *MULTIPLES, *NARROW))
    equal_sizes = has_sources = True
    long_sums = ({"B": 2, "T": 8209, "H": 1, "V": 16},)
    odd = (frozenset({"x", "y"}),)
    accuracy_fields = ("value", "activation")
    sizes = {"B": (1,), "T": (1, 2, 4, 16), "H": (1,), "V": WIDTHS}  # noqa: RUF012
    usual = (
        *resized("V", USUAL_WIDTHS),
        *resized("H", USUAL_HEADS),
        *resized("B", (1,)),
        {"T": 64},
    )

    def contracts(self, io: Format) -> Mapping[str, StorageContract]:
        """One rounding, of y; or also the normalised row and its product in x's type."""
        return storing(io, {"gated-rms-norm": {}, "gated-rms-norm-stored": {NORMED: io}})

    def freedoms(self, io: Format) -> Mapping[str, tuple[str, Format]]:
        return gate_freedoms(io)

    def returns(
        self, names: frozenset[str], words: Mapping[str, Any], *, final_state: bool
    ) -> tuple[str, ...]:
        return SIGNATURE.returned

    def arguments(self, call: GatedNormCall, takes: FunctionTakes) -> dict[str, Any]:
        x, gate = (_flat(tensor, call.rank) for tensor in (call.x, call.gate))
        return {
            "x": x,
            "gate": gate,
            "weight": call.weight,
            "eps": call.eps,
            "activation": call.activation,
        }

    def canonical(
        self, name: str, value: Tensor, call: GatedNormCall, takes: FunctionTakes
    ) -> Tensor:
        flat = _flat(call.x, call.rank).shape
        return value.view_as(call.x) if name == "y" and value.shape == flat else value

    def fit(self, problem: GatedNormProblem, takes: FunctionTakes) -> GatedNormProblem:
        fixed = {name: takes.fixed(name, getattr(problem, name)) for name in self.keywords}
        first = "gate" if takes.words["first"] == "gate" else None
        return problem.replace(**fixed, V=takes.width(problem.V), first=first)

    def probe(self, dtype: str) -> GatedNormProblem:
        return GatedNormProblem.model_validate(
            {"dtype": dtype, "B": 2, "T": 16, "H": 2, "V": 64, "value": "small"}
        )

    def counted(
        self,
        call: GatedNormCall,
        cotangents: Mapping[str, Tensor] | None,
        contract: StorageContract | None,
        io: Format,
    ) -> Counted:
        names = (NORMED, PARTIALS, CASTS)
        precision = EXACT if contract is None else counted_as(NormPrecision, contract, io, names)
        counted = GatedNorm(call, precision)
        return counted.forward() if cotangents is None else counted.backward(cotangents)

    def inputs_alike(
        self, problem: GatedNormProblem
    ) -> Iterator[tuple[frozenset[str], Mapping[str, Any]]]:
        yield frozenset({"x", "gate"}), {}

    def expanded_axes(self) -> Iterator[tuple[str, int, tuple[str, ...]]]:
        yield "head", 2, ("gate",)
        yield "entry", 0, ("x",)

    def misreadings(self, call: GatedNormCall) -> Iterator[Misreading]:
        order = ("before", "after") if call.gate_first else ("after", "before")
        own, other = ("gate", "norm") if call.gate_first else ("norm", "gate")
        yield Misreading(
            f"the gate multiplies x {order[1]} the norm; multiply {order[0]} it, or declare"
            f" first={other!r} in the place of {own!r}",
            replace(call, gate_first=not call.gate_first),
        )
        yield Misreading(
            "x and gate are exchanged: the function normalises its second argument; normalise x",
            replace(call, x=call.gate, gate=call.x),
        )

    def groups(self, call: GatedNormCall) -> int:
        """A row has one root, a column one weight."""
        return min(call.x[..., 0].numel(), call.x.shape[3])

    def laws(self) -> Mapping[str, Law]:
        return LAWS

    def named_problems(self, dtype: str, profile: str) -> Mapping[str, GatedNormProblem]:
        return named_problems(dtype, profile)

    def random_problems(self, dtype: str) -> st.SearchStrategy[GatedNormProblem]:
        return random_problems(dtype)

    def sized(self, rule: CallRule, dtype: str, *, seed: int) -> GatedNormProblem:
        fields: dict[str, Any] = {"dtype": dtype, "seed": seed, **SIZES[rule.size]}
        return GatedNormProblem(**fields)

    def in_other_forms(self, rule: CallRule, problem: GatedNormProblem) -> Mapping[str, Any]:
        """Of rules about memory: the leading axes flattened, where a view stays one."""
        if rule.size == "equal":
            square = problem.replace(B=1, H=1, rank=2)
            return {"3-axes": problem.replace(B=1, rank=3), "2-axes": square}
        if not rule.memory:
            return {}
        return {f"{rank}-axes": problem.replace(B=1, rank=rank) for rank in (3, 2)}

    def cost(self, problem: GatedNormProblem) -> float:
        return SECONDS * problem.B * problem.T * problem.H * problem.V

    def smaller(
        self, problem: GatedNormProblem, detail: Mapping[str, Any]
    ) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
        yield from super().smaller(problem, detail)
        plain = {"rank": 4, "value": "normal", "loss": None}
        yield from (
            ({name: value}, detail)
            for name, value in plain.items()
            if getattr(problem, name) != value
        )

    def example(self) -> GatedNormProblem:
        return GatedNormProblem(T=7, H=2, V=33, dtype="bf16")

    def traits(self, problem: GatedNormProblem) -> Mapping[str, bool]:
        return {
            "V is no multiple of 16": problem.V % 16 > 0,
            "several batch entries": problem.B > 1,
            **super().traits(problem),
        }

    def place(self, output: str, index: tuple[int, ...], call: GatedNormCall) -> ElementPlace:
        """Row and column, and what made the element."""
        if len(index) == 1:
            return ElementPlace(
                index, f"column {index[0]}", f"a sum over {call.x[..., 0].numel()} rows"
            )
        b, t, h, column = index
        x, z, w = (
            float(tensor) for tensor in (call.x[index], call.gate[index], call.weight[column])
        )
        root = float(GatedNorm(call).mean[b, t, h].sqrt())
        words = (
            f"batch entry {b}, token {t} of {call.x.shape[1]}, head {h}, column {column} of"
            f" {call.x.shape[3]}"
        )
        return ElementPlace(
            index,
            words,
            f"x {x:.4g} over the root {root:.4g}, weight {w:.4g}, gate {z:.4g}, eps {call.eps:g}",
        )


def _flat(tensor: Tensor, rank: int) -> Tensor:
    return tensor if rank == 4 else tensor.flatten(0, 4 - rank)


GATED_RMS_NORM: Final = GatedNormOperator()
