"""Whole layers as the machinery sees them: laws, and nothing that needs an oracle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, final

import torch
from hypothesis import strategies as st

from kdaverify.adapters.base import Adapter, AdapterError, is_slow
from kdaverify.adapters.fitting import USUAL_WIDTHS, resized
from kdaverify.budgets.formats import FORMATS, Format
from kdaverify.budgets.sampled import StorageContract
from kdaverify.checks.laws.law import Law
from kdaverify.checks.place import ElementPlace
from kdaverify.operator import Axis, Choices
from kdaverify.operators.function import FunctionOperator, FunctionTakes
from kdaverify.operators.layer.call import SIGNATURE, LayerCall
from kdaverify.operators.layer.laws import LAWS
from kdaverify.operators.layer.problem import LayerProblem
from kdaverify.operators.layer.schedule import ScheduledLayer
from kdaverify.operators.layer.tolerance import WIDE

PANEL: Final[dict[str, dict[str, int]]] = {
    "short": {"B": 3, "T": 7},
    "one-row": {"B": 1, "T": 33},
    "past-a-chunk": {"B": 2, "T": 70},
}
PAST_A_CACHE: Final[dict[str, int]] = {"B": 2, "T": 530}
"""The problem of laws about caches that grow, in the first format: rooms are of no format. Segments
of 256 tokens, and blocks of a cache of 512, end within it."""
GROWING: Final = frozenset({"grown-cache", "grown-rows"})
PADDED: Final = frozenset({"left-padding", "left-padding-decode"})
"""Tested on it too: masks were cut at the first columns of each segment, and keys behind a shorter
row were read in the last block."""
LATE: Final = frozenset({"late-tokens"})
"""Of numbers that bf16 has not: tested in it."""
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
    about = "a whole layer with its cache: its laws, and its outputs beside float64"
    suites = "layer"
    positional = ("hidden",)
    keywords = ("cache", "attention_mask", "cu_seqlens", "use_cache")
    words = {"reference": ("plain", WIDE)}  # noqa: RUF012 # a Final mapping
    numbers = {"longest": 4096}  # noqa: RUF012
    functions = ("reset", "reorder")
    width = "D"
    accuracy_fields = ("T", "B")
    sizes = {"B": (1, 2), "T": (1, 2, 4, 8, 16, 33, 65)}  # noqa: RUF012
    usual = (*resized("D", USUAL_WIDTHS), *resized("B", (1,)))

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
        return SIGNATURE.returned

    def beside(self, words: Mapping[str, Any]) -> tuple[str, ...]:
        """float64, where that is the reference."""
        return (WIDE,) if words["reference"] == WIDE else ()

    def wrong(self, takes: FunctionTakes) -> str | None:
        """A layer has one width."""
        if len(takes.widths) == 1:
            return None
        given = [*takes.widths] or "none"
        return f"widths: wanted the one width of hidden, such as widths=64, got {given}"

    def arguments(self, call: LayerCall, takes: FunctionTakes) -> dict[str, Any]:
        return {"hidden": call.hidden}

    def invoked(
        self, function: Any, call: LayerCall, takes: FunctionTakes, unknown: Mapping[str, Any]
    ) -> Any:
        options = {name: takes.words[name] for name in self.functions}
        return ScheduledLayer(function, takes.names, **options).run(call)

    def fit(self, problem: LayerProblem, takes: FunctionTakes) -> LayerProblem:
        longest = int(takes.words["longest"])
        return problem.replace(T=min(problem.T, longest), D=takes.width(problem.D))

    def probe(self, dtype: str) -> LayerProblem:
        return _problem(dtype, {"B": 2, "T": 9})

    def example(self) -> LayerProblem:
        return _problem("bf16", {"B": 2, "T": 7})

    def laws(self) -> Mapping[str, Law]:
        return LAWS

    def axes(self) -> Mapping[str, Axis]:
        """No rules of calls: those hold results against an oracle."""
        return {name: axis for name, axis in super().axes().items() if name in ("dtype", "lawful")}

    def lawful(self, adapter: Adapter, profile: str) -> Choices:
        """A law, and a problem of the panel."""
        laws, panel = applicable(adapter), self.panel(adapter, profile)
        tested = [(one, law) for one in panel for law in laws if law not in GROWING | LATE]
        return [
            (f"{name}-{law}", (law, problem))
            for (name, problem), law in [*tested, *self._growing(adapter, laws)]
            if LAWS[law].untestable(problem) is None
        ]

    def _growing(
        self, adapter: Adapter, laws: list[str]
    ) -> Iterator[tuple[tuple[str, LayerProblem], str]]:
        if not adapter.dtypes or is_slow(adapter):
            return
        narrow = "bf16" if "bf16" in adapter.dtypes else None
        for dtype, tested in ((adapter.dtypes[0], GROWING | PADDED), (narrow, LATE)):
            if dtype is None:
                continue
            problem = self.within(adapter, _problem(dtype, PAST_A_CACHE))
            if adapter.supports(problem) is None:
                yield from (
                    ((f"{dtype}-past-a-cache", problem), law) for law in laws if law in tested
                )

    def named_problems(self, dtype: str, profile: str) -> Mapping[str, LayerProblem]:
        sizes = PANEL if profile == "smoke" else {**PANEL, **LONGER}
        return {name: _problem(dtype, fields) for name, fields in sizes.items()}

    def random_problems(self, dtype: str) -> st.SearchStrategy[LayerProblem]:
        sizes = {"seed": (0, 2**31 - 1), "B": (1, 4), "T": (1, 140)}
        fields = {name: st.integers(*ends) for name, ends in sizes.items()}
        return st.fixed_dictionaries(fields).map(lambda drawn: _problem(dtype, drawn))

    def not_applicable(self, adapter: Adapter, profile: str) -> dict[str, str]:
        return {"calls": "a layer is called in schedules of its own: see its laws"}

    def outside(self, adapter: Adapter) -> tuple[str, ...]:
        """The laws that a declaration leaves out."""
        lacking = sorted({need for law in LAWS.values() for need in _lacking(adapter, law)})
        return tuple(f"{need} (the declaration does not have it)" for need in lacking)

    def place(self, output: str, index: tuple[int, ...], call: LayerCall) -> ElementPlace:
        """A token by its place in its own sequence."""
        (b, t, column), before = index, 0
        if call.cu_seqlens is not None:
            b = int(torch.searchsorted(call.cu_seqlens, t, right=True)) - 1
            before = int(call.cu_seqlens[b])
        elif call.attention_mask is not None:
            before = int((call.attention_mask[b, :t] == 0).sum())
        words = f"sequence {b}, token {t - before}, column {column}"
        return ElementPlace(index, words, f"hidden {float(call.hidden[index]):.4g}")


def applicable(adapter: Adapter) -> list[str]:
    """The laws that a declaration can be tested on."""
    return [
        name
        for name, law in LAWS.items()
        if not _lacking(adapter, law) and (adapter.differentiable or not law.backward)
    ]


def _lacking(adapter: Adapter, law: Law) -> list[str]:
    return [need for need in law.needs if not adapter.takes.has(need)]


def _problem(dtype: str, sizes: Mapping[str, int]) -> LayerProblem:
    return LayerProblem.model_validate({"dtype": dtype, **sizes})


LAYER: Final = LayerOperator()
