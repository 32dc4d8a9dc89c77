"""What an assignment does to a long memory: its state's error against the contract's.

Random writes correct each other, and good and bad kernels drift alike on them. One write followed
by nothing but decay does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from kdaverify.budgets.contract import Contract, contract_from_name
from kdaverify.budgets.emulate import Emulator
from kdaverify.budgets.formats import Format
from kdaverify.budgets.pipeline import run_form
from kdaverify.problems import Problem
from oracles.arithmetic import NATIVE, Arithmetic
from oracles.chunk import STAGES, Stages
from oracles.inputs import Inputs

# acceptance: at least 6 octaves, a slope of at most 0.05 and at most twice the error at the end.
OCTAVES = 7
STEEPEST, LARGEST = 0.05, math.log(2.0)
HEADS, WIDTH = 8, 32
# One-sided 99 % quantile of Student's t with HEADS - 1 degrees of freedom.
STUDENT = 2.998


@dataclass(frozen=True)
class Drift:
    """How the error of a state grows with T, relative to the kernel that the contract means.

    Args:
        tokens: T of every octave.
        errors: [octaves] rms over all heads of the relative error of the state.
        slope, lower: of its logarithm over that of T, less that of the contract's kernel, mean over
            the heads; and its lower 99 % limit.
        last: that difference at the largest T.
        bias: |mean| / rms of the relative errors there: near 1 where all err alike.
    """

    tokens: tuple[int, ...]
    errors: tuple[float, ...]
    slope: float
    lower: float
    last: float
    bias: float

    @property
    def within(self) -> bool:
        return self.lower <= STEEPEST and self.last <= LARGEST


@dataclass(frozen=True)
class Memory:
    """One write, then slow decay over all octaves; a head for each sample.

    Args:
        operands: of the contract, chunks of 64 tokens, against whose kernel errors are held.
        gates: of each key channel, or of the head.
        seed: of the problem.
    """

    operands: Format
    gates: str = "channel"
    seed: int = 0

    def drift(self, kernel: Emulator) -> Drift:
        """The drift of an emulated kernel."""
        found = self._errors(kernel)
        rms = _rms(found)
        apart = (rms / self._least).log()
        octaves = torch.arange(len(apart), dtype=torch.float64)
        centred = octaves - octaves.mean()
        slopes = (centred @ apart) / centred.square().sum() / math.log(2.0)
        slope, error = float(slopes.mean()), float(slopes.std()) / math.sqrt(len(slopes))
        end = found[-1].flatten()
        return Drift(
            tokens=tuple(self._contract.chunk_size << i for i in range(len(apart))),
            errors=tuple(rms.square().mean(-1).sqrt().tolist()),
            slope=slope,
            lower=slope - STUDENT * error,
            last=float(apart[-1].mean()),
            bias=float(end.mean().abs() / end.square().mean().sqrt()),
        )

    @cached_property
    def _contract(self) -> Contract:
        return contract_from_name(f"chunk64-{self.operands.name}")

    @cached_property
    def _inputs(self) -> Inputs:
        size = {
            "B": 1,
            "T": self._contract.chunk_size << (OCTAVES - 1),
            "H": HEADS,
            "HV": HEADS,
            "K": WIDTH,
            "V": WIDTH,
        }
        drawn = {
            "key": "random",
            "value": "normal",
            "gate": "slow",
            "beta": "sparse",
            "state": "absent",
        }
        own = {"gates": self.gates, "dtype": self.operands.name, "seed": self.seed}
        fields: dict[str, Any] = {**size, **drawn, **own}
        return Problem(**fields).inputs()

    @cached_property
    def _exact(self) -> Tensor:
        return _states(self._contract, self._inputs, torch.float64, NATIVE, STAGES)

    @cached_property
    def _least(self) -> Tensor:
        """[octaves, heads] what the contract's own kernel errs by."""
        return _rms(self._errors(Emulator("the contract's kernel", self._contract, self.operands)))

    def _errors(self, kernel: Emulator) -> Tensor:
        states = _states(
            kernel.contract, self._inputs, kernel.contract.work, kernel.arithmetic, kernel.stages
        )
        return torch.where(
            self._exact == 0, torch.zeros_like(states), (states - self._exact) / self._exact
        )


def _rms(errors: Tensor) -> Tensor:
    """[octaves, heads] of relative errors [octaves, heads, K, V]."""
    return errors.square().mean((-2, -1)).sqrt()


def _states(
    contract: Contract, inputs: Inputs, dtype: torch.dtype, arithmetic: Arithmetic, stages: Stages
) -> Tensor:
    """[octaves, HV, K, V] the state after 1, 2, 4, ... chunks, float64."""
    states: list[Tensor] = []

    def store(name: str, tensor: Tensor) -> Tensor:
        kept = arithmetic.store(name, tensor)
        if name == "S":
            states.append(kept[0].double())
        return kept

    run_form(
        contract, inputs, dtype=dtype, arithmetic=replace(arithmetic, store=store), stages=stages
    )
    return torch.stack([states[(1 << i) - 1] for i in range(OCTAVES)])
