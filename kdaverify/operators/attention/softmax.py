"""What the operators with queries and keys have in common."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar, Final

from torch import Tensor

from kdaverify.adapters.base import Adapter, is_slow
from kdaverify.budgets.formats import FORMATS
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.place import ElementPlace
from kdaverify.operators.attention.combined_sizes import SizeSpace, wide, widths
from kdaverify.operators.attention.conventions import (
    MASKED,
    canonical_lse,
    canonical_o,
    misdeclared_lse,
)
from kdaverify.operators.attention.misreadings import (
    alike,
    all_alike,
    other_border,
    other_heads,
    other_scale,
)
from kdaverify.operators.attention.problem import FINITE
from kdaverify.operators.attention.regimes import largest_product
from kdaverify.operators.attention.sinks import misread_sink
from kdaverify.operators.attention.tolerances_operator import TolerancesOperator
from kdaverify.operators.attention.unused import declares_finite
from kdaverify.operators.function import FunctionTakes
from kdaverify.problems.combinations import STRENGTH
from oracles.attention.calls import own_rows
from oracles.attention.sink import softmax_of

SECONDS: Final = 3e-8
"""A product of a query and a key in one column, in float64, with its errors."""
ORDINARY_PRODUCTS: Final = 256.0
"""Ordinary queries and keys of 576 columns have products of 200 and less."""
ORDINARY: Final = {"sink": None, "scale": "default", "logits": "normal"}


LATENT_WIDTHS: Final = tuple(
    {"d_k": d_k, "d_v": d_v} for d_k, d_v in ((576, 512), (192, 128), (96, 64), (80, 64))
)
"""Of latent caches: of DeepSeek's and Kimi's models, and of smaller ones."""


class SoftmaxOperator(TolerancesOperator):
    """Attention over requests, each with queries and keys."""

    words = MASKED
    # 0: whatever a problem has
    numbers = {"d_k": 0.0, "largest_product": 0.0}  # noqa: RUF012
    accuracy_fields = ("logits", "scale")
    plain: ClassVar[Mapping[str, Any]]
    """Fields of the simplest problems, and their values."""

    def differentiated(self, takes: FunctionTakes) -> tuple[str, ...]:
        """o, and lse where the backward is declared to follow its cotangent."""
        return takes.returns if takes.words.get("lse_gradient") == "given" else ("o",)

    def canonical(self, name: str, value: Tensor, call: Any, takes: FunctionTakes) -> Tensor:
        words, device = takes.words, value.device
        empty = call.empty.to(device)
        B, s_q, H, _ = call.q.shape
        if name == "lse" and value.shape == (B, H, s_q):
            return own_rows(call, canonical_lse(value, call.without_lse.to(device), words), axis=2)
        if name == "o" and value.shape == (B, s_q, H, call.d_v):
            return own_rows(call, canonical_o(value, empty[..., None, None], words))
        return own_rows(call, value) if name == "q" else value

    def elements(self, problem: Any) -> int:
        rows, scores = zip(*((s_q, s_q * s_k) for s_q, s_k in problem.pairs), strict=True)
        return problem.H * max(sum(rows) * problem.d_v, sum(scores))

    def unused_number(self, adapter: Adapter) -> float:
        return FINITE if declares_finite(adapter) else super().unused_number(adapter)

    def narrowed(self, problem: Any) -> Iterator[Mapping[str, Any]]:
        """One query token a request, or keys for every request, or both.

        Decodes mostly take no more. Where neither was tried, vLLM's Triton decode and JAX's paged
        one had one rule of calls, not 36, and a port of them could write over its inputs.
        """
        yield {"s_q": 1}

    def fixed(self, problem: Any, takes: FunctionTakes) -> dict[str, Any]:
        """Fields that a function without the keyword fixes."""
        fields: dict[str, Any] = {}
        if "softmax_scale" not in takes.names:
            fields["scale"] = "default"
        if "causal" in self.keywords and "causal" not in takes.names:
            fields["causal"] = takes.words["causal"] == "yes"
        fields |= _sinks(problem, takes)
        heads = takes.words["key_heads"]
        if heads != "any":
            fields["h_kv"] = problem.H if heads == "all" else 1
        fields["d_v"] = takes.width(problem.d_v)
        fields["d_k"] = int(takes.words["d_k"]) or problem.d_k
        return fields

    def in_range(self, problem: Any, takes: FunctionTakes) -> Any:
        """The problem, with ordinary logits where its products of q and k may be too large."""
        limit = float(takes.words["largest_product"])
        if not limit:
            return problem
        longest = max(s_k for _, s_k in problem.pairs)
        largest = largest_product(problem.logits, longest, problem.d_k, problem.softmax_scale)
        return problem.replace(logits="normal") if largest > limit else problem

    def wrong(self, takes: FunctionTakes) -> str | None:
        limit = float(takes.words["largest_product"])
        if not limit or limit >= ORDINARY_PRODUCTS:
            return None
        return f"largest_product: wanted {ORDINARY_PRODUCTS:g} or more, got {limit:g}"

    def outside(self, adapter: Adapter) -> tuple[str, ...]:
        limit = float(adapter.takes.words["largest_product"]) if adapter.takes else 0.0
        if not limit:
            return ()
        return (f"products of q and k above {limit:,.6g} (outside the declared domain)",)

    def size_space(self, adapter: Adapter, profile: str) -> SizeSpace | None:
        """What sizes can be combined; None where none are."""
        del adapter, profile

    def combined_sizes(self, adapter: Adapter, profile: str, *, backward: bool) -> Sequence[Any]:
        space = self.size_space(adapter, profile)
        if space is None:
            return ()
        return space.problems(STRENGTH[profile] if backward else max(STRENGTH.values()))

    def in_other_widths(self, adapter: Adapter, rule: CallRule, problem: Any) -> Mapping[str, Any]:
        """Those of 64, 128 and most columns, for rules about how tensors lie in memory: a kernel of
        256 columns alone read views as if they were dense. The widest is of a real size.
        """
        if rule.channel != "memory" or rule.size != "tiny":
            return {}
        real = replace(rule, size="real", aligned=False)
        sized = problem if is_slow(adapter) else self.sized(real, problem.dtype, seed=problem.seed)
        found = dict[str, Any]()
        *others, most = wide(adapter)
        for columns, base in (*((n, problem) for n in others), (most, sized)):
            for d_k, d_v in widths(adapter, base, (columns,))[-1:]:
                found[f"{d_v}-columns"] = self.within(adapter, base.replace(d_k=d_k, d_v=d_v))
        return found

    def other_scale(self, problem: Any) -> dict[str, Any] | None:
        return {"scale": "default" if problem.scale == "small" else "small"}

    def cost(self, problem: Any) -> float:
        pairs = sum(s_q * max(s_k, 1) for s_q, s_k in problem.pairs)
        return SECONDS * pairs * problem.H * (problem.d_k + problem.d_v)

    def smaller(
        self, problem: Any, detail: Mapping[str, Any]
    ) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
        yield from ((change, detail) for change in self.fewer(problem))
        yield from (
            ({name: value}, detail)
            for name, value in (ORDINARY | dict(self.plain)).items()
            if getattr(problem, name) != value
        )
        if problem.h_kv < problem.H or problem.h_kv > 1:
            yield {"H": 1, "h_kv": 1}, detail
            if problem.h_kv > 1:
                yield {"h_kv": 1}, detail
        yield from super().smaller(problem, detail)

    def exact(self, call: Any) -> dict[str, Tensor]:
        """The outputs of a call in float64."""
        return {n: x for n, (x, _) in self.counted(call, None, None, FORMATS["fp32"]).items()}

    @abc.abstractmethod
    def fewer(self, problem: Any) -> Iterator[dict[str, Any]]:
        """Changes to fewer requests, queries and keys."""

    def traits(self, problem: Any) -> Mapping[str, bool]:
        lengths = [s_k for _, s_k in problem.pairs]
        longer = [s_q > s_k for s_q, s_k in problem.pairs]
        return {
            "several requests": len(lengths) > 1,
            "requests of different lengths": len({*lengths}) > 1,
            "a request without keys": 0 in lengths,
            "more queries than keys": any(longer),
            "rows without keys": 0 in lengths or (problem.causal and any(longer)),
            "several queries a request": max(s_q for s_q, _ in problem.pairs) > 1,
            "several query heads a key head": problem.h_kv < problem.H,
            "several key heads": problem.h_kv > 1,
            "keys no multiple of 64": any(s_k % 64 for s_k in lengths),
            "more than 64 keys": max(lengths) > 64,
            "H is no multiple of 16": problem.H % 16 > 0,
            "d_k differs from d_v": problem.d_k != problem.d_v,
            **super().traits(problem),
        }

    def otherwise(self, adapter: Any, problem: Any, found: Mapping[str, Tensor]) -> str | None:
        """Compares o and LSE by themselves with the other conventions."""
        call = problem.inputs()
        exact = self.exact(call)
        if all_alike(found, exact):
            return None
        words = adapter.takes.words
        if said := other_border(problem, found["o"], words):
            return said
        if said := misread_sink(call, found, self.exact, alike):
            return said
        if "lse" in found and alike(found["o"], exact["o"]):
            said = misdeclared_lse(found["lse"], exact["lse"], call.without_lse, words, alike)
        return said or other_heads(problem, found["o"]) or other_scale(problem, found["o"])

    def place(self, output: str, index: tuple[int, ...], call: Any) -> ElementPlace:
        """Request, query, head and column, and what the row sees."""
        if output in ("sink", "dsink"):
            return ElementPlace(index, f"head {index[0]}", f"sink {float(call.sink[index[0]]):.6g}")
        if output in ("k", "v", "dk", "dv"):
            b, row, head, column = index
            where = self._where(call, b, row, keys=True)
            return ElementPlace(index, f"{where}, key head {head}, column {column}", "a sum")
        b, row, head = (index[0], index[2], index[1]) if output in ("lse", "dlse") else index[:3]
        words = f"{self._where(call, b, row)}, head {head}"
        if output not in ("lse", "dlse"):
            words += f", column {index[3]}"
        return ElementPlace(index, words, _row(call, b, row, head))

    def _where(self, call: Any, b: int, row: int, *, keys: bool = False) -> str:
        noun, start = ("key", "first_key") if keys else ("query", "first")
        for n, at in enumerate(call.requests):
            first, length = getattr(at, start), at.s_k if keys else at.s_q
            if at.entry == b and first <= row < first + length:
                return f"request {n}, {noun} {row - first}"
        return f"row {row}, past the last offset"


def _sinks(problem: Any, takes: FunctionTakes) -> dict[str, Any]:
    """What a function takes of a sink."""
    if "sink" not in takes.names:
        return {"sink": None, "lse_includes_sink": None}
    sink = problem.sink or ("normal" if takes.words["sink"] == "required" else None)
    counted = sink is not None and takes.words["lse_includes_sink"] == "yes"
    return {"sink": sink, "lse_includes_sink": counted or None}


def permuted(lengths: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """The same lengths of other requests: sum, longest and count agree, and also the first and the
    last where there are four; by what is other, in words.
    """
    first, *rest = lengths
    found = {
        "whose lengths are whose": (*rest, first),
        "the lengths between": (first, *reversed(rest[:-1]), *rest[-1:]),
    }
    return {name: other for name, other in found.items() if other != lengths}


HASHED: Final = 31
BLOCK: Final = 64
"""The factor of the usual polynomial hash: plans were kept by that of the lengths."""


def other_lengths(lengths: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Permuted ones, and others of the same polynomial hash, by what is other, in words."""
    found = permuted(lengths)
    for n, (one, after) in enumerate(pairwise(lengths)):
        if after >= HASHED:
            equal = (*lengths[:n], one + 1, after - HASHED, *lengths[n + 2 :])
            return found | {"lengths of one hash": equal}
    return found


def within_a_block(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Longer ones that take as many blocks: a decode whose plan was kept by numbers of blocks lost
    the newest keys of every request of over 1,536, and was accepted.
    """
    return tuple(length + bool(length % BLOCK) for length in lengths)


def _row(call: Any, b: int, row: int, head: int) -> str:
    """What a row of weights looks like."""
    for at, segment in zip(call.requests, call.segments(), strict=True):
        if at.entry == b and at.first <= row < at.first + at.s_q:
            softmax, i = softmax_of(segment), row - at.first
            seen = int(segment.visible[i].sum())
            if not seen:
                return f"sees none of {at.s_k} keys"
            p = softmax.weights[head, i]
            top = int(p[: at.s_k].argmax())
            sink = "" if segment.sink is None else f", weight {float(p[-1]):.3g} of the sink"
            return (
                f"sees {seen} of {at.s_k} keys, LSE {float(softmax.returned_lse[0][head, i]):.6g},"
                f" largest weight {float(p[top]):.3g} at key {top}{sink}"
            )
    return "nobody's"
