"""Whole layers as the machinery sees them: laws, and nothing that needs an oracle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final, final

from hypothesis import strategies as st

from kdaverify.adapters.base import Adapter, AdapterError
from kdaverify.budgets.formats import FORMATS, Format
from kdaverify.budgets.sampled import StorageContract
from kdaverify.budgets.standard import Reference
from kdaverify.checks.laws.law import Law
from kdaverify.checks.place import ElementPlace
from kdaverify.operator import Axis, Choices
from kdaverify.operators.function import FunctionOperator, FunctionTakes
from kdaverify.operators.layer.call import SIGNATURE, LayerCall
from kdaverify.operators.layer.judging import checked
from kdaverify.operators.layer.laws import LAWS, LayerLaw
from kdaverify.operators.layer.problem import LayerProblem
from kdaverify.operators.layer.schedule import ScheduledLayer
from kdaverify.operators.layer.tolerance import WIDE
from kdaverify.operators.sizes import below

NO_ORACLE: Final = "a layer has no oracle: it is judged by laws"
PANEL: Final[dict[str, dict[str, int]]] = {
    "short": {"B": 3, "T": 7},
    "one-row": {"B": 1, "T": 33},
    "past-a-chunk": {"B": 2, "T": 70},
}
LONGER: Final[dict[str, dict[str, int]]] = {
    "one-token": {"B": 2, "T": 1},
    "a-chunk": {"B": 2, "T": 64},
    "three-chunks": {"B": 2, "T": 150},
    "many-rows": {"B": 5, "T": 20},
}


@final
class LayerOperator(FunctionOperator):
    """A function (hidden, *, cache, attention_mask, cu_seqlens, use_cache) -> (out, cache)."""

    name, signature, call, problem = "layer", SIGNATURE, LayerCall, LayerProblem
    suites = "layer"
    positional = ("hidden",)
    keywords = ("cache", "attention_mask", "cu_seqlens", "use_cache")
    words = {"reference": ("plain", WIDE)}  # noqa: RUF012 # a Final mapping
    numbers = {"longest": 4096}  # noqa: RUF012
    functions = ("reset", "reorder")
    formats = ("fp32", "bf16", "fp16")
    width = "D"
    telling = ("T", "B")

    def parameters(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        raise AdapterError(
            "op='layer': its cache lives between calls, so they fit into no files; test it where it"
            " runs"
        )

    def contracts(self, io: Format) -> Mapping[str, StorageContract]:
        return {"layer": StorageContract(f"layer-{io.name}", io, FORMATS["fp32"])}

    def returns(
        self, names: frozenset[str], words: Mapping[str, Any], *, final_state: bool
    ) -> tuple[str, ...]:
        del names, words, final_state
        return SIGNATURE.returned

    def beside(self, words: Mapping[str, Any]) -> tuple[str, ...]:
        """float64, where that is the reference."""
        return (WIDE,) if words["reference"] == WIDE else ()

    def wrong(self, takes: FunctionTakes) -> str | None:
        """A layer has one width."""
        return (
            None
            if len(takes.widths) == 1
            else f"widths: wanted the one width of hidden, such as widths=64, got"
            f" {list(takes.widths) or 'none'}"
        )

    def arguments(self, call: LayerCall, takes: FunctionTakes) -> dict[str, Any]:
        del takes
        return {"hidden": call.hidden}

    def invoked(
        self, function: Any, call: LayerCall, takes: FunctionTakes, unknown: Mapping[str, Any]
    ) -> Any:
        del unknown
        options = {name: takes.words[name] for name in self.functions}
        return ScheduledLayer(function, takes.names, **options).run(call)

    def refuses(self, problem: LayerProblem, takes: FunctionTakes) -> str | None:
        inside = self.fit(problem, takes)
        return None if inside == problem else f"it takes {inside.describe()} at most"

    def fit(self, problem: LayerProblem, takes: FunctionTakes) -> LayerProblem:
        longest = int(takes.words["longest"])
        return problem.replace(T=min(problem.T, longest), D=takes.width(problem.D))

    def probe(self, dtype: str) -> LayerProblem:
        return LayerProblem(dtype=dtype, B=2, T=9)  # pyright: ignore[reportArgumentType]

    @cached_property
    def _laws(self) -> Mapping[str, Law]:
        return {law.name: _as_law(law) for law in LAWS.values()}

    def example(self) -> LayerProblem:
        return LayerProblem(B=2, T=7, dtype="bf16")

    def laws(self) -> Mapping[str, Law]:
        return self._laws

    def axes(self) -> Mapping[str, Axis]:
        """No rules of calls: those hold results against an oracle."""
        return {name: axis for name, axis in super().axes().items() if name in ("dtype", "lawful")}

    def lawful(self, adapter: Adapter, profile: str) -> Choices:
        """A law, and a problem of the panel."""
        return [
            (f"{name}-{law}", (law, problem))
            for name, problem in self.panel(adapter, profile)
            for law in applicable(adapter)
            if LAWS[law].untestable(problem) is None
        ]

    def panel(self, adapter: Adapter, profile: str) -> Choices:
        sizes = PANEL if profile == "smoke" else {**PANEL, **LONGER}
        found = dict[str, tuple[str, Any]]()
        for dtype in adapter.dtypes:
            for name, fields in sizes.items():
                inside = self.within(adapter, LayerProblem(dtype=dtype, **fields))  # pyright: ignore[reportArgumentType]
                if adapter.supports(inside) is None:
                    found.setdefault(inside.to_json(), (f"{dtype}-{name}", inside))
        return [*found.values()]

    def random(self, adapter: Adapter, dtype: str, bounds: Any) -> st.SearchStrategy[LayerProblem]:
        fields: dict[str, st.SearchStrategy[Any]] = {
            "dtype": st.just(dtype),
            "seed": st.integers(0, 2**31 - 1),
            "B": st.integers(1, 4),
            "T": st.integers(1, 140),
        }
        drawn = st.fixed_dictionaries(fields).map(LayerProblem.model_validate)
        return drawn.map(lambda problem: self.within(adapter, problem.replace(**(bounds or {}))))

    def not_applicable(self, adapter: Adapter, profile: str) -> dict[str, str]:
        del adapter, profile
        return {"calls": "a layer is called in schedules of its own: see its laws"}

    def outside(self, adapter: Adapter) -> tuple[str, ...]:
        """The laws that a declaration leaves out."""
        lacking = sorted({need for law in LAWS.values() for need in _lacking(adapter, law)})
        return tuple(f"{need} (the declaration does not have it)" for need in lacking)

    def loss(self, problem: Any, exposed: tuple[str, ...], of: str, exponent: int) -> str:
        del problem, exposed, of, exponent
        return NO_ORACLE

    def reference(
        self, call: Any, contract: Any, io: Format, *, cuts: tuple[int, ...] = ()
    ) -> Reference:
        raise NotImplementedError(NO_ORACLE)

    def gradient_reference(
        self, call: Any, cotangents: Any, contract: Any, io: Format
    ) -> Reference:
        raise NotImplementedError(NO_ORACLE)

    def output_format(self, output: str, contract: StorageContract, io: Format) -> Format:
        del output, contract
        return io

    def smaller(
        self, problem: LayerProblem, detail: Mapping[str, Any]
    ) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
        sizes = {"B": (1, 2), "T": (1, 2, 4, 8, 16, 33, 65)}
        for axis, wanted in sizes.items():
            yield from (({axis: size}, detail) for size in below(getattr(problem, axis), wanted))

    def place(self, output: str, index: tuple[int, ...], call: LayerCall) -> ElementPlace:
        del output
        b, t, column = index
        words = f"sequence {b}, token {t} of {call.hidden.shape[1]}, column {column}"
        return ElementPlace(index, words, f"hidden {float(call.hidden[index]):.4g}")


def applicable(adapter: Adapter) -> list[str]:
    """The laws that a declaration can be tested on."""
    return [
        name
        for name, law in LAWS.items()
        if not _lacking(adapter, law) and (adapter.differentiable or not law.of_gradients)
    ]


def _lacking(adapter: Adapter, law: LayerLaw) -> list[str]:
    """What a law needs and a declaration does not have: keywords of the signature, functions."""
    takes: FunctionTakes = adapter.takes
    return [need for need in law.needs if need not in takes.names and takes.words.get(need) is None]


def _as_law(law: LayerLaw) -> Law:
    return Law(
        law.name,
        law.statement,
        "reference, whole layers",
        law.exists_for,
        checked(law),
        untestable=law.untestable,
        backward=law.of_gradients,
    )


LAYER: Final = LayerOperator()
