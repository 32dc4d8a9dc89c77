"""The first head, sequence or token changes nothing, the others do: short cuts by a look at it.

Kernels leave out decays, writes or states where there are none, and look at the first of them to
see it. Problems sample heads and sequences of one kind, so that the first says what all are: a
kernel that read "no decay" off its first head was accepted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from torch import Tensor

from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome, first_wrong_or_all, placed
from oracles.signature import Role

AXES: Final = {"head": ("HV",), "sequence": ("B", "N"), "token": ("T",)}
"""By what is first: the letters of its axis."""


def _first_neutral(case: CallRuleCase) -> list[Outcome]:
    """The outcomes of the first call that is wrong, or else of all."""
    neutral = _neutral(case)
    return first_wrong_or_all(
        placed(
            _neutral_along(case, neutral, letters),
            f"\n  the first {said} has {', '.join(neutral)} of 0, the others have",
        )
        for said, letters in AXES.items()
    )


def _neutral_along(
    case: CallRuleCase, neutral: dict[str, Tensor], letters: tuple[str, ...]
) -> list[Outcome]:
    changed = {name: _without_first(case, name, x, letters) for name, x in neutral.items()}
    # a dataclass each
    there: Any = replace(case.inputs, **changed)
    return case.judged(case.run(there), there)


def _neutral(case: CallRuleCase) -> dict[str, Tensor]:
    """The inputs of which 0 changes nothing, by name.

    Raises:
        Unreachable: the kernel takes no 0 of any.
    """
    adapter, x = case.adapter, case.inputs
    takes_0 = {
        "g": adapter.domain.gate_range[1] >= 0 and adapter.domain.gates != "none",
        "beta": adapter.conventions.beta == "value",
    }
    signature = x.signature
    tensors = signature.tensors(x, Role.TOKEN, Role.STATE)
    states = {*signature.names(Role.STATE)}
    found = {name: y for name, y in tensors.items() if takes_0.get(name, name in states)}
    if not found:
        raise Unreachable("it takes neither gates, betas nor states of 0")
    return found


def _without_first(
    case: CallRuleCase, name: str, tensor: Tensor, letters: tuple[str, ...]
) -> Tensor:
    axes = case.inputs.signature[name].axes
    axis = next((place for place, letter in enumerate(axes) if letter in letters), None)
    if axis is None:
        return tensor
    changed = tensor.clone()
    changed.select(axis, 0).zero_()
    return changed


RULES: Final = (
    CallRule("first-neutral", "outputs are exact where gates, betas and states of the first head,"
             " sequence or token alone are 0", "decays, writes or states left out for all where the"
             " first head has none", _first_neutral, size="tails", packed=False, sequences=True,
             delta=True, spare=False, costly=True, once=True),
)  # fmt: skip
