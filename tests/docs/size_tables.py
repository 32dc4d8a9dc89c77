"""Tables of the reference about sizes of fixed problems, as the code has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from kdaverify.adapters.registry import find
from kdaverify.operator import operator_named
from kdaverify.problems.panel import panel
from oracles.attention.fp8 import of_bytes

Rows = Iterable[Iterable[object]]
PROFILES: Final = ("smoke", "acceptance")
DTYPE: Final = "bf16"
DELTA: Final[Mapping[str, Callable[[Any], int]]] = {
    "K": lambda problem: problem.K,
    "V": lambda problem: problem.V,
    "HV / H": lambda problem: problem.HV // problem.H,
}
WIDTH: Final[Mapping[str, Callable[[Any], int]]] = {
    "page": lambda problem: problem.page,
    "d_k - d_v": lambda problem: problem.d_k - problem.d_v,
}
MEASURED: Final[Mapping[str, Mapping[str, Callable[[Any], int]]]] = {
    "kda": DELTA,
    "short_conv": {"W": lambda problem: problem.W},
    "gated_rms_norm": {"V": lambda problem: problem.V},
    "mla_decode": WIDTH,
    "sparse_attention": WIDTH,
}


def values() -> Rows:
    """Of sizes that kernels limit, every value in the panel of smoke, and what acceptance adds."""
    for op, sizes in MEASURED.items():
        smoke, acceptance = (_problems(op, profile) for profile in PROFILES)
        for axis, of in sizes.items():
            first = {of(problem) for problem in smoke}
            more = {of(problem) for problem in acceptance} - first
            yield f"`{op}`", axis, _listed(first), _listed(more)
    yield "`sparse_attention`", 'scales of an FP8 cache, `scales="any"`', _range_of_scales(), ""


def _problems(op: str, profile: str) -> list[Any]:
    if op == "kda":
        return [named.problem for named in panel(DTYPE, profile)]
    operator: Any = operator_named(op)
    return [*operator.named_problems(DTYPE, profile).values()]


def _listed(found: set[int]) -> str:
    return ", ".join(f"{value:,}" for value in sorted(found))


def _range_of_scales() -> str:
    """Of the FP8 problems of smoke, in the slots that lists name."""
    scales = [*_scales()]
    return f"{min(low for low, _ in scales):.3g} to {max(high for _, high in scales):.3g}"


def _scales() -> Iterator[tuple[float, float]]:
    adapter = find("eager-sparse-fp8")
    operator: Any = adapter.operator
    for _, problem in operator.panel(adapter, "smoke"):
        if problem.dtype == DTYPE:
            call = problem.replace(scales="any").inputs()
            named = call.indices.flatten().long().unique()
            slots = call.cache.flatten(0, 1)[named[(named >= 0) & (named < problem.slots)]]
            found = of_bytes(slots, problem.d_v).scales
            if not found.numel():
                continue
            yield float(found.min()), float(found.max())


TABLES: Final[Mapping[str, tuple[tuple[str, ...], Callable[[], Rows]]]] = {
    "sizes": (("op", "size", "values in `smoke`", "more in `acceptance`"), values),
}
"""Headings and rows, by the mark of a table."""
