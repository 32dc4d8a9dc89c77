"""Truth and tolerance of one problem: what every run of it is held against."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from kdaverify.budgets.backward import GradientEmulation
from kdaverify.budgets.budget import Budget, EnsembleErrors, allow, ensemble_errors
from kdaverify.budgets.ceiling import Ceiling, Ceilings
from kdaverify.budgets.constants import ORACLE_SHARE
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.ensemble import ContractOverflow, Emulation
from kdaverify.budgets.ensemble_cache import EnsembleCache, Errors
from kdaverify.budgets.finite import OutputRuns, finite_outputs
from kdaverify.budgets.formats import FORMATS, Format
from oracles.cache import cache_in
from oracles.certified import certify
from oracles.enclosure import CertifiedOutputs, Enclosure
from oracles.file_cache import default_folder
from oracles.gradients import GradientAnswer
from oracles.inputs import Inputs
from oracles.row_norm import GIVEN
from oracles.running_error import enclosed, structural_zeros

# Up to this precision of the operands the float64 recurrence can be sharp enough; above it only
# balls are.
FLOAT64_ORACLE_PRECISION = 11
# Of float64. What lies below is 0 in every format. A gradient that is exp(-1e6) lies there, and has
# a tolerance of 0.
SMALLEST = 2.0**-1074


class ExactAnswer(Protocol):
    """Exact values by name, and how they were computed."""

    @property
    def method(self) -> str: ...

    def named(self) -> dict[str, Enclosure]: ...


@dataclass(frozen=True)
class Reference:
    """The exact outputs, or gradients, of a problem and the tolerances under the contract.

    Args:
        budgets: by output; without those that overflow, where no kernel is finite in all.
    """

    truth: ExactAnswer
    budgets: dict[str, Budget]

    def exact(self, output: str) -> Enclosure:
        return self.truth.named()[output]

    @property
    def device(self) -> torch.device:
        """Where the exact values lie."""
        return next(iter(self.truth.named().values())).high.device


@torch.inference_mode()
def standard(
    inputs: Inputs,
    contract: Contract,
    io: Format,
    emulation: Emulation | Callable[[], Emulation],
    *,
    cuts: tuple[int, ...] = (),
) -> Reference:
    """Truth sharp enough to judge by, and the tolerances it gives.

    The oracle is the float64 recurrence where its proven radius is at most 2^-20 of every
    tolerance, certified balls otherwise.

    Args:
        inputs: what the kernel receives.
        contract: what it declares.
        io: format of q, k, v and o.
        emulation: what the reference ensemble of the contract made of these inputs; where it is a
            call, its errors are kept, and it is made only where none are.
        cuts: tokens at which the run is cut and resumed, as the ensemble's runs were.
    Raises:
        UncertifiedError: no precision within the ceiling makes the oracle sharp enough.
        ContractOverflow: every output overflows in some reference kernel.
    """
    judged = _OutputTolerances(
        inputs, contract, io, made_once(emulation), cuts, cached=callable(emulation)
    )
    return sharpened(
        contract,
        lambda: enclosed(inputs),
        lambda accept, extra: certify(
            inputs, accept=accept, extra_bits=extra, cache=cache_in(default_folder())
        ),
        judged.budgets,
        lambda truth: _zero_by_structure(truth, inputs),
    )


@dataclass(frozen=True)
class _OutputTolerances:
    """What tolerances of outputs are made from, before exact values; see `standard`."""

    inputs: Inputs
    contract: Contract
    io: Format
    made: Callable[[], Emulation]
    cuts: tuple[int, ...]
    cached: bool

    def budgets(self, truth: CertifiedOutputs) -> dict[str, Budget]:
        found, formats = self._kept_errors(truth), self.contract.output_formats(self.io)
        moved = {
            "o": None,
            "final_state": _kept_or_changed(truth.final_state.high, self.inputs.state.double()),
        }
        return {
            name: replace(
                self._room.allow(truth.named()[name], errors, formats[name], moved=moved[name]),
                # No bound is proven of rows that a kernel normalises itself.
                ceiling=Ceiling(self._ceilings, name) if self.contract.qk == GIVEN else None,
            )
            for name, errors in found.items()
        }

    @cached_property
    def _ceilings(self) -> Ceilings:
        return Ceilings(self.inputs, self.contract, self.io, self.cuts)

    @cached_property
    def _room(self) -> ToleranceContext:
        return ToleranceContext(self.contract, self.io, self.inputs.K)

    def _kept_errors(self, truth: CertifiedOutputs) -> Errors:
        if not self.cached:
            return self._errors(truth)
        kept = EnsembleCache(self.inputs, self.contract, self.io, self.cuts)
        return kept.of(truth.method, lambda: self._errors(truth))

    def _errors(self, truth: CertifiedOutputs) -> Errors:
        ensemble, exact = self.made(), truth.named()
        formats = self.contract.output_formats(self.io)
        rounded, drawn = [*ensemble.rounded.values()], ensemble.drawn
        return self._room.errors_of_finite(
            {
                name: OutputRuns([run[i] for run in rounded], [run[i] for run in drawn])
                for i, name in enumerate(formats)
            },
            lambda name, runs: self._room.errors(exact[name], runs, formats[name]),
        )


def _kept_or_changed(final: Tensor, initial: Tensor) -> Tensor:
    """The smaller of a state and its difference to the one before, which is large after decay."""
    return torch.minimum(final.abs(), (final - initial).abs())


@dataclass(frozen=True)
class ToleranceContext:
    """What every tolerance of one problem has in common.

    Args:
        terms: of the longest dot product; on a unit that flushes, each may vanish.
    """

    contract: Contract
    io: Format
    terms: float

    @property
    def lost(self) -> float:
        """What underflow may take from an element."""
        return self.terms * self.contract.vanishing

    def errors(
        self, truth: Enclosure, runs: OutputRuns, fmt: Format, *, terms: Tensor | None = None
    ) -> EnsembleErrors:
        """The errors of the reference ensemble in one output."""
        return ensemble_errors(truth, *runs, io=fmt, lost=self.lost, terms=terms)

    def errors_of_finite(
        self, outputs: Mapping[str, OutputRuns], errors: Callable[[str, OutputRuns], EnsembleErrors]
    ) -> Errors:
        """The errors of every output that a conforming kernel has to keep finite.

        Args:
            outputs: by name, of all reference kernels and samples.
            errors: of one output, from those of them that count.
        Raises:
            ContractOverflow: there is no such output.
        """
        found = {name: errors(name, outputs[name]) for name in finite_outputs(outputs)}
        if not found:
            raise ContractOverflow(
                f"every output overflows in some emulated kernel of {self.contract.name}; choose"
                " milder values"
            )
        return found

    def allow(
        self,
        truth: Enclosure,
        errors: EnsembleErrors,
        fmt: Format,
        **relative_to: Tensor | float | None,
    ) -> Budget:
        """The tolerance of one output; relative, moved, terms and floor as `allow` has them."""
        given: dict[str, Any] = {
            name: tensor for name, tensor in relative_to.items() if tensor is not None
        }
        return allow(
            truth,
            errors,
            io=fmt,
            unit=max(self.contract.operands.unit, fmt.unit),
            lost=self.lost,
            **given,
        )

    def budget(
        self,
        truth: Enclosure,
        rounded: list[Tensor],
        drawn: list[Tensor],
        fmt: Format,
        **relative_to: Tensor | None,
    ) -> Budget:
        """The same from the ensemble's own outputs."""
        return self.allow(
            truth,
            self.errors(truth, OutputRuns(rounded, drawn), fmt, terms=relative_to.get("terms")),
            fmt,
            **relative_to,
        )


E = TypeVar("E", Emulation, GradientEmulation)


def made_once(emulation: E | Callable[[], E]) -> Callable[[], E]:
    """What gives the emulation, once."""
    return cache(emulation) if callable(emulation) else lambda: emulation


A = TypeVar("A", CertifiedOutputs, GradientAnswer)


def sharpened(
    contract: Contract,
    float64: Callable[[], A],
    balls: Callable[[Callable[[A], bool], int], A],
    budgets: Callable[[A], dict[str, Budget]],
    demanded: Callable[[A], A],
) -> Reference:
    """Float64 where sharp enough, else balls; `demanded` drops zeros that only balls prove."""
    seen: list[tuple[A, dict[str, Budget]]] = []

    def sharp(truth: A) -> bool:
        allowed = budgets(truth)
        seen[:] = [(truth, allowed)]
        return all(_is_sharp(truth.named()[name], one) for name, one in allowed.items())

    if contract.operands.precision <= FLOAT64_ORACLE_PRECISION and sharp(float64()):
        return Reference(*seen[-1])
    # The rule's first precision suits fp32; each further bit of the contract needs one more.
    truth = balls(sharp, max(0, contract.accumulate.precision - FORMATS["fp32"].precision))
    return Reference(
        demanded(truth), seen[-1][1] if seen and seen[-1][0] is truth else budgets(truth)
    )


def _is_sharp(truth: Enclosure, allowed: Budget) -> bool:
    # A radius is an error like any other: the comparator's own statistics say whether it is small
    # enough.
    radius = truth.radius.masked_fill(truth.radius <= SMALLEST, 0.0)
    ratios = allowed.ratios(allowed.measure(radius, truth))
    # A radius has no sign that could lean one way; its rms bounds that of any error within.
    sizes = [ratio for name, ratio in ratios.items() if name != "bias"]
    return bool(torch.isfinite(truth.radius).all()) and max(sizes) <= ORACLE_SHARE


def _zero_by_structure(truth: CertifiedOutputs, inputs: Inputs) -> CertifiedOutputs:
    """Balls prove zeros of cancelling equal terms too; the chunk form finds those by sums."""
    if not bool(truth.o.zero.any()) and not bool(truth.final_state.zero.any()):
        return truth
    by_structure = structural_zeros(inputs, truth.o.high, truth.final_state.high)
    o, final = (
        replace(one, zero=one.zero & mask)
        for one, mask in zip((truth.o, truth.final_state), by_structure, strict=True)
    )
    return replace(truth, o=o, final_state=final)
