"""The problems that a kernel declares to take, and the nearest such problem to any other.

Everything that is generated or altered (random cases, panel, probes, laws, replaced tokens,
re-tests) passes through `fit`: a kernel is tested on what it declares, and not rejected, or
skipped, for the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from kdaverify.problems.axes import Gates
from kdaverify.problems.problem import Limits, Problem
from kdaverify.problems.regimes.gate import CHANNELWISE

Range = tuple[float, float]
EVERY_GATE: Final[Range] = (-math.inf, 0.0)
EVERY_BETA: Final[Range] = (0.0, 2.0)
"""A log decay is at most 0; beta |k|^2 above 2 would let the state grow (math.md 2)."""
_SHARED: Final = "log-sigmoid"
"""The regime in place of one that is about channels apart from each other, where these share a
gate."""
_GATES_OF: Final[dict[Gates, str]] = {
    "channel": "gates of every key channel",
    "head": "one gate a head",
    "none": "no gate",
}


class DomainError(ValueError):
    """A domain without problems; the message names the option, what was wanted and came."""


@dataclass(frozen=True, kw_only=True)
class Domain:
    """What a kernel takes.

    Args:
        gates: of a token and value head: one for each key channel, one a head, or none.
        widths: of keys and values; () any.
        widest: the largest of them; None: any.
        square: K = V alone.
        head_ratios: HV / H; () any.
        gate_range: lowest and highest log decay g; -inf is a hard reset.
        beta_range: lowest and highest write strength.
        length_multiple: of which the length of every sequence, and T, is a multiple.
        longest: tokens of a sequence at most; None: any.
        packed: whether packs of sequences are taken.
        states, packed_states: whether an initial state is taken, and whether beside a pack.
        scales: whether any scale is taken, or K^-1/2 alone.
    Raises:
        DomainError: an empty range, one outside math.md's, or a size that is no whole number.
    """

    gates: Gates = "channel"
    widths: tuple[int, ...] = ()
    widest: int | None = None
    square: bool = False
    head_ratios: tuple[int, ...] = ()
    gate_range: Range = EVERY_GATE
    beta_range: Range = EVERY_BETA
    length_multiple: int = 1
    longest: int | None = None
    packed: bool = True
    states: bool = True
    packed_states: bool = True
    scales: bool = True

    def __post_init__(self) -> None:
        _check_range("gate_range", self.gate_range, EVERY_GATE)
        _check_range("beta_range", self.beta_range, EVERY_BETA)
        sizes = {
            "widths": self.widths,
            "head_ratios": self.head_ratios,
            "length_multiple": (self.length_multiple,),
        }
        for name, values in sizes.items():
            wrong = [value for value in values if value < 1]
            if wrong:
                raise DomainError(f"{name}: wanted whole numbers of at least 1, got {wrong[0]}")
        if self.longest is not None and self.longest < self.length_multiple:
            raise DomainError(
                f"longest: wanted at least length_multiple = {self.length_multiple}, got"
                f" {self.longest}"
            )

    def fit(self, problem: Problem) -> Problem:
        """The problem itself inside the domain, else the nearest one that is."""
        for change in (self._gates, self._layout, self._lengths, self._heads, self._options):
            changed = change(problem)
            problem = problem.replace(**changed) if changed else problem
        return problem

    def refuses(self, problem: Problem) -> str | None:
        """What of the problem lies outside, in a sentence; None if nothing does."""
        return next(self._outside(problem), None)

    def has(self, regime: str) -> bool:
        """Whether a regime of gates can be given to a kernel that takes so many of them."""
        return self.gates == "channel" or (
            regime == "zero" if self.gates == "none" else regime not in CHANNELWISE
        )

    def leaves_out(self) -> tuple[str, ...]:
        """What lies outside, one phrase each, for the list of what is not tested."""
        low, high = self.gate_range
        weakest, strongest = self.beta_range
        said = {
            f"gates that differ between key channels ({_GATES_OF[self.gates]})": (
                self.gates != "channel"
            ),
            f"widths other than {_listed(self.widths)}": self.widths,
            f"widths above {self.widest}": self.widest is not None,
            "K different from V": self.square,
            f"value heads a key head other than {_listed(self.head_ratios)}": self.head_ratios,
            f"gates below {low:g}": low > EVERY_GATE[0],
            f"gates above {high:g}": high < EVERY_GATE[1],
            f"beta below {weakest:g}": weakest > EVERY_BETA[0],
            f"beta above {strongest:g}": strongest < EVERY_BETA[1],
            f"lengths that are no multiple of {self.length_multiple}": self.length_multiple > 1,
            f"sequences above {self.longest} tokens": self.longest is not None,
            "packed sequences": not self.packed,
            "initial states": not self.states,
            "initial states of packed sequences": (
                self.states and self.packed and not self.packed_states
            ),
            "a scale other than K^-1/2": not self.scales,
        }
        return tuple(phrase for phrase, applies in said.items() if applies)

    def _gates(self, p: Problem) -> dict[str, Any]:
        return ({} if p.gates == self.gates else {"gates": self.gates}) | (
            {} if self.has(p.gate) else {"gate": self._nearest_gate}
        )

    @property
    def _nearest_gate(self) -> str:
        return "zero" if self.gates == "none" else _SHARED

    def _layout(self, p: Problem) -> dict[str, Any]:
        if not p.packed or self.packed:
            return {}
        assert p.lengths is not None
        return {"lengths": None, "T": max(1, *p.lengths)}

    def _lengths(self, p: Problem) -> dict[str, Any]:
        lengths = (p.T,) if p.lengths is None else p.lengths
        # Most of many sequences are equally long.
        known = {length: self._length(length) for length in {*lengths}}
        fitted = tuple(known[length] for length in lengths)
        if fitted == lengths and p.T % self.length_multiple == 0:
            return {}
        if p.lengths is None:
            return {"T": fitted[0]}
        padding = p.T - sum(p.lengths)
        return {
            "lengths": fitted,
            "T": sum(fitted) + -(-padding // self.length_multiple) * self.length_multiple,
        }

    def _length(self, length: int) -> int:
        most = math.inf if self.longest is None else self.longest // self.length_multiple
        return int(min(-(-length // self.length_multiple), most)) * self.length_multiple

    def _heads(self, p: Problem) -> dict[str, Any]:
        K, V = (
            _nearest(size if self.widest is None else min(size, self.widest), self.widths)
            for size in (p.K, p.V)
        )
        HV = p.H * _nearest(p.HV // p.H, self.head_ratios)
        sizes = {"K": K, "V": K if self.square else V, "HV": HV}
        return {name: size for name, size in sizes.items() if size != getattr(p, name)}

    def _options(self, p: Problem) -> dict[str, Any]:
        stateless = not self.states or (p.packed and not self.packed_states)
        return {
            **({"state": "absent"} if stateless and p.state != "absent" else {}),
            **({"scale": None} if not self.scales and p.scale not in (None, p.K**-0.5) else {}),
            **{
                name: limits
                for name, limits in self._bounds.items()
                if limits is not None and limits != getattr(p, name)
            },
        }

    @property
    def _bounds(self) -> dict[str, Limits | None]:
        """The ranges as problems write them, None where everything is taken."""
        ranges = {
            "gate_range": (self.gate_range, EVERY_GATE),
            "beta_range": (self.beta_range, EVERY_BETA),
        }
        return {
            name: None if given == every else _limits(given, every)
            for name, (given, every) in ranges.items()
        }

    def _outside(self, p: Problem) -> Iterator[str]:
        if p.gates != self.gates:
            yield f"no {_GATES_OF[p.gates]}: it takes {_GATES_OF[self.gates]}"
        if not self.has(p.gate):
            yield f"no {p.gate} gates: it takes {_GATES_OF[self.gates]}"
        if p.packed and not self.packed:
            yield "no packed sequences"
        stateful = p.state != "absent"
        if stateful and not self.states:
            yield "no initial state"
        if stateful and p.packed and not self.packed_states:
            yield "no initial states of packed sequences"
        yield from self._sizes_outside(p)
        if not self.scales and p.scale not in (None, p.K**-0.5):
            yield f"no scale but K^-1/2, wanted {p.scale}"
        yield from self._values_outside(p)

    def _sizes_outside(self, p: Problem) -> Iterator[str]:
        for name, size in (("K", p.K), ("V", p.V)):
            if self.widths and size not in self.widths:
                yield f"no {name} = {size}: it takes widths of {_listed(self.widths)} alone"
            elif self.widest is not None and size > self.widest:
                yield f"no {name} = {size}: it takes widths up to {self.widest}"
        if self.square and p.K != p.V:
            yield f"no K = {p.K} with V = {p.V}: it takes K = V alone"
        ratio = p.HV // p.H
        if self.head_ratios and ratio not in self.head_ratios:
            yield (
                f"no {ratio} value heads a key head (HV = {p.HV}, H = {p.H}): it takes"
                f" {_listed(self.head_ratios)} alone"
            )
        if self._lengths(p):
            most = "" if self.longest is None else f", up to {self.longest}"
            yield f"no such lengths (T = {p.T}): it takes multiples of {self.length_multiple}{most}"

    def _values_outside(self, p: Problem) -> Iterator[str]:
        """Tensors are examined only for a declared range that the problem does not state."""
        if (p.gate_range, p.beta_range) == (self._bounds["gate_range"], self._bounds["beta_range"]):
            return
        for name, tensor, (low, high) in (
            ("gates g", p.decays(), self.gate_range),
            ("beta", p.betas(), self.beta_range),
        ):
            if tensor.numel() and (float(tensor.min()) < low or float(tensor.max()) > high):
                yield (
                    f"{name} in [{low:g}, {high:g}] alone, wanted [{float(tensor.min()):g},"
                    f" {float(tensor.max()):g}]"
                )


def _check_range(name: str, given: Range, widest: Range) -> None:
    if not widest[0] <= given[0] <= given[1] <= widest[1]:
        raise DomainError(
            f"{name}: wanted (lowest, highest) within [{widest[0]:g}, {widest[1]:g}], got {given}"
        )


def _limits(given: Range, widest: Range) -> Limits:
    """The range with None where it leaves everything open."""
    low, high = (None if one == every else one for one, every in zip(given, widest, strict=True))
    return low, high


def _nearest(size: int, allowed: tuple[int, ...]) -> int:
    if allowed and size not in allowed:
        return min(allowed, key=lambda other: (abs(other - size), other))
    return size


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


EVERYTHING: Final = Domain()
"""Every problem of math.md."""
