"""Operators of countable roundings: proven bounds of every element, no emulation."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter, is_interpreted, is_slow, values_of
from kdaverify.adapters.fitting import nearest
from kdaverify.budgets.bounded import Counted, ResultTraits, bounded_reference, precision_of
from kdaverify.budgets.formats import FORMATS, Format
from kdaverify.budgets.sampled import StorageContract
from kdaverify.budgets.standard import Reference
from kdaverify.budgets.statistics import rms
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.execute import dtype_name
from kdaverify.checks.laws.law import Law
from kdaverify.operator import BOTH, Choices
from kdaverify.operators.cotangents import normal_cotangents
from kdaverify.operators.function import FunctionOperator
from oracles.pointwise.rounding import RoundingError

if TYPE_CHECKING:
    from kdaverify.diagnosis.question import PropertyCase

P = TypeVar("P")
BESIDE_ONE: Final = "sigmoid beside 1"
CASTS: Final = "gradients of each use of an input"
PARTIALS: Final = "partial sums of gradients of parameters"
SHARP: Final = 1 / 8
"""The rms of a proven bound, as a share of that of the values, up to which what is within it is
right: 0.001 to 0.08 of attention at the sizes of `combined-sizes`, 0.19 once. Of logits near -1,000
whose products are declared to be rounded to bf16 it is 1.3: there a constant was within it."""
ALIKE: Final = 0.05
"""A wrong option is wrong by the size of the answer; the worst conforming 16-bit kernel by a
hundredth of it."""


def gate_freedoms(io: Format) -> Mapping[str, tuple[str, Format]]:
    """What operators with a gate and a parameter may declare.

    tanh: the sigmoid is half of 1 + tanh(z / 2), or 1 - sigmoid(-z). Below z = -17 it is 0 then, in
    exact arithmetic it is not: such a kernel has no digit of a small output right, so it says so.
    partials: gradients of parameters are summed over tiles, and a tile's sum is stored in the
    format of the inputs: a loss of 16-bit digits that grows with cancellation, which fp32 partials
    do not have.
    casts: an input is widened at each use, as in gate.float() * sigmoid(gate.float()). Autograd
    rounds the gradient of each use to the format of the input, and adds them in it: near the zero
    of the slope of SiLU they cancel.
    """
    return {
        "tanh": (BESIDE_ONE, FORMATS["fp32"]),
        "partials": (PARTIALS, io),
        "casts": (CASTS, io),
    }


def storing(io: Format, tensors: Mapping[str, dict[str, Format]]) -> dict[str, StorageContract]:
    """Contracts of fp32 sums by name, with the formats of what is stored on the way."""
    return {
        name: StorageContract(f"{name}-{io.name}", io, FORMATS["fp32"], stored)
        for name, stored in tensors.items()
    }


def counted_as(
    precision: Callable[..., P], contract: StorageContract, io: Format, on_the_way: Sequence[str]
) -> P:
    """How precise a kernel of the contract is.

    Args:
        precision: takes that of sums, of what is returned, and of each tensor on the way, None for
            one that is not stored.
        on_the_way: names of those tensors.
    """
    formats = [contract.accumulate, io, *(contract.tensors.get(name) for name in on_the_way)]
    stored = (None if fmt is None else precision_of(fmt) for fmt in formats)
    return precision(*stored, beside_one=BESIDE_ONE in contract.tensors)


def _is_within(found: Tensor, value: Tensor, error: RoundingError) -> bool:
    """Whether the bound is none that a constant is within, and all errors are."""
    gap = (found.to(value.device, value.dtype) - value).abs()
    sizes = value[torch.isfinite(value)].square().mean()
    sharp = error.bound.square().mean() <= SHARP**2 * sizes
    # no number is within a bound that is none
    within = (gap <= error.bound).all() and torch.isfinite(gap).all()
    return not error.overflows and bool(sharp and within)


def thinned(adapter: Adapter, profile: str, by_format: Sequence[Choices]) -> Choices:
    """The choices of all formats. In smoke a slow kernel is tested on each in one format."""
    found = in_turn(by_format) if is_slow(adapter) and profile == "smoke" else by_format
    return [one for each in found for one in each]


def in_turn(by_format: Sequence[Choices]) -> list[Choices]:
    """Each choice in one format, the next in the next."""
    step = max(1, len(by_format))
    return [found[at % step :: step] for at, found in enumerate(by_format)]


class BoundedOperator(FunctionOperator):
    """An operator whose errors are counted rounding by rounding.

    Args:
        options: a field of a problem -> its values, to find out which one a function follows that
            does not take it as a keyword.
        native: problems of the panel that interpreted kernels are not tested on in smoke: what they
            are about (grids, index registers) no interpreter has.
        of_sizes: panel problems about sizes of axes: in smoke each is tested in one format.
    """

    resampled = True
    options: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    native: ClassVar[tuple[str, ...]] = ()
    of_sizes: ClassVar[frozenset[str]] = frozenset()

    @abc.abstractmethod
    def counted(
        self,
        call: Any,
        cotangents: Mapping[str, Tensor] | None,
        contract: StorageContract | None,
        io: Format,
    ) -> Counted:
        """Outputs, or gradients, with conforming errors; the oracle's without a contract."""

    @abc.abstractmethod
    def groups(self, call: Any) -> int:
        """Of elements whose roundings are not independent within one: see `ErrorModel`."""

    @abc.abstractmethod
    def laws(self) -> Mapping[str, Law]:
        """Exact relations between calls, by name."""

    def pack(self, dtype: str) -> Any:
        """A small pack, where there are packs."""
        return self.probe(dtype)

    @abc.abstractmethod
    def sized(self, rule: CallRule, dtype: str, *, seed: int) -> Any:
        """The problem of the size that a rule of calls wants."""

    def within_bounds(
        self,
        adapter: Adapter,
        call: Any,
        found: Mapping[str, Tensor],
        given: Mapping[str, Tensor] | None,
    ) -> frozenset[str]:
        dtype = dtype_name(call)
        of: Any = adapter.contract if given is None else adapter.backward_contract
        counted = self.counted(adapter.received(call), given, of(dtype), FORMATS[dtype])
        return frozenset(
            name
            for name, (value, error) in counted.items()
            if name in found and _is_within(found[name], value, error)
        )

    def reference(
        self, call: Any, contract: StorageContract, io: Format, *, cuts: tuple[int, ...] = ()
    ) -> Reference:
        return self._reference(call, None, contract, io)

    def gradient_reference(
        self, call: Any, cotangents: Any, contract: StorageContract, io: Format
    ) -> Reference:
        given = {
            name: tensor.to(call.device)
            for name, tensor in values_of(cotangents).items()
            if tensor is not None
        }
        return self._reference(call, given, contract, io)

    def _reference(
        self, call: Any, given: Mapping[str, Tensor] | None, contract: StorageContract, io: Format
    ) -> Reference:
        exact, kernel = self.counted(call, given, None, io), self.counted(call, given, contract, io)
        traits = ResultTraits(dict.fromkeys(exact, self.groups(call)), self.undefined(call))
        formats = {name: self.output_format(name, contract, io) for name in exact}
        return bounded_reference(exact, kernel, formats, traits)

    def panel(self, adapter: Adapter, profile: str) -> Choices:
        found = self.panels(adapter, profile)
        if profile != "smoke":
            return [one for each in found for one in each]
        if is_slow(adapter):
            if is_interpreted(adapter):
                found = [[one for one in each if not self._is_native(one[0])] for each in found]
            return thinned(adapter, profile, found)
        once = in_turn([[one for one in each if self._is_of_sizes(one[0])] for each in found])
        always = [[one for one in each if not self._is_of_sizes(one[0])] for each in found]
        return [one for pair in zip(always, once, strict=True) for each in pair for one in each]

    def _is_of_sizes(self, name: str) -> bool:
        return name.partition("-")[2] in self.of_sizes

    def _is_native(self, name: str) -> bool:
        return any(name.endswith(native) for native in self.native)

    def lawful(self, adapter: Adapter, profile: str) -> Choices:
        return thinned(
            adapter,
            profile,
            [
                [
                    (f"{dtype}-{law.name}", (law.name, dtype))
                    for law in self.laws().values()
                    if self._can_hold(adapter, law, dtype)
                ]
                for dtype in adapter.dtypes
            ],
        )

    def _can_hold(self, adapter: Adapter, law: Law, dtype: str) -> bool:
        """Whether what a function takes has problems of the kind that a law needs."""
        packed = self.within(adapter, self.pack(dtype))
        tried = [
            self.within(adapter, problem.replace(**law.wanted))
            for problem in (self.probe(dtype), packed)
        ]
        return any(
            law.untestable(p) is None and not any(map(adapter.supports, law.becomes(p)))
            for p in tried
        )

    def loss(
        self, problem: Any, exposed: tuple[str, ...], of: str, exponent: int
    ) -> dict[str, Tensor]:
        """Normal cotangents, 0 where an output has no exact value."""
        exposed = exposed if of == BOTH else tuple(name for name in exposed if name == of)
        call, outputs = problem.inputs(), self.signature.cotangents
        given = normal_cotangents(self, problem, call, exposed, exponent)
        masks = self.undefined(call)
        return {
            name: dy.masked_fill(masks[outputs[name]], 0.0) if outputs[name] in masks else dy
            for name, dy in given.items()
        }

    def call_problem(
        self, adapter: Adapter, rule: CallRule, dtype: str, *, seed: int, turn: int
    ) -> Any:
        found = self.within(adapter, self.sized(rule, dtype, seed=seed))
        return nearest(adapter, found, [*self.narrowed(found), *self.usual])

    def narrowed(self, problem: Any) -> Iterator[Mapping[str, Any]]:
        """Changes of a problem of rules of calls that more kernels take, before `usual`."""
        yield from ()

    def explain_error(self, case: PropertyCase, judged: Adapter, *, until: float) -> str:
        from kdaverify.operators.admitted import admitted

        return admitted(self, case, judged, until=until)

    def otherwise(self, adapter: Adapter, problem: Any, found: Mapping[str, Tensor]) -> str | None:
        """Compares what came with the exact outputs under every value of an option that the
        function is not given, and with those of usual mistakes.
        """
        if self._alike(Misreading("", problem.inputs()), found):
            return None
        for option, values in self.options.items():
            if option in adapter.takes.names:
                continue
            for value in values:
                if self._alike(Misreading("", problem.replace(**{option: value}).inputs()), found):
                    return (
                        f"declared {option}={getattr(problem, option)!r}, but behaves as"
                        f" {option}={value!r}; correct the declaration"
                    )
        return next(
            (one.said for one in self.misreadings(problem.inputs()) if self._alike(one, found)),
            None,
        )

    def misreadings(self, call: Any) -> Iterator[Misreading]:
        """What functions with a usual mistake in every call take it for; nothing by default."""
        yield from ()

    def _alike(self, read: Misreading, found: Mapping[str, Tensor]) -> bool:
        counted = self.counted(read.call, None, None, FORMATS["fp32"])
        exact = read.returned({name: value for name, (value, _) in counted.items()})
        skipped = self.undefined(read.call)
        pairs = [(found[name].double(), exact[name], skipped.get(name)) for name in found]
        errors = [
            (x - y if mask is None else (x - y).masked_fill(mask, 0.0), y) for x, y, mask in pairs
        ]
        return all(rms(error) <= ALIKE * rms(exact) for error, exact in errors)


def unchanged(outputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return outputs


@dataclass(frozen=True)
class Misreading:
    """One mistake that is made in every call.

    Args:
        said: the mistake and its mend.
        call: what the function takes its arguments for.
        returned: what it returns, made of the exact outputs of that call.
    """

    said: str
    call: Any
    returned: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = unchanged
