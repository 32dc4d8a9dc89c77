"""One rule tested on one implementation: its calls, and the outcomes of what they return."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter, Channel, values_of
from kdaverify.adapters.isolation.arena import same
from kdaverify.checks.calls.bits import Judge, same_bits, same_or_right
from kdaverify.checks.execute import execute
from kdaverify.checks.gradients import handed, judge_gradients, run_backward
from kdaverify.checks.outcome import Outcome, outcomes
from oracles.signature import Role, TensorCall

Tensors = dict[str, Tensor]
DEVICES: Final = ("cpu", "cuda", "npu")
"""Where tensors can be laid out as a rule wants them."""


class Unreachable(Exception):
    """A rule that cannot be tested on this kernel; the message is why."""


@dataclass(frozen=True)
class CallRuleCase:
    """A rule on one problem of an implementation.

    Args:
        adapter: the implementation.
        problem: a small one that it supports.
        times: how often a rule about repetition calls.
    """

    adapter: Adapter
    problem: Any
    times: int

    @cached_property
    def inputs(self) -> Any:
        """The call, of the class of its operator."""
        return self.problem.inputs()

    @cached_property
    def cotangents(self) -> Any:
        """Of a loss on everything that the kernel returns."""
        operator = self.adapter.operator
        followed = self.adapter.differentiates(self.problem)
        given = operator.loss(self.problem, followed, operator.whole(followed), 0)
        if isinstance(given, str):
            raise Unreachable(given)
        return handed(self.adapter, self.problem, given)

    @property
    def exposed(self) -> tuple[str, ...]:
        return self.adapter.exposes(self.problem)

    def reaches(self, channel: Channel) -> None:
        """Raises Unreachable where something hides this memory of the kernel from a caller."""
        if channel in self.adapter.barriers:
            raise Unreachable(self.adapter.barriers[channel])

    @property
    def place(self) -> torch.device:
        """Where the kernel takes tensors as they are."""
        if self.adapter.device in DEVICES:
            return torch.device(self.adapter.device)
        return self.inputs.device

    @property
    def given(self) -> Tensors:
        """The cotangents that are not absent, by name."""
        return {name: dy for name, dy in values_of(self.cotangents).items() if dy is not None}

    def loss_on(self, device: torch.device) -> Tensors:
        """Those of `given` on a device."""
        return {name: dy.to(device) for name, dy in self.given.items()}

    def alike(self) -> Iterator[tuple[frozenset[str], CallRuleCase]]:
        """Inputs that can be one tensor, and the case in which they are of one shape."""
        for names, fields in self.adapter.operator.inputs_alike(self.problem):
            try:
                here = replace(self, problem=self.beside(**fields))
            except Unreachable:
                continue
            yield names, here

    def loss_of(self, given: Tensors) -> Any:
        """The loss with these cotangents, all others absent."""
        return self.adapter.operator.cotangents(
            {name: given.get(name) for name in self.inputs.signature.cotangents}
        )

    def step(
        self, inputs: TensorCall | None = None, *, copied: Callable[[Any], Any] = TensorCall.copied
    ) -> Tensors:
        """The outputs of one call of the decode entry point.

        Raises:
            Unreachable: as of `takes_one_token`.
        """
        self.takes_one_token()
        x = self.inputs if inputs is None else inputs
        return execute(
            self.adapter, x, self.exposed, entry=self.adapter.step, copied=copied
        ).outputs

    def takes_one_token(self) -> None:
        """Raises Unreachable where the implementation takes no single token: the problem was moved
        into its domain, and a decode kernel is called with one token alone.
        """
        if getattr(self.problem, "T", 1) != 1:
            raise Unreachable("it takes no single token")

    def run(
        self, inputs: TensorCall | None = None, *, copied: Callable[[Any], Any] = TensorCall.copied
    ) -> Tensors:
        """The outputs of one call, in the kernel's own memory."""
        return execute(
            self.adapter, self.inputs if inputs is None else inputs, self.exposed, copied=copied
        ).outputs

    def back(
        self,
        given: Any = None,
        inputs: TensorCall | None = None,
        *,
        copied: Callable[[Any], Any] = TensorCall.copied,
    ) -> Tensors:
        """The gradients of one call."""
        x = self.inputs if inputs is None else inputs
        loss = self.cotangents if given is None else given
        return run_backward(self.adapter, x, loss, copied=copied)

    def judged(
        self, found: Mapping[str, Tensor], inputs: TensorCall | None = None
    ) -> list[Outcome]:
        """Outputs against the truth."""
        return outcomes(self.adapter, self.inputs if inputs is None else inputs, lambda: {**found})

    def judged_back(
        self, found: Mapping[str, Tensor], given: Any = None, inputs: TensorCall | None = None
    ) -> list[Outcome]:
        """Gradients against the exact ones of the case's loss and call, or of others."""
        loss, x = self.cotangents if given is None else given, inputs or self.inputs
        return judge_gradients(self.adapter, self.problem, x, loss, {**found})

    def direction(self, *, backward: bool) -> tuple[Callable[[], Tensors], Judge]:
        """How to call for outputs, or for gradients, and how to judge them."""
        return (self.back, self.judged_back) if backward else (self.run, self.judged)

    def repeats(
        self, plain: Mapping[str, Tensor], found: Mapping[str, Tensor], said: str
    ) -> list[Outcome]:
        """Outputs of two equal calls: the same bits; right ones where deterministic=False.

        Args:
            said: when `found` was found, in words.
        """
        if self.adapter.deterministic:
            return same_bits(plain, found, self.inputs, said)
        return same_or_right(plain, found, self.judged, said)

    def beside(self, **changed: object) -> Any:
        """The problem changed, inside the domain: whole chunks more where a kernel needs them.

        Raises:
            Unreachable: the implementation does not take it, or it lies outside its domain.
        """
        wanted = self.problem.replace(**changed)
        other = self.adapter.operator.within(self.adapter, wanted)
        reason = self.adapter.supports(wanted if other == self.problem else other)
        if reason:
            raise Unreachable(reason)
        return other

    def check_part(
        self, whole: TensorCall, cut: Callable[[str, Tensor], Tensor], reason: str
    ) -> None:
        """Checks that conventions leave this call as it is where it is part of a larger one.

        Args:
            cut: (name, tensor of the larger call) -> what is this call's, once or many times.
            reason: of `Unreachable`.
        Raises:
            Unreachable: the kernel receives other numbers there.
        """
        read, alone = self.adapter.received(whole), self.adapter.received(self.inputs)
        for name, x in self.inputs.signature.tensors(alone, Role.TOKEN, Role.STATE).items():
            part = cut(name, getattr(read, name))
            if not same(part.contiguous(), x.expand_as(part).contiguous()):
                raise Unreachable(reason)

    def other_keys(self) -> dict[str, CallRuleCase]:
        """Cases of the same shape in which rows see other keys, by what is other.

        Raises:
            Unreachable: the implementation takes none of them.
        """
        found, reasons = dict[str, CallRuleCase](), list[str]()
        for name, fields in self.adapter.operator.other_keys(self.problem).items():
            try:
                found[name] = replace(self, problem=self.beside(**fields))
            except Unreachable as reason:
                reasons.append(str(reason))
        if not found:
            raise Unreachable("; ".join(dict.fromkeys(reasons)) or "its rows see the same keys")
        return found

    def other_offsets(self) -> dict[str, Any]:
        """Fields of a pack of the same size whose sequences begin elsewhere.

        Raises:
            Unreachable: the problem is no pack.
        """
        found = self.adapter.operator.other_offsets(self.problem)
        if found is None:
            raise Unreachable("it takes no packs")
        return found


CallRuleCheck = Callable[[CallRuleCase], list[Outcome]]
