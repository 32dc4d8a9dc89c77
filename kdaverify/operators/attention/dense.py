"""Attention over dense keys as the machinery sees it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final, final

from hypothesis import strategies as st
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.fitting import USUAL_HEADS, USUAL_WIDTHS, resized
from kdaverify.checks.calls.multiples import ManyCopies
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.laws.law import Law
from kdaverify.operators.attention.combined_sizes import SizeSpace, dense_sizes
from kdaverify.operators.attention.conventions import GRADIENT
from kdaverify.operators.attention.copies import of_dense
from kdaverify.operators.attention.far_keys import before_rows, check_first
from kdaverify.operators.attention.laws import DENSE_LAWS
from kdaverify.operators.attention.laws.dense import SPARE
from kdaverify.operators.attention.panel import dense_problems, random_dense
from kdaverify.operators.attention.problem import AttentionProblem
from kdaverify.operators.attention.sizes_in_turn import dense_in_turn
from kdaverify.operators.attention.softmax import SoftmaxOperator, other_lengths
from kdaverify.operators.attention.special_sizes import DENSE
from kdaverify.operators.function import FunctionTakes
from kdaverify.operators.sizes import shrunk
from oracles.attention.calls import ATTENTION as SIGNATURE
from oracles.attention.calls import AttentionCall

SIZES: Final[Mapping[str, dict[str, Any]]] = {
    "tails": {"s_q": 33, "s_k": 70, "H": 6, "h_kv": 2, "d_k": 24, "d_v": 17},
    "tiny": {"s_q": 3, "s_k": 5, "H": 4, "h_kv": 2, "d_k": 16, "d_v": 8},
    "one": {"s_q": 1, "s_k": 1, "H": 4, "h_kv": 2, "d_k": 16, "d_v": 8},
    "real": {"s_q": 130, "s_k": 515, "H": 8, "h_kv": 2, "d_k": 64, "d_v": 32},
    "long": {"s_q": 40, "s_k": 1030, "H": 2, "h_kv": 1, "d_k": 32, "d_v": 16},
    # rows without keys under the mask
    "keys": {"s_q": 12, "s_k": 7, "H": 4, "h_kv": 2, "d_k": 16, "d_v": 8},
    "equal": {"B": 4, "s_q": 4, "s_k": 4, "H": 4, "h_kv": 4, "d_k": 4, "d_v": 4},
}

KEYS: Final[dict[str, Any]] = {
    "q_lengths": (4, 0, 4, 4), "k_lengths": (70, 0, 3, 65), "B": 1, "s_q": 12, "s_k": 138,
}  # fmt: skip
"""Requests of as many queries: where the keys are permuted, queries that had keys have none."""
LONELY: Final[dict[str, Any]] = {
    "q_lengths": (3, 0, 5, 4), "k_lengths": (7, 2, 6, 0), "B": 1, "s_q": 12, "s_k": 15,
}  # fmt: skip
"""Keys without queries, and queries without keys: nobody's dk and dv were never written to."""
OFFSETS: Final = frozenset({"cu_seqlens_q", "cu_seqlens_k"})


@final
class AttentionOperator(SoftmaxOperator):
    """Math: `oracles.attention.segment`."""

    name, signature, call, problem = "attention", SIGNATURE, AttentionCall, AttentionProblem
    special_sizes = DENSE
    has_sources = has_copies = has_far_keys = combines_sizes = has_sizes_in_turn = True
    about = "softmax attention, also packed or with a sink: o and lse, forward and backward"
    positional = ("q", "k", "v")
    keywords = ("cu_seqlens_q", "cu_seqlens_k", "softmax_scale", "causal", "sink")
    words: Mapping[str, tuple[str, ...]] = {
        **SoftmaxOperator.words,
        **GRADIENT,
        "layout": ("batched", "packed"),
        "value_width": ("any", "same"),
    }
    plain: ClassVar = {"value": "normal", "causal": False, "loss": None}
    sizes = {"B": (1,), "d_k": (2, 4, 8, 16, 32), "d_v": (1, 2, 4, 8, 16)}  # noqa: RUF012
    usual = (
        *(each for fields in (("d_k", "d_v"), ("d_v",)) for each in resized(fields, USUAL_WIDTHS)),
        *(each for fields in (("H", "h_kv"), ("h_kv",)) for each in resized(fields, USUAL_HEADS)),
        *resized("B", (1,)),
        *resized(("s_q", "s_k"), (64, 128)),
    )

    def wrong(self, takes: FunctionTakes) -> str | None:
        if takes.words["layout"] == "batched" or takes.names >= OFFSETS:
            return super().wrong(takes)
        return f"layout='packed', but the signature does not name {' and '.join(sorted(OFFSETS))}"

    def arguments(self, call: AttentionCall, takes: FunctionTakes) -> dict[str, Any]:
        rows = [x[0] if call.packed else x for x in (call.q, call.k, call.v)]
        return {
            **dict(zip(self.positional, rows, strict=True)),
            **{name: getattr(call, name) for name in self.keywords},
        }

    def canonical(
        self, name: str, value: Tensor, call: AttentionCall, takes: FunctionTakes
    ) -> Tensor:
        if call.packed and name in ("o", "lse"):
            value = value[None]
        if call.packed and name in ("k", "v"):
            keys = sum(at.s_k for at in call.requests)
            return value.index_fill(1, _from(keys, value), 0.0)
        return super().canonical(name, value, call, takes)

    def fit(self, problem: AttentionProblem, takes: FunctionTakes) -> AttentionProblem:
        fields = self.fixed(problem, takes)
        if takes.words["value_width"] == "same":
            fields["d_k"] = fields["d_v"] = max(fields["d_v"], 2)
        inside = self.in_range(problem.replace(**fields), takes)
        if inside.causal and takes.words["causal_alignment"] == "top_left":
            inside = _square(inside)
        takes_packs = takes.names >= OFFSETS
        if inside.packed and not takes_packs:
            return _unpacked(inside)
        if not inside.packed and takes_packs and takes.words["layout"] == "packed":
            return _packed(inside)
        return inside

    def probe(self, dtype: str) -> AttentionProblem:
        """More queries than keys: causal rows without keys, and rows on either side of a border."""
        return AttentionProblem(
            dtype=dtype,  # pyright: ignore[reportArgumentType]
            B=2,
            s_q=5,
            s_k=3,
            H=6,
            h_kv=2,
            d_k=24,
            d_v=16,
            causal=True,
            scale="model",
            sink="level",
        )

    def pack(self, dtype: str) -> AttentionProblem:
        """With a sink, groups of heads, rows without keys, and padding beyond a small tile."""
        return self.probe(dtype).replace(
            B=1, q_lengths=(3, 0, 5), k_lengths=(7, 2, 3), s_q=8 + SPARE, s_k=12 + SPARE
        )

    def example(self) -> AttentionProblem:
        return AttentionProblem(B=2, s_q=3, s_k=70, H=6, h_kv=2, causal=True, dtype="bf16")

    def laws(self) -> Mapping[str, Law]:
        return DENSE_LAWS

    def named_problems(self, dtype: str, profile: str) -> Mapping[str, AttentionProblem]:
        return dense_problems(dtype, profile)

    def size_space(self, adapter: Adapter, profile: str) -> SizeSpace:
        return dense_sizes(adapter, profile)

    def sizes_in_turn(
        self, adapter: Adapter, dtype: str, *, backward: bool
    ) -> list[AttentionProblem]:
        return dense_in_turn(adapter, dtype, backward=backward)

    def random_problems(self, dtype: str) -> st.SearchStrategy[AttentionProblem]:
        return random_dense(dtype)

    def call_problem(
        self, adapter: Any, rule: CallRule, dtype: str, *, seed: int, turn: int
    ) -> Any:
        """Rules about sequences read one list of offsets, and here there are two."""
        if rule.keys:
            pack = self.within(adapter, self.sized(rule, dtype, seed=seed).replace(**KEYS))
            if pack.packed and adapter.supports(pack) is None:
                return pack
        if rule.offsets:
            pack = self.within(adapter, self.pack(dtype).replace(seed=seed))
            return pack if pack.packed and adapter.supports(pack) is None else None
        if rule.sequences and rule.packed:
            return None
        return super().call_problem(adapter, rule, dtype, seed=seed, turn=turn)

    def in_other_forms(
        self, rule: CallRule, problem: AttentionProblem
    ) -> Mapping[str, AttentionProblem]:
        """A batch for rules about which keys rows see. A pack, for rules about how tensors lie in
        memory: kernels of packs are others. Every row sees a key: the mask of those that do not
        would make incoming gradients of LSE dense. Two for those about memory that nothing is
        written to, as kernels initialise gradients under a causal mask alone.
        """
        if rule.keys and rule.channel is None and problem.packed:
            return {"batch": self.sized(rule, problem.dtype, seed=problem.seed)}
        if rule.sets and problem.sink is None:
            # of more than a tile of queries
            sizes: dict[str, Any] = {"s_q": 66, "s_k": 5, "B": 1, "causal": False, "sink": "level"}
            if problem.packed:
                sizes |= {"q_lengths": (66,), "k_lengths": (5,)}
            return {"sink": problem.replace(**sizes)}
        if rule.channel == "buffers" and rule.packed and not problem.packed:
            masks = {"pack": True, "pack-all-keys": False}
            return {name: problem.replace(**LONELY, causal=own) for name, own in masks.items()}
        if rule.channel != "memory" or not rule.packed or rule.offsets or problem.packed:
            return {}
        sizes = {"s_q": 8 + SPARE, "s_k": 15 + SPARE, "causal": False, "B": 1}
        return {"pack": problem.replace(q_lengths=(3, 0, 5), k_lengths=(7, 2, 6), **sizes)}

    def other_keys(self, problem: AttentionProblem) -> Mapping[str, dict[str, Any]]:
        mask = {"the mask": {"causal": not problem.causal}}
        if problem.q_lengths is None or problem.k_lengths is None:
            return mask
        lengths = {
            f"{what} of {of}": {f"{of}_lengths": other}
            for of, own in (("k", problem.k_lengths), ("q", problem.q_lengths))
            for what, other in other_lengths(own).items()
        }
        return {**lengths, **mask}

    def inputs_alike(
        self, problem: AttentionProblem
    ) -> Iterable[tuple[frozenset[str], Mapping[str, Any]]]:
        """k and v of a latent cache; q and k of as many heads and rows."""
        rows = frozenset({"q", "k", "v"})
        yield rows, {"d_v": problem.d_k}
        alike = {"s_q": problem.s_k, "h_kv": problem.H}
        yield rows, {**alike, "q_lengths": problem.k_lengths} if problem.packed else alike

    def expanded_axes(self) -> Iterable[tuple[str, int, tuple[str, ...]]]:
        yield "head", 2, ("k", "v")
        yield "entry", 0, ("k", "v")
        yield "entry", 0, ("q",)

    def copies(self) -> Iterable[ManyCopies]:
        return of_dense()

    def with_keys_before(self, problem: AttentionProblem, count: int) -> dict[str, Any]:
        check_first(problem.pairs)
        if problem.k_lengths is None:
            return {"s_k": problem.s_k + count}
        first, *rest = problem.k_lengths
        return {"k_lengths": (first + count, *rest), "s_k": problem.s_k + count}

    def behind_far_keys(
        self, call: AttentionCall, count: int
    ) -> tuple[AttentionCall, AttentionCall]:
        return before_rows(call, count)

    def unused_rows(self, call: AttentionCall) -> Mapping[str, tuple[int, int]]:
        rows, keys = (sum(getattr(at, of) for at in call.requests) for of in ("s_q", "s_k"))
        return {"q": (1, rows), "o": (1, rows), "lse": (2, rows), "k": (1, keys), "v": (1, keys)}

    def other_offsets(self, problem: AttentionProblem) -> dict[str, Any] | None:
        if not problem.packed:
            return None
        first, *rest = problem.pairs
        q, k = zip(*rest, first, strict=True)
        return {"q_lengths": q, "k_lengths": k}

    def sized(self, rule: CallRule, dtype: str, *, seed: int) -> AttentionProblem:
        fields = SIZES[rule.size]
        if rule.aligned:
            fields = {**fields, "s_q": fields["s_k"]}
        return AttentionProblem.model_validate(
            {"dtype": dtype, "seed": seed, "B": 2, "causal": True, **fields}
        )

    def narrowed(self, problem: AttentionProblem) -> Iterator[Mapping[str, Any]]:
        """Or as many queries as keys."""
        lengths = problem.k_lengths
        if lengths is not None:
            yield {"q_lengths": (1,) * len(lengths), "s_q": len(lengths)}
            yield {"q_lengths": lengths, "s_q": problem.s_k}
        else:
            yield from super().narrowed(problem)
            yield {"s_q": problem.s_k}

    def fewer(self, problem: AttentionProblem) -> Iterator[dict[str, Any]]:
        if problem.q_lengths is not None:
            longest = max(problem.pairs, key=lambda pair: pair[0] * pair[1])
            s_q, s_k = (max(size, 1) for size in longest)
            yield {"q_lengths": None, "k_lengths": None, "s_q": s_q, "s_k": s_k}
            for n in range(len(problem.pairs)):
                rest = [pair for m, pair in enumerate(problem.pairs) if m != n]
                if rest:
                    yield _lengths(rest, 0)
            return
        for name in ("s_q", "s_k"):
            size = getattr(problem, name)
            yield from ({name: count} for count in shrunk(size))


def _from(first: int, value: Tensor) -> Tensor:
    """Indices of rows from one on."""
    return (value.new_ones(value.shape[1]).cumsum(0) > first).nonzero().flatten()


def _lengths(pairs: list[tuple[int, int]], spare: int) -> dict[str, Any]:
    """Fields of a pack of requests."""
    q, k = (tuple(pair[n] for pair in pairs) for n in range(2))
    return {
        "B": 1,
        "q_lengths": q,
        "k_lengths": k,
        "s_q": max(sum(q) + spare, 1),
        "s_k": max(sum(k) + spare, 1),
    }


def _packed(problem: AttentionProblem) -> AttentionProblem:
    return problem.replace(**_lengths([*problem.pairs], 0))


def _square(problem: AttentionProblem) -> AttentionProblem:
    """As many keys as queries, where both causal borders are the same."""
    if problem.q_lengths is None:
        return problem.replace(s_k=problem.s_q)
    return problem.replace(**_lengths([(s_q, s_q) for s_q, _ in problem.pairs], 0))


def _unpacked(problem: AttentionProblem) -> AttentionProblem:
    """A batch of requests as long as the longest."""
    s_q, s_k = (max(1, *(pair[n] for pair in problem.pairs)) for n in range(2))
    none = {"q_lengths": None, "k_lengths": None}
    return problem.replace(**none, B=min(len(problem.pairs), 2), s_q=s_q, s_k=s_k)


ATTENTION: Final = AttentionOperator()
