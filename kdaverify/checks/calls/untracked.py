"""A call that autograd does not record returns what any other does: a server calls so.

Elsewhere gradients are enabled and no input requires one: a kernel that branches on whether they
are enabled takes the path of a server nowhere else.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

import torch

from kdaverify.checks.calls.autograd import in_inference_mode, recorded
from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.calls.case import CallRuleCase, Tensors, Unreachable
from kdaverify.checks.calls.lifetimes import edited, other_values
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome


def _without_gradients(case: CallRuleCase) -> Tensors:
    with torch.no_grad():
        return case.run()


def _untracked(case: CallRuleCase) -> list[Outcome]:
    return same_or_right(case.run(), _without_gradients(case), case.judged, "under no_grad")


_MODES: Final = {"under no_grad": _without_gradients, "in inference mode": in_inference_mode}


def _in_both_modes(case: CallRuleCase, of: str) -> list[Outcome]:
    plain = case.run()
    # The inputs are named: what is judged outside the kernel's process may be of another problem.
    judge = partial(case.judged, inputs=case.inputs)
    return [
        outcome
        for said, call in _MODES.items()
        for outcome in same_or_right(plain, call(case), judge, f"{of}, {said}")
    ]


def _edited(case: CallRuleCase) -> list[Outcome]:
    """In a mode after the other: a kernel may keep what it derived in either alone."""
    return [
        outcome
        for mode in (torch.no_grad, torch.inference_mode)
        for outcome in edited(case, other_values(case), mode)
    ]


def _several_chunks(case: CallRuleCase) -> list[Outcome]:
    found = _in_all_modes(case, "of several chunks") if case.problem.state != "absent" else []
    try:
        written = replace(case, problem=case.beside(state="absent", beta="one-write"))
    except Unreachable:
        return found
    return [*found, *_in_all_modes(written, "of several chunks, without a state")]


def _in_all_modes(case: CallRuleCase, of: str) -> list[Outcome]:
    found = _in_both_modes(case, of)
    if not case.adapter.differentiable:
        return found
    try:
        call = recorded(case, case.inputs.signature.gradients.values())
    except Unreachable:
        return found
    outputs = {name: output.detach() for name, output in call.outputs.items()}
    judge = partial(case.judged, inputs=case.inputs)
    return [*found, *same_or_right(case.run(), outputs, judge, f"{of}, while autograd records")]


def _chunks_of_packs(case: CallRuleCase) -> list[Outcome]:
    if case.problem.lengths is None:
        raise Unreachable("it takes no packs")
    return _several_chunks(case)


_rule = partial(CallRule, spare=False, costly=True, inside=True)
RULES: Final = (
    _rule("no-grad", "a call under no_grad returns what any other does", "a path of its own where"
          " no gradients are enabled", _untracked, size="tails"),
    _rule("no-grad-one-token", "the same of one token of each sequence, under no_grad and in"
          " inference mode", "a decode path behind the main entry point: it updates the given state"
          " in place, or skips the scale", partial(_in_both_modes, of="of one token"), size="one",
          packed=False, sequences=True),
    _rule("edited-values-no-grad", "all tensors overwritten in place are a new call under no_grad"
          " and in inference mode, too", "weights converted for a server, and kept by their"
          " address", _edited, size="tiny", channel="objects"),
)  # fmt: skip
_of_chunks = partial(_rule, size="chunks", sequences=True, delta=True, costly=False)
OF_CHUNKS: Final = (
    _of_chunks("no-grad-chunks", "the same of several chunks that hold a state, given or written"
               " once, and while autograd records",
               "a path for inference, or for training, that rounds the state between chunks, where"
               " others do not (S12, H12)", _several_chunks, packed=False),
)  # fmt: skip
"""Tested after all others, in every format: a format hides what is rounded to it."""
OF_PACKED_CHUNKS: Final = (
    _of_chunks("no-grad-chunks-packed", "a pack of several chunks returns the same in every mode",
               "states of chunks in 16 bits in a server's packs alone", _chunks_of_packs,
               once=True),
)  # fmt: skip
