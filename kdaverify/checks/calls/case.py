"""One rule asked of one implementation: its calls, and what can be said of what they give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.channels import Channel
from kdaverify.checks.execute import execute
from kdaverify.checks.gradients import judge_gradients, run_backward
from kdaverify.checks.outcome import Outcome, outcomes
from kdaverify.problems import Problem, cotangents
from kdaverify.problems.cotangents import of_exposed
from oracles.gradients import Cotangents
from oracles.inputs import Inputs

Tensors = dict[str, Tensor]


class Unreachable(Exception):
    """A rule that says nothing about this kernel; the message is why."""


@dataclass(frozen=True)
class CallRuleCase:
    """One question.

    Args:
        adapter: the implementation.
        problem: a small one that it supports.
        times: how often a rule about repetition calls.
    """

    adapter: Adapter
    problem: Problem
    times: int

    @cached_property
    def inputs(self) -> Inputs:
        return self.problem.inputs()

    @cached_property
    def cotangents(self) -> Cotangents:
        return cotangents(self.problem, self.of)

    @property
    def of(self) -> str:
        """The outputs that a loss depends on."""
        return of_exposed(self.exposed)

    @property
    def exposed(self) -> tuple[str, ...]:
        return self.adapter.exposes(self.problem)

    def reaches(self, channel: Channel) -> None:
        """Raises Unreachable where something stands between a caller and this memory of the kernel."""
        if channel in self.adapter.barriers:
            raise Unreachable(self.adapter.barriers[channel])

    def step(self) -> Tensors:
        """The outputs of one call of the decode entry point."""
        return execute(self.adapter, self.inputs, self.exposed, entry=self.adapter.step).outputs

    def run(self, inputs: Inputs | None = None, *, copied: Callable[[Inputs], Inputs] = Inputs.copied) -> Tensors:
        """The outputs of one call, in the kernel's own memory."""
        return execute(self.adapter, self.inputs if inputs is None else inputs, self.exposed, copied=copied).outputs

    def back(
        self,
        given: Cotangents | None = None,
        inputs: Inputs | None = None,
        *,
        copied: Callable[[Inputs], Inputs] = Inputs.copied,
    ) -> Tensors:
        """The gradients of one call."""
        x, loss = self.inputs if inputs is None else inputs, self.cotangents if given is None else given
        return run_backward(self.adapter, x, loss, copied=copied)

    def judged(self, found: Mapping[str, Tensor], inputs: Inputs | None = None) -> list[Outcome]:
        """Outputs against the truth."""
        return outcomes(self.adapter, self.inputs if inputs is None else inputs, lambda: {**found})

    def judged_back(self, found: Mapping[str, Tensor]) -> list[Outcome]:
        """Gradients against the truth."""
        return judge_gradients(self.adapter, self.problem, self.inputs, self.cotangents, {**found})

    def beside(self, **changed: object) -> Problem:
        """The problem changed, moved into the domain: one token more is one chunk more for a kernel that takes whole chunks.

        Raises:
            Unreachable: the implementation does not take it, or what was changed lies outside its domain.
        """
        wanted = self.problem.replace(**changed)
        other = self.adapter.domain.fit(wanted)
        reason = self.adapter.supports(wanted if other == self.problem else other)
        if reason:
            raise Unreachable(reason)
        return other


Ask = Callable[[CallRuleCase], list[Outcome]]
