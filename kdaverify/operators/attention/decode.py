"""Decode over a paged cache as the machinery sees it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Final, final

from hypothesis import strategies as st
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.fitting import resized
from kdaverify.checks.calls.multiples import ManyCopies
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.execute import CallError
from kdaverify.checks.laws.law import Law
from kdaverify.operators.attention.combined_sizes import SizeSpace, decode_sizes
from kdaverify.operators.attention.copies import of_decode
from kdaverify.operators.attention.far_keys import before_pages, check_first
from kdaverify.operators.attention.laws import DECODE_LAWS
from kdaverify.operators.attention.misreadings import all_alike
from kdaverify.operators.attention.panel import decode_problems, random_decode
from kdaverify.operators.attention.problem import MlaDecodeProblem
from kdaverify.operators.attention.sizes_in_turn import decode_in_turn
from kdaverify.operators.attention.softmax import (
    LATENT_WIDTHS,
    SoftmaxOperator,
    other_lengths,
    within_a_block,
)
from kdaverify.operators.attention.special_sizes import DECODE
from kdaverify.operators.attention.unused import why_it_differs, why_it_fails
from kdaverify.operators.function import FunctionTakes
from kdaverify.operators.sizes import shrunk
from oracles.attention.calls import MLA_DECODE as SIGNATURE
from oracles.attention.calls import MlaDecodeCall

SIZES: Final[Mapping[str, dict[str, Any]]] = {
    "tails": {"k_lengths": (66, 0, 9, 2), "H": 6, "d_k": 24, "d_v": 17},
    "tiny": {"k_lengths": (5, 0, 2), "H": 4, "d_k": 16, "d_v": 8},
    "one": {"k_lengths": (1,), "H": 4, "d_k": 16, "d_v": 8},
    "real": {"k_lengths": (513, 0, 446, 65, 1), "H": 16, "d_k": 96, "d_v": 64},
    "long": {"k_lengths": (2055, 0, 65, 1), "H": 2, "d_k": 40, "d_v": 32},
    # two tiles of 64 more or less in each, and none, when they are permuted
    "keys": {"k_lengths": (130, 0, 3, 65), "H": 4, "d_k": 16, "d_v": 8},
    # as wide a table as there are requests
    "equal": {
        "k_lengths": (3, 2, 0, 3),
        "page": 1,
        "s_q": 4,
        "H": 4,
        "h_kv": 4,
        "d_k": 4,
        "d_v": 3,
    },
}
WARP: Final = 32


@final
class MlaDecodeOperator(SoftmaxOperator):
    """Math: `oracles.attention.segment`, keys and values of `MlaDecodeCall`."""

    name, signature, call, problem = "mla_decode", SIGNATURE, MlaDecodeCall, MlaDecodeProblem
    special_sizes = DECODE
    has_copies = has_far_keys = combines_sizes = has_sizes_in_turn = True
    about = "decode of multi-head latent attention over a paged cache: o and lse, forward"
    positional = ("q", "cache", "block_table", "cache_seqlens")
    keywords = ("d_v", "softmax_scale", "causal", "sink")
    numbers = {**SoftmaxOperator.numbers, "page": 0.0}  # noqa: RUF012
    has_backward = False
    plain: ClassVar = {"table": "identity", "causal": True}
    growing = {"k_lengths": (23, 7, 40)}  # noqa: RUF012
    sizes = {"d_v": (1, 2, 4, 8, 16), "page": (1, 4, 16)}  # noqa: RUF012
    usual = (
        *LATENT_WIDTHS,
        *resized("H", (16, 64, 128, 4, 1)),
        *resized(["page"], (64, 16, 128, 1)),
    )

    def arguments(self, call: MlaDecodeCall, takes: FunctionTakes) -> dict[str, Any]:
        return {name: getattr(call, name) for name in (*self.positional, *self.keywords)}

    def fit(self, problem: MlaDecodeProblem, takes: FunctionTakes) -> MlaDecodeProblem:
        fields = self.fixed(problem, takes)
        if fields["d_v"] >= fields["d_k"]:
            fields["d_k"] = fields["d_v"] + max(fields["d_v"] // 8, 1)
        fields["page"] = int(takes.words["page"]) or problem.page
        if (problem.shares or problem.B > WARP) and fields["page"] != problem.page:
            # as many pages of another size: with fewer there is nothing between shared ones, and
            # none but a first one in requests past a warp
            lengths = (n * fields["page"] // problem.page for n in problem.k_lengths)
            fields["k_lengths"] = tuple(lengths)
        fields["unused"] = takes.words["unused"]
        causal = fields.get("causal", problem.causal)
        if causal and takes.words["causal_alignment"] == "top_left":
            fields["causal"] = False
        return self.in_range(problem.replace(**fields), takes)

    def probe(self, dtype: str) -> MlaDecodeProblem:
        """More queries than keys in one request, and none in another."""
        return MlaDecodeProblem(
            dtype=dtype,  # pyright: ignore[reportArgumentType]
            k_lengths=(2, 70, 0, 19),
            s_q=3,
            H=6,
            h_kv=2,
            d_k=24,
            d_v=16,
            scale="model",
            sink="level",
        )

    def advice(self, fault: CallError, adapter: Adapter, problem: MlaDecodeProblem) -> str:
        return why_it_fails(adapter, problem, fault)

    def otherwise(self, adapter: Any, problem: Any, found: Mapping[str, Tensor]) -> str | None:
        right = partial(all_alike, exact=self.exact(problem.inputs()))
        said = why_it_differs(adapter, problem, found, right)
        return said or super().otherwise(adapter, problem, found)

    def laws(self) -> Mapping[str, Law]:
        return DECODE_LAWS

    def named_problems(self, dtype: str, profile: str) -> Mapping[str, MlaDecodeProblem]:
        return decode_problems(dtype, profile)

    def size_space(self, adapter: Adapter, profile: str) -> SizeSpace:
        return decode_sizes(adapter, profile)

    def sizes_in_turn(
        self, adapter: Adapter, dtype: str, *, backward: bool
    ) -> list[MlaDecodeProblem]:
        return decode_in_turn(adapter, dtype)

    def random_problems(self, dtype: str) -> st.SearchStrategy[MlaDecodeProblem]:
        return random_decode(dtype)

    def sized(self, rule: CallRule, dtype: str, *, seed: int) -> MlaDecodeProblem:
        return MlaDecodeProblem.model_validate(
            {"dtype": dtype, "seed": seed, "s_q": 2, **SIZES[rule.size]}
        )

    def narrowed(self, problem: MlaDecodeProblem) -> Iterator[Mapping[str, Any]]:
        yield from super().narrowed(problem)
        yield {"k_lengths": tuple(length or 1 for length in problem.k_lengths)}

    def copies(self) -> Iterable[ManyCopies]:
        return of_decode()

    def with_keys_before(self, problem: MlaDecodeProblem, count: int) -> dict[str, Any]:
        check_first(problem.pairs)
        first, *rest = problem.k_lengths
        return {"k_lengths": (first + count, *rest)}

    def behind_far_keys(
        self, call: MlaDecodeCall, count: int
    ) -> tuple[MlaDecodeCall, MlaDecodeCall]:
        return before_pages(call, count)

    def other_keys(self, problem: MlaDecodeProblem) -> Mapping[str, dict[str, Any]]:
        others = other_lengths(problem.k_lengths) | {
            "lengths within a block": within_a_block(problem.k_lengths)
        }
        mask = {"the mask": {"causal": not problem.causal}}
        return {name: {"k_lengths": lengths} for name, lengths in others.items()} | mask

    def one_key_fewer(self, call: MlaDecodeCall) -> MlaDecodeCall | None:
        lengths = call.cache_seqlens
        return replace(call, cache_seqlens=lengths - 1) if bool((lengths > 1).all()) else None

    def example(self) -> MlaDecodeProblem:
        return MlaDecodeProblem(k_lengths=(70, 0, 5), s_q=2, H=6, dtype="bf16")

    def traits(self, problem: MlaDecodeProblem) -> Mapping[str, bool]:
        return {
            "pages in another order than tokens": problem.table != "identity",
            "requests share pages": problem.shares,
            "a page is not full": any(s_k % problem.page for s_k in problem.k_lengths),
            "more than one page": max(problem.k_lengths) > problem.page,
            **super().traits(problem),
        }

    def fewer(self, problem: MlaDecodeProblem) -> Iterator[dict[str, Any]]:
        lengths = problem.k_lengths
        if len(lengths) > 1:
            yield from ({"k_lengths": (length,)} for length in dict.fromkeys(lengths))
            yield from ({"k_lengths": lengths[:n] + lengths[n + 1 :]} for n in range(len(lengths)))
        for n, length in enumerate(lengths):
            yield from (
                {"k_lengths": (*lengths[:n], count, *lengths[n + 1 :])}
                for count in shrunk(length, least=0)
            )
        yield from ({"s_q": count} for count in (1, 2) if count < problem.s_q)


MLA_DECODE: Final = MlaDecodeOperator()
