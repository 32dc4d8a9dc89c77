"""Many copies of a small problem in one call: each has what the small problem has by itself.

Work spaces, grids and indices have limits (1,024 programs, 8,192 elements a block, ids of 16 bits)
that products of sizes pass, not sizes. Exact values of a call of that size take minutes; those of
the small problem are known once. Its entries differ, and their number is odd, so that an index that
is cut to some bits is that of another entry.

The gradient of what all copies share is the sum of theirs: in 16 bits it has one rounding, as that
of the small problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import is_interpreted
from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.calls.case import CallRuleCase, Tensors, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome, first_wrong_or_all, placed, rejected
from oracles.signature import Role, TensorCall

SHORT: Final = (torch.bfloat16, torch.float16)
FEWER: Final = 4
"""By which the copies of a call after the large one are divided: a work space that it does not
write in full has what the large one left."""


@dataclass(frozen=True)
class ManyCopies:
    """A small problem, and how copies of it are put together.

    Args:
        said: what there are many of, in words.
        base: fields of the small problem, beside those of a problem of rules.
        sizes: fields of the whole, from a small problem.
        axes: of inputs, outputs and gradients that the copies follow each other on; others are all
            of one copy.
        count: how many.
        packed: whether the small problem is a pack; where a function takes none it is another.
        native: whether they are about the limits of a grid, which no interpreter has. JAX's copies
            all outputs for every program: its time grows with their square.
        joined: (small call, call of the copies) -> the call with whatever is not on those axes.
    """

    said: str
    base: Mapping[str, Any]
    sizes: Callable[[Any, int], Mapping[str, Any]]
    axes: Mapping[str, int]
    count: int
    packed: bool = False
    native: bool = False
    joined: Callable[[Any, Any], Any] = field(default=lambda _, whole: whole)

    def whole(self, call: TensorCall) -> Any:
        """The call of all copies."""
        own: Any = call
        made = {name: self.repeated(name, x) for name, x in call.tensors().items()}
        made |= {name: _after(x, self.count) for name, x in _offsets(call).items()}
        return self.joined(call, replace(own, **made))

    def repeated(self, name: str, tensor: Tensor) -> Tensor:
        if name not in self.axes:
            return tensor
        return torch.cat([tensor] * self.count, self.axes[name])

    def parts(self, found: Tensors) -> Tensors:
        """[count, ...] What each copy has of outputs, or gradients.

        Of a sum over copies all have the same part. One in fp32 is left out: its additions are
        rounded as often as there are copies.
        """
        shared = {n: x for n, x in found.items() if n not in self.axes and x.dtype in SHORT}
        own = {n: x for n, x in found.items() if n in self.axes}
        return {
            **{n: self._split(x, self.axes[n]) for n, x in own.items()},
            **{n: (x.float() / self.count).expand(self.count, *x.shape) for n, x in shared.items()},
        }

    def _split(self, tensor: Tensor, axis: int) -> Tensor:
        return tensor.unflatten(axis, (self.count, -1)).movedim(axis, 0)


def _offsets(call: TensorCall) -> Mapping[str, Tensor]:
    return call.signature.tensors(call, Role.OFFSETS)


def _after(offsets: Tensor, count: int) -> Tensor:
    lengths = offsets.diff().repeat(count)
    return torch.cat((offsets[:1], lengths.cumsum(0))).to(offsets.dtype)


def _copies(case: CallRuleCase, *, backward: bool = False) -> list[Outcome]:
    reasons = list[str]()
    found = first_wrong_or_all(
        placed(_of_copies(small, one, backward=backward), f", of {one.said}")
        for small, one in _taken(case, reasons)
    )
    if not found:
        raise Unreachable("; ".join(dict.fromkeys(reasons)) or "no copies of it are one call")
    return found


def _taken(case: CallRuleCase, reasons: list[str]) -> Iterator[tuple[CallRuleCase, ManyCopies]]:
    """The small problems whose copies the kernel takes; `reasons` gets why it takes no others."""
    for one in case.adapter.operator.copies():
        if one.native and is_interpreted(case.adapter):
            reasons.append(
                f"{one.said}: an interpreter has no limit of programs, and takes minutes"
            )
            continue
        try:
            small = replace(case, problem=case.beside(**one.base))
        except Unreachable as reason:
            reasons.append(str(reason))
            continue
        if small.problem.packed != one.packed:
            reasons.append(f"{one.said}: it takes no {'packs' if one.packed else 'batches'}")
            continue
        whole = small.problem.replace(**one.sizes(small.problem, one.count))
        reason = case.adapter.supports(whole)
        if reason:
            reasons.append(reason)
            continue
        yield small, one


def _of_copies(small: CallRuleCase, one: ManyCopies, *, backward: bool) -> list[Outcome]:
    """Those of all copies, and then of fewer."""
    call, judge = small.direction(backward=backward)
    plain = call()
    found = judge(plain)
    for count in (one.count, one.count // FEWER):
        if rejected(found):
            break
        found = _beside(small, replace(one, count=count), plain, backward=backward)
    return found


def _beside(
    small: CallRuleCase, one: ManyCopies, plain: Tensors, *, backward: bool
) -> list[Outcome]:
    """The copy that differs most from the call of the small problem."""
    whole = one.whole(small.inputs)
    if backward:
        given = {name: one.repeated(name, dy) for name, dy in small.loss_on(whole.device).items()}
        found = small.back(small.loss_of(given), whole)
    else:
        found = small.run(whole)
    parts = one.parts(found)
    worst = _worst(plain, {name: part for name, part in parts.items() if name in one.axes})
    beside = {name: x for name, x in plain.items() if name in parts}
    copy = {name: part[worst].contiguous() for name, part in parts.items()}
    _, judge = small.direction(backward=backward)
    return same_or_right(beside, copy, judge, f"in copy {worst} of {one.count}, of {one.said}")


def _worst(plain: Tensors, parts: Tensors) -> int:
    """The copy that differs most from the call of the small problem."""
    far = list[Tensor]()
    for name, part in parts.items():
        own = plain[name].double()
        gap = (part.double() - own).flatten(1)
        gap = torch.where(part.double().flatten(1) == own.flatten(), 0.0, gap.abs())
        size = own[torch.isfinite(own)].abs()
        largest = float(size.max()) if size.numel() else 0.0
        far.append((gap / (largest or 1.0)).nan_to_num(torch.inf, torch.inf).amax(1))
    return int(torch.stack(far).amax(0).argmax())


_EXPOSES: Final = (
    "limits of grids, work spaces and indices that products of sizes pass: 1,024 programs, 8,192"
    " elements, 8 or 16 bits"
)
_rule = partial(CallRule, exposes=_EXPOSES, copies=True, spare=False, costly=True)
RULES: Final = (
    _rule("many-copies", "many copies of a small problem in one call have what it has by itself,"
          " and so has a quarter of them in the next call", check=_copies),
    _rule("many-copies-backward", "the same of all gradients",
          check=partial(_copies, backward=True), backward=True, rounded=True),
)  # fmt: skip
