"""The merge of two states as the machinery sees it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, final

from hypothesis import strategies as st
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.fitting import USUAL_HEADS, USUAL_WIDTHS, resized
from kdaverify.budgets.formats import FORMATS
from kdaverify.checks.calls.multiples import ManyCopies
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.laws.law import Law
from kdaverify.checks.place import ElementPlace
from kdaverify.operators.admitted import fails, passes, under
from kdaverify.operators.attention.conventions import (
    WORDS,
    based,
    canonical_lse,
    canonical_o,
    declared_lse,
    misdeclared_lse,
)
from kdaverify.operators.attention.copies import of_merges
from kdaverify.operators.attention.laws import MERGE_LAWS
from kdaverify.operators.attention.merge_problem import ZEROS, MergeProblem
from kdaverify.operators.attention.misreadings import alike
from kdaverify.operators.attention.panel import merge_problems, random_merges
from kdaverify.operators.attention.special_sizes import MERGES
from kdaverify.operators.attention.tolerances_operator import TolerancesOperator
from kdaverify.operators.function import FunctionTakes
from oracles.attention.calls import MERGE_STATE as SIGNATURE
from oracles.attention.calls import MergeCall

if TYPE_CHECKING:
    from kdaverify.diagnosis.question import PropertyCase

SIZES: Final[Mapping[str, dict[str, Any]]] = {
    "tails": {"T": 33, "H": 3, "d_v": 17},
    "tiny": {"T": 5, "H": 2, "d_v": 8},
    "one": {"T": 1, "H": 2, "d_v": 8},
    "real": {"T": 1028, "H": 16, "d_v": 64},
    "long": {"T": 1028, "H": 2, "d_v": 32},
    "keys": {"T": 9, "H": 2, "d_v": 8},
    "equal": {"T": 4, "H": 4, "d_v": 4, "parts": "one-empty"},
}


def _has_empty_part(problem: MergeProblem) -> bool:
    """Whether a part of some row has an LSE of -inf."""
    if problem.parts == "zeros":
        return any(-math.inf in row for row in ZEROS[: problem.T])
    return problem.parts in ("one-empty", "empty", "first-once", "second-once")


@final
class MergeOperator(TolerancesOperator):
    """Math: `oracles.attention.split.merge`."""

    name, signature, call, problem = "merge_state", SIGNATURE, MergeCall, MergeProblem
    special_sizes = MERGES
    has_copies = True
    fed_back = {"o": "o_a", "lse": "lse_a"}  # noqa: RUF012 # a Final mapping
    about = "the merge of two partial attentions by their lse: o and lse, forward"
    positional = ("o_a", "lse_a", "o_b", "lse_b")
    keywords = ()
    words = WORDS
    has_backward = False
    accuracy_fields = ("parts",)
    sizes = {"T": (1, 2, 3), "H": (1, 2), "d_v": (1, 2, 4, 8, 16)}  # noqa: RUF012
    usual = (*resized(["d_v"], USUAL_WIDTHS), *resized("H", USUAL_HEADS), {"T": 64})

    def arguments(self, call: MergeCall, takes: FunctionTakes) -> dict[str, Any]:
        lse = [declared_lse(x, takes.words) for x in (call.lse_a, call.lse_b)]
        return {"o_a": call.o_a, "lse_a": lse[0], "o_b": call.o_b, "lse_b": lse[1]}

    def received(self, call: MergeCall, takes: FunctionTakes) -> MergeCall:
        """With LSE as they are once converted to the declared base: near 1,000 their rounding moves
        weights by 1e-4.
        """
        if takes.words["lse"] == "e":
            return call
        lse = (based(x, takes.words).double() * math.log(2) for x in (call.lse_a, call.lse_b))
        return replace(call, **dict(zip(("lse_a", "lse_b"), lse, strict=True)))

    def canonical(self, name: str, value: Tensor, call: MergeCall, takes: FunctionTakes) -> Tensor:
        empty = call.empty.to(value.device)
        if name == "lse" and value.shape == empty.shape:
            return canonical_lse(value, empty, takes.words)
        if name == "o" and value.shape == call.o_a.shape:
            return canonical_o(value, empty.mT[..., None], takes.words)
        return value

    def elements(self, problem: MergeProblem) -> int:
        return problem.T * problem.H * problem.d_v

    def fit(self, problem: MergeProblem, takes: FunctionTakes) -> MergeProblem:
        return problem.replace(d_v=takes.width(problem.d_v))

    def probe(self, dtype: str) -> MergeProblem:
        return MergeProblem.model_validate(
            {"dtype": dtype, "T": 9, "H": 2, "d_v": 16, "parts": "empty"}
        )

    def probes(self, dtype: str) -> tuple[MergeProblem, ...]:
        """Where a part is empty, LSE of the other passes through: the base shows nowhere."""
        return self.probe(dtype), self.probe(dtype).replace(parts="normal")

    def laws(self) -> Mapping[str, Law]:
        return MERGE_LAWS

    def named_problems(self, dtype: str, profile: str) -> Mapping[str, MergeProblem]:
        return merge_problems(dtype, profile)

    def random_problems(self, dtype: str) -> st.SearchStrategy[MergeProblem]:
        return random_merges(dtype)

    def sized(self, rule: CallRule, dtype: str, *, seed: int) -> MergeProblem:
        return MergeProblem.model_validate(
            {"dtype": dtype, "seed": seed, "parts": "empty", **SIZES[rule.size]}
        )

    def copies(self) -> Iterable[ManyCopies]:
        return of_merges()

    def other_keys(self, problem: MergeProblem) -> Mapping[str, dict[str, Any]]:
        return {
            f"parts, which are {parts}": {"parts": parts}
            for parts in ("normal", "one-empty", "empty")
            if parts != problem.parts
        }

    def smaller(
        self, problem: MergeProblem, detail: Mapping[str, Any]
    ) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
        if problem.parts != "normal":
            yield {"parts": "normal"}, detail
        yield from super().smaller(problem, detail)

    def example(self) -> MergeProblem:
        return MergeProblem(T=7, H=3, parts="empty", dtype="bf16")

    def traits(self, problem: MergeProblem) -> Mapping[str, bool]:
        return {
            "a part without keys": _has_empty_part(problem),
            "rows without keys": problem.parts == "empty",
            "T differs from H": problem.T != problem.H,
            **super().traits(problem),
        }

    def explain_error(self, case: PropertyCase, judged: Adapter, *, until: float) -> str:
        """Also whether the case passes with weights relative to LSE, as FlashMLA's have them."""
        if said := super().explain_error(case, judged, until=until):
            return said
        own: Any = judged.contract(case.problem.dtype)
        if getattr(own, "weights", "lse") == "lse" or not fails(case, judged):
            return ""
        if not passes(case, under(judged, replace(own, weights="lse"))):
            return ""
        return (
            "within the tolerance of weights that have the rounding of LSE: mend it, or declare"
            " [weights:lse] behind the contract"
        )

    def otherwise(self, adapter: Any, problem: Any, found: Mapping[str, Tensor]) -> str | None:
        call = problem.inputs()
        exact = {n: x for n, (x, _) in self.counted(call, None, None, FORMATS["fp32"]).items()}
        if "lse" not in found or alike(found["lse"], exact["lse"]):
            return None
        words = adapter.takes.words
        said = misdeclared_lse(found["lse"], exact["lse"], call.empty, words, alike)
        return said or self._other_base(call, found, words)

    def _other_base(
        self, call: MergeCall, found: Mapping[str, Tensor], words: Mapping[str, Any]
    ) -> str | None:
        """Whether LSE is taken and returned to the base that is not declared."""
        other, factor = ("2", math.log(2)) if words["lse"] == "e" else ("e", 1 / math.log(2))
        read = replace(call, lse_a=call.lse_a * factor, lse_b=call.lse_b * factor)
        o, lse = (self.counted(read, None, None, FORMATS["fp32"])[n][0] for n in ("o", "lse"))
        if alike(found["o"], o) and alike(found["lse"] * factor, lse):
            return (
                f"declared lse={words['lse']!r}, but LSE is taken and returned to base {other};"
                f" declare lse={other!r}"
            )
        return None

    def place(self, output: str, index: tuple[int, ...], call: MergeCall) -> ElementPlace:
        head, row = index[:2] if output.startswith("lse") else (index[1], index[0])
        column = "" if output.startswith("lse") else f", column {index[2]}"
        parts = ", ".join(f"{float(x[head, row]):.6g}" for x in (call.lse_a, call.lse_b))
        return ElementPlace(index, f"row {row}, head {head}{column}", f"LSE of the parts {parts}")


MERGE_STATE: Final = MergeOperator()
