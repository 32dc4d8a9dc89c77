"""Truth and tolerance of the gradients of one problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from kdaverify.budgets.backward import GradientEmulation
from kdaverify.budgets.budget import Budget, EnsembleErrors
from kdaverify.budgets.cancellation import size_of_dg
from kdaverify.budgets.constants import GAIN, SUMS_LOSE
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.conversions import received_answer, received_terms, undefined_gradients
from kdaverify.budgets.ensemble_cache import EnsembleCache, Errors
from kdaverify.budgets.finite import OutputRuns
from kdaverify.budgets.formats import Format
from kdaverify.budgets.standard import Reference, ToleranceContext, made_once, sharpened
from kdaverify.problems.cost import adjoint_seconds
from oracles.adjoint_error import enclosed_gradients
from oracles.cache import cache_in
from oracles.certified import UncertifiedError, adjoint_bits, certify_gradients
from oracles.enclosure import Enclosure
from oracles.file_cache import default_folder
from oracles.gradients import Cotangents, GradientAnswer, Gradients
from oracles.inputs import Inputs
from oracles.tensors import SIGNATURE

# Seconds of ball arithmetic for one problem's gradients. On an accelerator gradients of 4,096
# tokens are tested because float64 is nearly always accurate enough; with slow gates and rare
# writes it is not, and balls of 2,128 bits held up an acceptance of ten minutes for hours.
LONGEST = 900.0


@torch.inference_mode()
def gradient_standard(
    inputs: Inputs,
    cotangents: Cotangents,
    contract: Contract,
    io: Format,
    emulation: GradientEmulation | Callable[[], GradientEmulation],
) -> Reference:
    """Truth sharp enough for a problem's gradients, and their tolerances; see `standard`.

    Exact zeros are wanted on padding alone: elsewhere a chunk form finds them as differences.
    Gradients of gates are sums over
    suffixes whose terms cancel: errors of dg are relative to the largest term from there to the end
    of its chunk, or of an anchor's block. Those of dS_0 likewise.
    """
    judged = _GradientTolerances(
        inputs, cotangents, contract, io, made_once(emulation), cached=callable(emulation)
    )
    return sharpened(
        contract,
        lambda: _zero_on_padding(judged.received(enclosed_gradients(inputs, cotangents)), inputs),
        judged.balls,
        judged.budgets,
        lambda truth: _zero_on_padding(truth, inputs),
    )


@dataclass(frozen=True)
class _GradientTolerances:
    """What gradients' tolerances are made from, before exact values; see `gradient_standard`."""

    inputs: Inputs
    cotangents: Cotangents
    contract: Contract
    io: Format
    made: Callable[[], GradientEmulation]
    cached: bool

    def received(self, answer: GradientAnswer) -> GradientAnswer:
        """The gradients of the inputs that a kernel receives."""
        return received_answer(answer, self.inputs, self.contract)

    def balls(self, accept: Callable[[GradientAnswer], bool], extra: int) -> GradientAnswer:
        _refuse_hours(self.inputs, extra)
        found = certify_gradients(
            self.inputs,
            self.cotangents,
            accept=lambda x: accept(self.received(x)),
            extra_bits=extra,
            cache=cache_in(default_folder()),
        )
        return self.received(found)

    def budgets(self, certain: GradientAnswer) -> dict[str, Budget]:
        truth = _zero_on_padding(certain, self.inputs)
        cancelling, formats = self._cancelling(truth), self._formats(truth)

        def of(name: str, errors: EnsembleErrors) -> Budget:
            terms = cancelling.get(name)
            loss = SUMS_LOSE * self.contract.accumulate.unit
            floor = None if terms is None else loss * terms
            # Parts of a pair (i, i) cancel, each rounded as the product of another factor: single
            # tokens have no others, and the ensemble's cancel exactly.
            apart = name == "dg" and self.contract.factors is not None
            allowed = self._room.allow(
                truth.named()[name],
                errors,
                formats[name],
                relative=loss if apart else 0.0,
                moved=terms,
                terms=terms,
                floor=floor,
            )
            return replace(allowed, undefined=self._undefined.get(name))

        return {name: of(name, errors) for name, errors in self._kept_errors(truth).items()}

    @cached_property
    def _undefined(self) -> Mapping[str, Tensor]:
        return undefined_gradients(self.inputs, self.contract)

    @cached_property
    def _kept(self) -> EnsembleCache:
        others = (self.cotangents.do, self.cotangents.d_final_state)
        return EnsembleCache(self.inputs, self.contract, self.io, others=others)

    @cached_property
    def _room(self) -> ToleranceContext:
        terms = GAIN * max(self.inputs.K, self.inputs.V)
        return ToleranceContext(self.contract, self.io, terms)

    def _cancelling(self, truth: GradientAnswer) -> dict[str, Tensor]:
        """The largest term of gradients that are sums of cancelling ones."""
        dg = size_of_dg(self.inputs, truth.terms.dg, self.contract)
        return {
            "dg": received_terms(dg, self.inputs, self.contract),
            "d_initial_state": truth.terms.d_initial_state,
        }

    def _formats(self, truth: GradientAnswer) -> dict[str, Format]:
        """Of gates that there are none of, there is nothing to judge."""
        return {
            name: self.contract.returned(name, self.io)
            for name, exact in truth.named().items()
            if exact.high.shape[-1]
        }

    def _kept_errors(self, truth: GradientAnswer) -> Errors:
        if not self.cached:
            return self._errors(truth)
        return self._kept.of(truth.method, lambda: self._errors(truth))

    def _errors(self, truth: GradientAnswer) -> Errors:
        ensemble, exact = self.made(), truth.named()
        cancelling, formats = self._cancelling(truth), self._formats(truth)
        populations = [
            [run.named() for run in runs]
            for runs in (ensemble.rounded.values(), ensemble.drawn, ensemble.apart)
        ]
        return self._room.errors_of_finite(
            {
                name: OutputRuns(*([x[name] for x in runs] for runs in populations))
                for name in formats
            },
            lambda name, runs: self._room.errors(
                exact[name], runs, formats[name], terms=cancelling.get(name)
            ),
        )


def _refuse_hours(inputs: Inputs, extra: int) -> None:
    """Raises UncertifiedError for gradients that balls would take longer than LONGEST for."""
    bits = adjoint_bits(inputs, extra)
    needed = adjoint_seconds(
        tokens=inputs.B * inputs.T, HV=inputs.HV, K=inputs.K, V=inputs.V, bits=bits
    )
    if needed > LONGEST:
        raise UncertifiedError(
            f"float64 is not accurate enough for these gradients, and balls of {bits} bits would"
            f" take about {needed / 60:.0f} minutes; test a shorter problem"
        )


def _zero_on_padding(truth: GradientAnswer, inputs: Inputs) -> GradientAnswer:
    padding = torch.ones(inputs.B * inputs.T, dtype=torch.bool)
    for first, length in zip(inputs.starts, inputs.lengths, strict=True):
        padding[first : first + length] = False
    rows = padding.view(inputs.B, inputs.T).to(inputs.q.device)

    def kept(name: str, exact: Enclosure) -> Enclosure:
        if SIGNATURE.is_state(name):
            tested = torch.zeros_like(exact.zero)
        else:
            tested = exact.zero & rows.view(*rows.shape, *[1] * (exact.zero.ndim - 2))
        return replace(exact, zero=tested)

    return replace(
        truth,
        gradients=Gradients(**{name: kept(name, exact) for name, exact in truth.named().items()}),
    )
