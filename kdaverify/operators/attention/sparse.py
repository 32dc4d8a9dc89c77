"""Attention over lists of cache slots as the machinery sees it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final, final

from hypothesis import strategies as st
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.fitting import resized
from kdaverify.checks.calls.case import Unreachable
from kdaverify.checks.calls.multiples import ManyCopies
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.laws.law import Law
from kdaverify.checks.place import ElementPlace
from kdaverify.operators.attention.conventions import GRADIENT, MASKED, WORDS
from kdaverify.operators.attention.copies import of_lists
from kdaverify.operators.attention.far_keys import before_lists
from kdaverify.operators.attention.laws.sparse import SPARSE_LAWS
from kdaverify.operators.attention.misreadings import alike, all_alike
from kdaverify.operators.attention.sizes_in_turn import lists_in_turn
from kdaverify.operators.attention.softmax import LATENT_WIDTHS, SoftmaxOperator, permuted
from kdaverify.operators.attention.sparse_panel import random_sparse, sparse_problems
from kdaverify.operators.attention.sparse_problem import SparseProblem
from kdaverify.operators.attention.special_sizes import LISTS
from kdaverify.operators.attention.unused import answered, reads_unnamed_slots
from kdaverify.operators.function import FunctionTakes
from oracles.attention.fp8 import TILE
from oracles.attention.sparse import SPARSE_ATTENTION as SIGNATURE
from oracles.attention.sparse import SparseCall

SIZES: Final[Mapping[str, dict[str, Any]]] = {
    "tails": {"B": 3, "topk": 66, "pages": 9, "H": 6, "d_k": 24, "d_v": 17},
    "tiny": {"B": 3, "topk": 5, "pages": 2, "H": 4, "d_k": 16, "d_v": 8},
    "one": {"B": 1, "topk": 1, "pages": 1, "H": 4, "d_k": 16, "d_v": 8},
    "real": {"B": 3, "topk": 515, "pages": 40, "H": 16, "d_k": 96, "d_v": 64},
    "long": {"B": 2, "topk": 1030, "pages": 70, "H": 2, "d_k": 40, "d_v": 32},
    "keys": {
        "B": 4,
        "topk": 130,
        "topk_lengths": (130, 0, 3, 65),
        "lists": "holes",
        "pages": 10,
        "H": 4,
        "d_k": 16,
        "d_v": 8,
    },
    "equal": {
        "B": 4, "s_q": 4, "topk": 4, "pages": 4, "page": 4, "H": 4, "h_kv": 4, "d_k": 4, "d_v": 3,
        "lists": "ends",
    },
}  # fmt: skip

EASY: Final = {"invalid": "negative", "unused": "finite"}
"""What a function takes whatever it declares: every other value of these fields includes it."""


@final
class SparseOperator(SoftmaxOperator):
    """Math: `oracles.attention.segment`, keys and values of `SparseCall`."""

    name, signature, call, problem = "sparse_attention", SIGNATURE, SparseCall, SparseProblem
    has_copies = has_far_keys = has_sizes_in_turn = True
    special_sizes = LISTS
    about = (
        "attention over lists of cache slots, also of an FP8 cache: o and lse, forward; with"
        " gradients=True and a cache of rows also backward"
    )
    positional = ("q", "cache", "indices")
    keywords = ("topk_length", "d_v", "softmax_scale", "sink")
    words: Mapping[str, tuple[str, ...]] = {
        **WORDS,
        **GRADIENT,
        **{name: MASKED[name] for name in ("sink", "lse_includes_sink")},
        "key_heads": ("any", "all", "one"),
        "unused": ("anything", "finite"),
        "invalid": ("negative", "outside"),
        "cache": ("rows", "fp8"),
        "scales": ("any", "powers"),
    }
    numbers = {**SoftmaxOperator.numbers, "page": 0.0}  # noqa: RUF012
    accuracy_fields = ("lists", "logits", "scales")
    plain: ClassVar = {
        "sink": None,
        "lists": "distinct",
        "topk_lengths": None,
        "scales": "powers",
        "loss": None,
    }
    sizes = {"topk": (1, 2, 8, 64, 65), "pages": (1, 2, 3), "page": (4, 16)}  # noqa: RUF012
    usual = (
        *LATENT_WIDTHS,
        *resized("H", (64, 128, 16, 4, 1)),
        *resized(["topk"], (64, 128, 512)),
        *resized(["page"], (64, 16, 1)),
    )

    def undifferentiated(self, takes: FunctionTakes, *, declared: bool | None) -> str:
        """Kernels over lists are mostly for inference: autograd may sum gradients in 16 bits."""
        if declared and takes.words["cache"] == "fp8":
            return "gradients of a quantised cache are not judged"
        if declared is None:
            return "those of lists are tested where gradients=True is declared"
        return super().undifferentiated(takes, declared=declared)

    def arguments(self, call: SparseCall, takes: FunctionTakes) -> dict[str, Any]:
        return {name: getattr(call, name) for name in (*self.positional, *self.keywords)}

    def fit(self, problem: SparseProblem, takes: FunctionTakes) -> SparseProblem:
        fields, words = self.fixed(problem, takes), takes.words
        fields |= {name: words[name] for name in ("invalid", "cache", "unused")}
        if words["cache"] == "fp8":
            fields["d_v"] = takes.width(-(-problem.d_v // TILE) * TILE)
            # at least the columns that are not quantised of the problem, and two; an even number,
            # as scales of rows of 146 bytes cannot be viewed as fp32: a right port was rejected
            others = max(problem.d_k - problem.d_v, 2)
            others += others % 2
            fields["d_k"] = int(words["d_k"]) or fields["d_v"] + others
        elif fields["d_v"] >= fields["d_k"]:
            fields["d_k"] = fields["d_v"] + max(fields["d_v"] // 8, 1)
        if words["cache"] == "rows" or words["scales"] == "powers":
            fields["scales"] = "powers"
        if words["cache"] == "rows":
            fields["codes"] = None
        if "topk_length" not in takes.names:
            fields["topk_lengths"] = None
        fields["page"] = int(words["page"]) or problem.page
        return self.in_range(problem.replace(**fields), takes)

    def refuses(self, problem: SparseProblem, takes: FunctionTakes) -> str | None:
        easier = {n: takes.words[n] for n, easy in EASY.items() if getattr(problem, n) == easy}
        return super().refuses(problem.replace(**easier), takes)

    def probe(self, dtype: str) -> SparseProblem:
        """Queries without keys, and entries that name nothing between others. Sinks far apart:
        among 70 keys, a level one times a small scale is as good as none.
        """
        return SparseProblem(
            dtype=dtype,  # pyright: ignore[reportArgumentType]
            B=2,
            s_q=3,
            H=6,
            h_kv=2,
            pages=6,
            topk=70,
            lists="empty",
            d_k=24,
            d_v=16,
            scale="model",
            sink="mixed",
        )

    def otherwise(self, adapter: Any, problem: Any, found: Mapping[str, Tensor]) -> str | None:
        exact = self.exact(problem.inputs())
        said = reads_unnamed_slots(adapter, problem, found, lambda y: all_alike(y, exact))
        said = said or self._reads_a_slot(adapter, problem, found, exact)
        return said or super().otherwise(adapter, problem, found)

    def _reads_a_slot(
        self,
        adapter: Any,
        problem: SparseProblem,
        found: Mapping[str, Tensor],
        exact: Mapping[str, Tensor],
    ) -> str | None:
        """Whether entries that name nothing are read as the first slot or the last."""
        if all_alike(found, exact):
            return None
        call = problem.replace(unused="finite").inputs()
        other = answered(adapter, problem, call)
        for slot, name in ((problem.slots - 1, "the last slot"), (0, "slot 0")):
            filled = call.indices.masked_fill(~call.seen, slot)
            read = self.exact(replace(call, indices=filled))
            if other is not None and alike(other["o"], read["o"]):
                return f"an index that names nothing is read as {name}; leave it out of the softmax"
        return None

    def related(self, adapter: Adapter) -> tuple[str, ...]:
        """Faults of what dequantises are those of another host."""
        quantised = adapter.takes is not None and adapter.takes.words["cache"] == "fp8"
        return ("sparse_fp8", self.name) if quantised else (self.name,)

    def laws(self) -> Mapping[str, Law]:
        return SPARSE_LAWS

    def named_problems(self, dtype: str, profile: str) -> Mapping[str, SparseProblem]:
        return sparse_problems(dtype, profile)

    def sizes_in_turn(self, adapter: Adapter, dtype: str, *, backward: bool) -> list[SparseProblem]:
        return lists_in_turn(adapter, dtype, backward=backward)

    def random_problems(self, dtype: str) -> st.SearchStrategy[SparseProblem]:
        return random_sparse(dtype)

    def sized(self, rule: CallRule, dtype: str, *, seed: int) -> SparseProblem:
        return SparseProblem.model_validate(
            {"dtype": dtype, "seed": seed, "s_q": 2, **SIZES[rule.size]}
        )

    def copies(self) -> Iterable[ManyCopies]:
        return of_lists()

    def in_other_forms(self, rule: CallRule, problem: SparseProblem) -> Mapping[str, SparseProblem]:
        """Lengths of lists, for rules about how tensors of one axis lie in memory."""
        if rule.channel != "memory" or rule.memory or rule.size != "tiny":
            return {}
        return {"lengths": problem.replace(topk_lengths=(problem.topk, 0, 2)[: problem.B])}

    def with_keys_before(self, problem: SparseProblem, count: int) -> dict[str, Any]:
        if problem.cache != "rows":
            raise Unreachable("rows of its cache are quantised")
        lengths = problem.topk_lengths
        longer = None if lengths is None else tuple(n and n + count for n in lengths)
        return {"topk": problem.topk + count, "topk_lengths": longer}

    def behind_far_keys(self, call: SparseCall, count: int) -> tuple[SparseCall, SparseCall]:
        return before_lists(call, count)

    def other_keys(self, problem: SparseProblem) -> Mapping[str, dict[str, Any]]:
        lists = "distinct" if problem.lists == "empty" else "empty"
        others = {} if problem.topk_lengths is None else permuted(problem.topk_lengths)
        lengths = {name: {"topk_lengths": other} for name, other in others.items()}
        return {**lengths, "lists": {"lists": lists}}

    def example(self) -> SparseProblem:
        return SparseProblem(B=2, s_q=3, H=6, topk=20, lists="holes", dtype="bf16")

    def traits(self, problem: SparseProblem) -> Mapping[str, bool]:
        return {
            **super().traits(problem),
            "rows without keys": problem.lists in ("empty", "none"),
            "entries that name nothing": problem.lists
            not in ("distinct", "sorted", "duplicates", "runs"),
            "an index occurs several times": problem.lists in ("duplicates", "repeated", "runs"),
            "only leading entries count": problem.topk_lengths is not None,
            "entries no multiple of 64": problem.topk % 64 > 0,
            "several requests": problem.B > 1,
            "several queries a request": problem.s_q > 1,
        }

    def fewer(self, problem: SparseProblem) -> Iterator[dict[str, Any]]:
        lengths = problem.topk_lengths
        for n in range(problem.B if problem.B > 1 else 0):
            yield {"B": 1, "topk_lengths": None if lengths is None else lengths[n : n + 1]}
        yield from ({"s_q": fewer} for fewer in (1, 2) if fewer < problem.s_q)

    def place(self, output: str, index: tuple[int, ...], call: SparseCall) -> ElementPlace:
        if output not in ("cache", "dcache"):
            return super().place(output, index, call)
        page, slot, head, column = index
        times = int((call.indices[call.seen] == page * call.cache.shape[1] + slot).sum())
        words = f"page {page}, slot {slot}, key head {head}, column {column}"
        return ElementPlace(index, words, f"a slot that lists name {times} times")

    def _where(self, call: SparseCall, b: int, row: int, *, keys: bool = False) -> str:
        return f"request {b}, query {row}"


SPARSE: Final = SparseOperator()
