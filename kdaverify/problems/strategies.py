"""Hypothesis strategies of problems, never tensors; they shrink sequences, T, widths, gates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NotRequired, TypedDict

from hypothesis import strategies as st

from kdaverify.problems.axes import DTYPES
from kdaverify.problems.compiled_shapes import HeadsAndWidths, shapes
from kdaverify.problems.cost import DRAWN_LIMIT, seconds
from kdaverify.problems.domain import EVERYTHING, Domain
from kdaverify.problems.packs import DRAWN_LENGTHS
from kdaverify.problems.problem import Problem
from kdaverify.problems.regimes import REGIMES

# Every list begins with the simplest choice; repeats make a choice more likely.
_BATCHES = (1, 2)
# Value heads once, twice and three times the key heads, and widths that are no power of two: which
# faults depend on (B30, A4, A10).
_HEADS = (1, 2, 3)
_RATIOS = (1, 2, 3)
_WIDTHS = (1, 8, 16, 32, 48, 64, 100, 128)
_PADDING = (0, 1, 16)
_SCALES = (None, None, None, None, None, None, None, 0.5)
_MAX_SEQUENCES = 6
_SEED_BYTES = 2

# Sizes assumed for what is not chosen yet, so that long problems keep useful heads and widths.
_TYPICAL = {"HV": 1, "K": 32, "V": 32}
_NARROW = 16


@dataclass(frozen=True)
class _Choices:
    names: dict[str, tuple[str, ...]]
    packed: bool | None
    max_cost: float | None
    widths: tuple[int, ...]
    domain: Domain
    compiled: bool


class Bounds(TypedDict):
    """What `problems` takes from a profile and an implementation: see there."""

    max_cost: float
    widths: tuple[int, ...]
    domain: Domain
    compiled: NotRequired[bool]


class TinySizes(TypedDict):
    """Sizes of tiny problems for `problems`."""

    max_cost: float
    widths: tuple[int, ...]


TINY: Final[TinySizes] = {"max_cost": 0.0037, "widths": (1, 2, 3, 4)}
"""At most nine tokens, key and value widths up to 4."""

TINIEST: Final[TinySizes] = {"max_cost": 0.0017, "widths": (1, 2, 3)}
"""At most four tokens, widths up to 3."""


class Regimes(TypedDict):
    """Names of regimes for `problems`."""

    gate: tuple[str, ...]
    beta: tuple[str, ...]


INSIDE: Final[Regimes] = {
    "gate": ("log-sigmoid", "slow", "mild", "bound-5", "strong-then-weak", "one-token-reset"),
    "beta": ("uniform",),
}
"""Gates and betas that may move both ways: finite, below 0 and above 0 by far more than the step of
a difference in float64."""


def problems(
    *,
    dtype: str | Sequence[str] | None = None,
    gate: str | Sequence[str] | None = None,
    key: str | Sequence[str] | None = None,
    beta: str | Sequence[str] | None = None,
    state: str | Sequence[str] | None = None,
    value: str | Sequence[str] | None = None,
    packed: bool | None = None,
    max_cost: float | None = None,
    widths: tuple[int, ...] = (),
    domain: Domain = EVERYTHING,
    compiled: bool = False,
) -> st.SearchStrategy[Problem]:
    """Problems of every kind, or of the kinds named.

    Args:
        dtype, gate, key, beta, state, value: a name or several to choose from; None means all, each
            as often as its weight says.
        packed: only packs, only unpacked problems, or (None) both.
        max_cost: largest `cost` in seconds; None means `DRAWN_LIMIT` of the dtype.
        widths: what K and V are picked from, smallest first; () the domain's, or all kinds.
        domain: what is sampled is moved into it.
        compiled: whether heads and widths are those of few compiled kernels.
    Raises:
        ValueError: an unknown name, or a cost that no problem can meet.
    """
    wanted = {"gate": gate, "key": key, "beta": beta, "state": state, "value": value}
    names = {
        axis: _chosen(axis, wanted[axis], tuple(table), _weighted(axis))
        for axis, table in REGIMES.items()
    }
    names["dtype"] = _chosen("dtype", dtype, DTYPES, DTYPES)
    smallest = seconds(tokens=max(_BATCHES), **_TYPICAL)
    if max_cost is not None and max_cost < smallest:
        raise ValueError(
            f"max_cost: wanted at least {smallest:.1e} s (two tokens of one narrow head), got"
            f" {max_cost}; raise it"
        )
    return _problems(
        _Choices(
            names,
            packed if domain.packed else False,
            max_cost,
            widths or domain.widths or _WIDTHS,
            domain,
            compiled,
        )
    )


def _weighted(axis: str) -> tuple[str, ...]:
    return tuple(name for name, regime in REGIMES[axis].items() for _ in range(regime.weight))


def _chosen(
    axis: str, wanted: str | Sequence[str] | None, known: tuple[str, ...], default: tuple[str, ...]
) -> tuple[str, ...]:
    if wanted is None:
        return default
    names = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise ValueError(
            f"{axis}: wanted names among {', '.join(known)}, got {list(names)}; correct"
            f" {unknown or 'the empty list'}"
        )
    return names


@st.composite
def _problems(draw: st.DrawFn, choices: _Choices) -> Problem:
    dtype = draw(st.sampled_from(choices.names["dtype"]))
    limit = DRAWN_LIMIT[dtype] if choices.max_cost is None else choices.max_cost
    layout = draw(_layouts(packed=choices.packed, limit=limit, narrowest=choices.widths[0]))
    tokens = layout["B"] * layout["T"]
    widths = draw(
        _compiled_widths(choices.widths, tokens=tokens, limit=limit)
        if choices.compiled
        else _drawn_widths(choices.widths, tokens=tokens, limit=limit)
    )
    regimes = {axis: draw(st.sampled_from(choices.names[axis])) for axis in REGIMES}
    scale = draw(st.sampled_from(_SCALES))
    # Bytes, not an integer: shrinking would trade a smaller size for a larger seed for ever.
    seed = int.from_bytes(draw(st.binary(min_size=_SEED_BYTES, max_size=_SEED_BYTES)), "big")
    fields = {**layout, **widths, **regimes}
    problem = Problem.model_validate({"dtype": dtype, **fields, "scale": scale, "seed": seed})
    return choices.domain.fit(problem)


@st.composite
def _layouts(
    draw: st.DrawFn, *, packed: bool | None, limit: float, narrowest: int
) -> dict[str, Any]:
    """B, T and lengths. An unpacked problem is sampled as a pack whose first length is T, so that a
    pack can shrink to it.
    """
    typical = {
        name: max(size, narrowest) if name != "HV" else size for name, size in _TYPICAL.items()
    }
    most = int(limit / seconds(tokens=1, **typical))
    drawn = draw(
        st.lists(
            st.sampled_from(DRAWN_LENGTHS),
            min_size=1,
            max_size=1 if packed is False else _MAX_SEQUENCES,
        )
    )
    if draw(st.booleans()) if packed is None else packed:
        return _pack(drawn, padding=draw(st.sampled_from(_PADDING)), most=most)
    B = draw(st.sampled_from(_BATCHES))
    return {"B": B, "T": max(1, min(drawn[0], most // B)), "lengths": None}


def _pack(drawn: list[int], *, padding: int, most: int) -> dict[str, Any]:
    lengths = _truncated(drawn, most)
    # The pack without any token is in the panel; a random one always has something to compute.
    lengths = lengths if any(lengths) else (*lengths[:-1], 1)
    return {"B": 1, "T": sum(lengths) + min(padding, most - sum(lengths)), "lengths": lengths}


def _truncated(lengths: list[int], most: int) -> tuple[int, ...]:
    kept: list[int] = []
    for length in lengths:
        kept.append(min(length, most - sum(kept)))
    return tuple(kept)


@st.composite
def _drawn_widths(
    draw: st.DrawFn, widths: tuple[int, ...], *, tokens: int, limit: float
) -> dict[str, int]:
    narrow = min(widths, key=lambda width: abs(width - _NARROW))

    def fits(HV: int, K: int = narrow, V: int = narrow) -> bool:
        return seconds(tokens=tokens, HV=HV, K=K, V=V) <= limit

    H = _largest(_HEADS, draw(st.sampled_from(_HEADS)), fits)
    HV = H * _largest(_RATIOS, draw(st.sampled_from(_RATIOS)), lambda ratio: fits(H * ratio))
    K = _largest(widths, draw(st.sampled_from(widths)), lambda K: fits(HV, K))
    V = _largest(widths, draw(st.sampled_from(widths)), lambda V: fits(HV, K, V))
    return {"H": H, "HV": HV, "K": K, "V": V}


def _compiled_widths(
    widths: tuple[int, ...], *, tokens: int, limit: float
) -> st.SearchStrategy[dict[str, int]]:
    first, *others = shapes(widths)
    fitting = [
        shape
        for shape in others
        if seconds(tokens=tokens, HV=shape.HV, K=shape.K, V=shape.V) <= limit
    ]
    return st.sampled_from([first, *fitting]).map(HeadsAndWidths._asdict)


def _largest(options: tuple[int, ...], drawn: int, fits: Callable[[int], bool]) -> int:
    """The largest option that fits, at most the random one: fewer options would change K."""
    return max(
        (option for option in options if option <= drawn and fits(option)), default=options[0]
    )
