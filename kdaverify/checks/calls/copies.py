"""Many copies of one small call in one: sizes beyond every limit of a launch, at the price of the
kernel alone.

What a batch of a thousand equal sequences returns is what one of them does, whose exact values cost
little. Kernels that loaded states by one block of 1,024 threads, kept offsets in 16 bits or numbers
of key heads in a byte were accepted: no other problem of smoke has as many of anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import is_interpreted
from kdaverify.checks.calls.autograd import SECOND, recorded, two_backwards, unconverted
from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.calls.case import CallRuleCase, CallRuleCheck, Tensors, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome
from oracles.signature import Role

STATE: Final = 2**20
"""Numbers of all states of a step: 64 heads of 128 x 128. A port that updated as many in place was
accepted: the states that it was given are those of requests that may be rolled back."""
REAL_WIDTH: Final = 64
ENTRIES: Final = 1100
"""Sequences times heads of a batch: more than the 1,024 threads of a block."""
PACKED: Final = 33_000
"""Tokens of a pack: more than 16 bits with a sign count."""
SEQUENCES: Final = 540
"""Of a pack whose gradients are taken: more than a table of 512 holds."""
ROWS: Final = 17_000
"""Tokens times heads of a batch whose gradients are taken: more than 2^14, 2^16 elements of q."""
FEWER: Final = 152
"""Tokens times heads: some of 132 programs, one for each multiprocessor of an H100, have two of
them and the others none. A gated norm added up what those had left of a larger call."""
MORE: Final = 27 * FEWER
"""Of the larger call: every program has some."""
IN_A_ROW_TOKENS: Final = 66_000
"""Of one sequence: more than 16 bits count, and than a launch of 8,192 holds. Models are given
128,000 and more; a port that numbered tokens in 16 bits was accepted at 33,000."""
ALIGNED: Final = 3 * 128
"""Tokens of a copy in a row: whole chunks, so that each is cut into them as it is alone, and no
divisor of a launch, so that launches begin inside copies. Where copies began anywhere, a right
kernel that reads its state in bf16 at every chunk was at 3.8 times the tolerance."""
RESET: Final = -200.0
"""A gate that leaves nothing in fp32, 1e-87 in fp64, and whose sums are rounded far less than those
of -1e4."""
CHANGED: Final = "its conventions change each copy in another way"
WIDE: Final = {"H": 260, "D": 8800}
"""Key heads are more than a byte counts, channels of a convolution more than 8 for each thread."""


@dataclass(frozen=True)
class Copies:
    """A call, and one that holds it many times.

    Args:
        case: of the small call.
        number: of copies.
        axes: along which they lie, by letters of math.md 1.
        many: the large call.
    """

    case: CallRuleCase
    number: int
    axes: frozenset[str]
    many: Any

    @classmethod
    def of(cls, case: CallRuleCase, number: int, axes: frozenset[str]) -> Copies:
        """The copies of a case's call.

        Raises:
            Unreachable: the kernel takes no call as large, or its operator has none.
        """
        if is_interpreted(case.adapter):
            raise Unreachable(f"an interpreter would take minutes over {number:,} copies")
        small = case.inputs
        _check_no_keys(case)
        large = case.beside(**_fields(case.problem, number, axes)).inputs()
        found = cls(case, number, axes, large)
        repeated = {
            name: found.repeated(name, tensor)
            for name, tensor in small.signature.tensors(
                small, Role.TOKEN, Role.STATE, Role.PARAMETER
            ).items()
        }
        wanted = small.signature.tensors(large, Role.TOKEN, Role.STATE, Role.PARAMETER)
        if {name: x.shape for name, x in repeated.items()} != {
            name: x.shape for name, x in wanted.items()
        }:
            raise Unreachable(f"it takes no call of {number:,} copies")
        many = replace(large, **repeated)
        # Raw gates have parameters of each head, and every copy's are rounded in another way.
        case.check_part(many, found.split, CHANGED)
        return replace(found, many=many)

    def _axis(self, name: str) -> int | None:
        """Of a tensor: where copies lie side by side, None where all have the same."""
        axes = self.case.inputs.signature[name].axes
        return next((place for place, letter in enumerate(axes) if letter in self.axes), None)

    def repeated(self, name: str, tensor: Tensor) -> Tensor:
        """An input of all copies."""
        axis = self._axis(name)
        if axis is None:
            return tensor
        return torch.cat([tensor * sign for sign in self._signs(name).tolist()], axis)

    def _signs(self, name: str) -> Tensor:
        """What each copy multiplies a tensor by, so that no two are taken for each other."""
        chance = torch.Generator().manual_seed(0)
        found = torch.ones(self.number)
        for names in self.case.adapter.operator.odd:
            flipped = 1.0 - 2.0 * torch.randint(2, (self.number,), generator=chance)
            flipped[[0, -1]] = 1.0
            found = found * flipped if name in names else found
        return found

    def split(self, name: str, tensor: Tensor) -> Tensor:
        """A result of the large call by copies, [copies, ...]."""
        axis = self._axis(name)
        if axis is None:
            return tensor[None]
        copies = tensor.unflatten(axis, (self.number, -1)).movedim(axis, 0)
        return copies * self._signs(name).to(copies).view(-1, *[1] * (copies.ndim - 1))

    def with_one(self, name: str, tensor: Tensor, place: int, one: Tensor) -> Tensor:
        """A tensor of the large call with another copy in one place."""
        axis = self._axis(name)
        if axis is None:
            return tensor
        parts = [*tensor.chunk(self.number, axis)]
        parts[place] = one.to(tensor) * float(self._signs(name)[place])
        return torch.cat(parts, axis)

    def last(self, found: Tensors) -> Tensors:
        return {name: self.split(name, x)[-1].contiguous() for name, x in found.items()}

    def judged(self, found: Tensors) -> list[Outcome]:
        """Of each output the copy that differs most from the first, against the exact values."""
        copies = {name: self.split(name, x) for name, x in found.items()}
        places = {name: farthest(x) for name, x in copies.items()}
        own = {name: x[places[name]].contiguous() for name, x in copies.items()}
        return [
            replace(outcome, message=f"{outcome.message}\n  {self._said(places[outcome.output])}")
            if outcome.status.rejects and outcome.output in places
            else outcome
            for outcome in self.case.judged(own)
        ]

    def checked(self) -> list[Outcome]:
        """Those of a call."""
        return self.judged(self.case.run(self.many))

    def checked_back(self) -> list[Outcome]:
        """Those of the gradients of the last copy."""
        return self.case.judged_back(self.last(self.case.back(self.loss(), self.many)))

    def _said(self, place: int) -> str:
        return (
            f"of {self.number:,} equal copies in one call, along {self._letters}, copy {place:,} is"
            " the one farthest from the first"
        )

    @property
    def _letters(self) -> str:
        return " and ".join(sorted(self.axes))

    def loss(self) -> Any:
        """The cotangents of the last copy, 0 of all others: gradients of parameters are its own."""
        return self.case.loss_of(
            {name: self._behind_zeros(name, dy) for name, dy in self.case.given.items()}
        )

    def every_loss(self) -> Any:
        """The cotangents of every copy."""
        return self.case.loss_of(
            {name: self.repeated(name, dy) for name, dy in self.case.given.items()}
        )

    def _behind_zeros(self, name: str, dy: Tensor) -> Tensor:
        axis = self._axis(name)
        return torch.cat([*[torch.zeros_like(dy)] * (self.number - 1), dy], axis or 0)


def wide_axis(case: CallRuleCase) -> str:
    """The axis of which a call can have any number: key heads or channels.

    Raises:
        Unreachable: it has neither, or its operator has copies of its own.
    """
    _check_no_keys(case)
    axis = next(_present(case.problem, frozenset(WIDE)), None)
    if axis is None:
        raise Unreachable("it has neither heads nor channels")
    return axis


def _check_no_keys(case: CallRuleCase) -> None:
    if case.adapter.operator.has_keys:
        raise Unreachable("it has copies of its own")


def farthest(copies: Tensor) -> int:
    """Which copy differs most from the first."""
    # NaN is farther than any number.
    apart = (copies - copies[:1]).double().abs().nan_to_num(nan=torch.inf)
    return int(apart.flatten(1).amax(1).argmax()) if apart.numel() else 0


def _fields(problem: Any, number: int, axes: frozenset[str]) -> dict[str, Any]:
    """What a problem of so many copies has of its own."""
    if "T" in axes:
        lengths = {} if problem.lengths is None else {"lengths": problem.lengths * number}
        return {"T": problem.T * number, **lengths}
    return {name: getattr(problem, name) * number for name in _present(problem, axes)}


def _present(problem: Any, axes: frozenset[str]) -> Iterator[str]:
    return (name for name in type(problem).model_fields if name in axes)


BATCH: Final = frozenset({"B", "N"})
PACK: Final = frozenset({"T", "N"})
HEADS: Final = frozenset({"H", "HV"})


def _number(case: CallRuleCase, wanted: int, *fields: str) -> int:
    """How many copies have so many of a product of sizes."""
    return -(-wanted // math.prod(getattr(case.problem, name, 1) for name in fields))


def _batch(case: CallRuleCase) -> Copies:
    one = _of_odd_size(case, "B")
    return Copies.of(one, _number(one, ENTRIES, "B", "HV"), BATCH)


def _of_odd_size(case: CallRuleCase, *fields: str) -> CallRuleCase:
    """The case with an odd size along the axes of its copies, where the kernel takes one.

    A program whose first channel is a multiple of 4,096, or whose first sequence is one of 1,024,
    reads what it should where it reads from the start, if copies repeat every 8 or 4.
    """
    _check_no_keys(case)
    problem = case.problem
    sizes = {name: getattr(problem, name) | 1 for name in fields if hasattr(problem, name)}
    if "H" in sizes and hasattr(problem, "HV"):
        sizes["HV"] = problem.HV // problem.H * sizes["H"]
    try:
        return replace(case, problem=case.beside(**sizes))
    except Unreachable:
        return case


def _of_tokens(case: CallRuleCase, wanted: int) -> Copies:
    """Batches of so many tokens with their value heads, or heads where all are one kind."""
    heads = "HV" if hasattr(case.problem, "HV") else "H"
    return Copies.of(case, _number(case, wanted, "B", "T", heads), BATCH)


def _long_batch(case: CallRuleCase) -> Copies:
    return _of_tokens(_of_odd_size(case, "B"), ROWS)


def _pack(case: CallRuleCase) -> Copies:
    one = _of_odd_pack(case)
    return Copies.of(one, _number(one, PACKED, "T"), PACK)


def _short_pack(case: CallRuleCase) -> Copies:
    one = _of_odd_pack(case)
    return Copies.of(one, -(-SEQUENCES // len(one.problem.lengths)), PACK)


def _of_odd_pack(case: CallRuleCase) -> CallRuleCase:
    """The case with an odd number of sequences, for what `_of_odd_size` says."""
    lengths = case.problem.lengths
    if lengths is None:
        raise Unreachable("it takes no packs")
    if len(lengths) % 2:
        return case
    more = max(lengths)
    fields = {"lengths": (*lengths, more), "T": case.problem.T + more}
    return replace(case, problem=case.beside(**fields))


def _wide(case: CallRuleCase) -> Copies:
    axis = wide_axis(case)
    one = _of_odd_size(case, axis)
    return Copies.of(one, _number(one, WIDE[axis], axis), frozenset({axis, "HV"}))


def _large_state(case: CallRuleCase) -> Copies:
    """Copies of one token whose states have a million numbers together."""
    width = max(case.adapter.widths, default=REAL_WIDTH)
    one = replace(case, problem=case.beside(K=width, V=width, B=1))
    problem = one.problem
    return Copies.of(one, -(-STATE // (problem.HV * problem.K * problem.V)), BATCH)


Make = Callable[[CallRuleCase], Copies]


def _forward(make: Make) -> CallRuleCheck:
    def check(case: CallRuleCase) -> list[Outcome]:
        return make(case).checked()

    return check


def _stepped(make: Make) -> CallRuleCheck:
    def check(case: CallRuleCase) -> list[Outcome]:
        case.takes_one_token()
        copies = make(case)
        return copies.judged(copies.case.step(copies.many))

    return check


def _backward(make: Make) -> CallRuleCheck:
    def check(case: CallRuleCase) -> list[Outcome]:
        return make(case).checked_back()

    return check


def _in_a_row(case: CallRuleCase) -> list[Outcome]:
    """One sequence of copies, each of which begins with a reset."""
    if "g" not in case.inputs.signature.names(Role.TOKEN) or case.adapter.domain.gates == "none":
        raise Unreachable("it takes no gates that clear the state")
    if case.adapter.domain.gate_range[0] > RESET:
        raise Unreachable(f"it takes no gate of {RESET:g}, which clears the state")
    one = replace(case, problem=case.beside(state="absent", B=1, T=ALIGNED, gate="log-sigmoid"))
    x = one.inputs
    g = x.g.clone()
    g[:, 0] = RESET
    # the exact values are of this call: what the first reset clears is a state of 0
    one.__dict__["inputs"] = replace(x, g=g)
    return Copies.of(one, _number(one, IN_A_ROW_TOKENS, "T"), frozenset({"T"})).checked()


def _after_more(case: CallRuleCase) -> list[Outcome]:
    fewer, more = (_of_tokens(_of_odd_size(case, "B"), tokens) for tokens in (FEWER, MORE))
    fewer.case.run(more.many)
    return fewer.checked()


def _after_more_backward(case: CallRuleCase) -> list[Outcome]:
    fewer, more = (_of_tokens(_of_odd_size(case, "B"), tokens) for tokens in (FEWER, MORE))
    fewer.case.back(more.every_loss(), more.many)
    return fewer.checked_back()


def _twice(case: CallRuleCase) -> list[Outcome]:
    # What is found in the process of an isolated kernel is judged elsewhere, for the case itself.
    copies = _of_tokens(case, ROWS)
    call = recorded(case, unconverted(case), copies.many)
    before, after = map(copies.last, two_backwards(case, call, copies.loss()))
    return same_or_right(before, after, case.judged_back, SECOND)


_rule = partial(CallRule, packed=False, spare=False, costly=True, once=True)
RULES: Final = (
    _rule("copies", f"each of equal sequences, {ENTRIES:,} with their heads, returns what one does"
          " alone", "states or rows of one block of threads, sizes kept in a byte",
          _forward(_batch)),
    _rule("copies-packed", f"the same of copies of a pack, {PACKED:,} tokens in all",
          "offsets or numbers of sequences in 8 or 16 bits, tables of 512 sequences",
          _forward(_pack), size="tails", packed=True, sequences=True),
    _rule("copies-step", "the same of equal sequences at the decode entry point",
          "rounds of graphs of at most 256 sequences", _stepped(_batch), size="one",
          sequences=True, decode=True),
    _rule("copies-heads", f"each of equal groups of heads, {WIDE['H']} in all, or of channels,"
          f" {WIDE['D']:,} in all, returns what one does alone",
          "numbers of heads in a byte, channels of one block of threads", _forward(_wide)),
    _rule("copies-heads-step", "the same at the decode entry point",
          "channels of one block of threads", _stepped(_wide), size="one", sequences=True,
          decode=True),
    _rule("copies-backward", f"each of equal sequences, {ROWS:,} tokens with their heads, has the"
          " gradients that one has alone",
          "checkpoints or partial sums of another size for large calls", _backward(_long_batch),
          size="tails", backward=True),
    _rule("copies-packed-backward", f"the same of copies of a pack, {SEQUENCES} sequences in all",
          "numbers of sequences in a byte, tables of 512 of them", _backward(_short_pack),
          packed=True, sequences=True, backward=True),
    _rule("copies-heads-backward", "the same of groups of heads, or of channels",
          "sums over the heads of one block alone", _backward(_wide), backward=True),
)  # fmt: skip
TWICE: Final = (
    _rule("copies-backward-twice",
          f"a second backward of a call of {ROWS:,} tokens with their heads gives the same"
          " gradients",
          "saved tensors of a large call whose memory the gradients take", _twice, size="tails",
          inside=True, backward=True),
)  # fmt: skip
AFTER_MORE: Final = (
    _rule("copies-after-more", f"each of equal sequences, {FEWER} tokens with their heads, returns"
          f" what one does alone, also after a call of {MORE:,}",
          "work spaces of a larger call that are not written in full", _after_more, size="tails"),
    _rule("copies-after-more-backward", "the same of all gradients",
          "partial sums of programs of a larger call, which have no rows now",
          _after_more_backward, size="tails", backward=True),
)  # fmt: skip
IN_A_ROW: Final = (
    _rule("copies-in-a-row", f"each of copies in one sequence of {IN_A_ROW_TOKENS:,} tokens and"
          " more, between which resets clear the state, returns what one does alone",
          "a second launch for tokens past 8,192, which starts from the given state", _in_a_row,
          size="tails", sequences=True, delta=True),
)  # fmt: skip
OF_LARGE_STATES: Final = (
    _rule("copies-large-step", "each of equal sequences, whose states have a million numbers, has"
          " what one has alone at the decode entry point, and keeps the state that it is given",
          "large states updated where they lie", _stepped(_large_state), size="one",
          sequences=True, decode=True, delta=True),
)  # fmt: skip
