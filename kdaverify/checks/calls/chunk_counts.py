"""Sequences of every number of chunks, from one on.

A backward makes states again from checkpoints that are some chunks apart, so that what it does goes
by the number of chunks: a port that was wrong where that is 1 modulo 6 was accepted. Of each chunk
two tokens are active. The others are neutral: they write nothing, decay nothing, and no loss
depends on them. What is left is a call of two tokens a chunk, whose exact values cost little;
kernels of such chunks hand over, and round, as many states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import is_interpreted
from kdaverify.budgets.formats import FORMATS
from kdaverify.checks.calls.case import CallRuleCase, Tensors, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome, held_at_fastest, judged
from oracles.signature import Role

MOST: Final = 16
"""Chunks of all sequences but those of MORE."""
MORE: Final = (17, 25, 33, 49)
"""One more than 16, 24, 32 and 48, whose divisors segments have. A port that kept a state every 24
chunks was accepted."""
ACTIVE: Final = 2
"""Tokens of each chunk that are not neutral, its last."""
SHORTER: Final = 5
"""By so many tokens every third sequence ends in a tail."""
UNDECLARED: Final = (16, 32)
"""Tokens that a recurrence may keep a state for, whose contract has no chunk: up to eight chunks of
64 are among those, and up to four of 128."""
FEWER: Final = 8
"""Chunks of the longest sequence of a kernel that takes no neutral tokens: exact values are of all
its tokens then."""
NO_NEUTRAL: Final = "its conventions have no token that changes nothing"
NEUTRAL: Final = ("g", "beta")
"""Inputs that are 0 where a token changes no state."""


@dataclass(frozen=True)
class LongSequence:
    """A sequence of some chunks, nearly all of whose tokens are neutral.

    Args:
        size: tokens of a chunk.
        chunks: how many it has, the last one with or without a tail.
        multiple: of which its length is one.
    """

    size: int
    chunks: int
    multiple: int

    @property
    def tokens(self) -> int:
        wanted = self.size * self.chunks - (0 if self.chunks % 3 else SHORTER)
        return -(-wanted // self.multiple) * self.multiple

    def active(self) -> Tensor:
        """The last tokens of each chunk."""
        ends = (torch.arange(1, self.chunks + 1) * self.size).clamp(max=self.tokens)
        return (ends[:, None] - torch.arange(ACTIVE, 0, -1)).flatten()


@dataclass(frozen=True)
class ActiveTokens:
    """Calls of long sequences, and the short pack that their active tokens are.

    Args:
        case: of the short pack.
        calls: of the long sequences: one pack, or one call each.
        places: rows of each call that are active.
    """

    case: CallRuleCase
    calls: tuple[Any, ...]
    places: tuple[Tensor, ...]

    @classmethod
    def of(cls, case: CallRuleCase) -> ActiveTokens:
        """The calls of a problem.

        Raises:
            Unreachable: the kernel takes no such sequences.
        """
        sequences = [*_sequences(case)]
        problems = [*_long(case, [one.tokens for one in sequences])]
        lengths = tuple(ACTIVE * one.chunks for one in sequences)
        short = problems[0].replace(B=1, lengths=lengths, T=sum(lengths))
        rows = [one.active() for one in sequences]
        if len(rows) > len(problems):
            starts = accumulate((one.tokens for one in sequences[:-1]), initial=0)
            rows = [torch.cat([x + start for x, start in zip(rows, starts, strict=True)])]
        places = tuple(rows)
        found = cls(replace(case, problem=short), (), places)
        return replace(found, calls=tuple(found._filled(problems)))

    def _filled(self, problems: list[Any]) -> Iterator[Any]:
        """The long calls, whose active tokens and whose states are those of the short pack."""
        x = self.case.inputs
        tokens, states = (x.signature.tensors(x, role) for role in (Role.TOKEN, Role.STATE))
        first = state = 0
        for problem, rows in zip(problems, self.places, strict=True):
            call = problem.inputs()
            own = {name: y.narrow(0, state, call.N) for name, y in states.items()}
            for name, y in call.signature.tensors(call, Role.TOKEN).items():
                own[name] = torch.zeros_like(y) if name in NEUTRAL else y.clone()
                own[name][:, rows] = tokens[name].narrow(1, first, len(rows))
            first, state = first + len(rows), state + call.N
            yield replace(call, **own)

    def received(self) -> Any:
        """What the kernel receives of the short pack.

        Raises:
            Unreachable: conventions make of a neutral token another.
        """
        long = [*map(self.case.adapter.received, self.calls)]
        for x, rows in zip(long, self.places, strict=True):
            passive = torch.ones(x.T, dtype=torch.bool).index_fill(0, rows, value=False)
            if any(bool(getattr(x, name)[:, passive].any()) for name in NEUTRAL):
                raise Unreachable(NO_NEUTRAL)
        # as it is there: conversions of logits round by where a row is
        short = self.case.adapter.received(self.case.inputs)
        tokens = short.signature.tensors(short, Role.TOKEN)
        return replace(
            short, **{name: self._joined(name, [getattr(x, name) for x in long]) for name in tokens}
        )

    def _joined(self, name: str, parts: list[Tensor]) -> Tensor:
        """A tensor of the short pack, from those of the long calls."""
        if self.case.inputs.signature.is_state(name):
            return torch.cat(parts)
        return torch.cat([x[:, rows] for x, rows in zip(parts, self.places, strict=True)], 1)

    def _all(self, found: list[Tensors]) -> Tensors:
        return {name: self._joined(name, [one[name] for one in found]) for name in found[0]}

    def _losses(self) -> Iterator[Any]:
        """The cotangents of each long call, 0 at neutral tokens."""
        signature, first, state = self.case.inputs.signature, 0, 0
        for call, rows in zip(self.calls, self.places, strict=True):
            given = dict[str, Tensor]()
            for name, dy in self.case.given.items():
                if signature.is_state(signature.cotangents[name]):
                    given[name] = dy.narrow(0, state, call.N)
                else:
                    given[name] = dy.new_zeros(dy.shape[0], call.T, *dy.shape[2:])
                    given[name][:, rows] = dy.narrow(1, first, len(rows))
            first, state = first + len(rows), state + call.N
            yield self.case.loss_of(given)

    def checked(self) -> list[Outcome]:
        """Those of outputs."""
        found = self._all([self.case.run(call) for call in self.calls])
        adapter, io = self.case.adapter, FORMATS[self.case.problem.dtype]
        contract = _in_active(adapter.contract(self.case.problem.dtype))
        return self._judged(
            found, contract, partial(adapter.operator.reference, contract=contract, io=io)
        )

    def checked_back(self) -> list[Outcome]:
        """Those of gradients."""
        pairs = zip(self._losses(), self.calls, strict=True)
        found = self._all([self.case.back(loss, call) for loss, call in pairs])
        adapter, io = self.case.adapter, FORMATS[self.case.problem.dtype]
        contract = _in_active(adapter.backward_contract(self.case.problem.dtype))
        loss = self.case.cotangents
        return self._judged(
            found,
            contract,
            partial(adapter.operator.gradient_reference, cotangents=loss, contract=contract, io=io),
        )

    def _judged(self, found: Tensors, contract: Any, hold: Any) -> list[Outcome]:
        received = self.received()
        return judged(found, received, lambda: held_at_fastest(received, contract, hold))


def _counted(case: CallRuleCase, *, backward: bool = False) -> list[Outcome]:
    if is_interpreted(case.adapter):
        raise Unreachable(f"an interpreter would take minutes over {MOST} chunks")
    domain = case.adapter.domain
    if domain.beta_range[0] <= 0 and domain.gate_range[1] >= 0:
        active = ActiveTokens.of(case)
        return active.checked_back() if backward else active.checked()
    lengths = [one.tokens for one in _sequences(case) if one.chunks <= FEWER]
    problems = [*_long(case, lengths)]
    if len(problems) > 1:
        raise Unreachable("it takes neither packs nor tokens that change nothing")
    call, judge = replace(case, problem=problems[0]).direction(backward=backward)
    return judge(call())


def _sequences(case: CallRuleCase) -> Iterator[LongSequence]:
    """One of each number of chunks, as long as the kernel takes."""
    contract, domain = case.adapter.backward_contract(case.problem.dtype), case.adapter.domain
    declared = max(_chunk(one) for one in (contract, contract.forward or contract))
    sizes, most = (declared,) if declared > 1 else UNDECLARED, MOST
    if declared == 1 and case.problem.lengths is None:
        if "jax" in case.adapter.environment():
            raise Unreachable("it declares no chunk, and is compiled for every length")
        sizes, most = UNDECLARED[-1:], FEWER
    least = 0
    for size in sizes:
        for chunks in (*range(1, most + 1), *(MORE if declared > 1 else ())):
            found = LongSequence(size, chunks, domain.length_multiple)
            if least < found.tokens <= (domain.longest or found.tokens):
                yield found
        least = most * size


def _chunk(contract: Any) -> int:
    """Tokens of a chunk; 1 of a recurrence."""
    return contract.chunk_size // contract.steps


def _long(case: CallRuleCase, lengths: Sequence[int]) -> Iterator[Any]:
    """Problems of these lengths: one pack, or a call each where it takes none."""
    fields = {"B": 1, "H": 1, "HV": 1, "gate": "log-sigmoid"}
    if case.problem.lengths is not None:
        yield case.beside(**fields, lengths=tuple(lengths), T=sum(lengths))
        return
    for length in lengths:
        yield case.beside(**fields, T=length)


def _in_active(contract: Any) -> Any:
    """The contract of a kernel whose chunks are the active tokens of one."""
    forward = None if contract.forward is None else _in_active(contract.forward)
    if contract.form == "recurrent":
        return replace(contract, forward=forward)
    return replace(contract, chunk_size=ACTIVE, forward=forward)


_rule = partial(CallRule, packed=True, sequences=True, delta=True, spare=False, costly=True,
                once=True)  # fmt: skip
RULES: Final = (
    _rule("chunk-counts", f"sequences of every number of chunks up to {MOST}, and of some up to"
          f" {MORE[-1]}, return what their tokens that change anything do alone",
          "launches, rings or segments that go by how many chunks there are",
          _counted),
    _rule("chunk-counts-backward", "the same of all gradients",
          "states made again from checkpoints some chunks apart, a last segment of one chunk",
          partial(_counted, backward=True), backward=True),
)  # fmt: skip
