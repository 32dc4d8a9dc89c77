"""Laws of the short convolution, each to the bit or within the bound of every element."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.checks.outcome import Outcome, first_wrong_or_last, skipped
from kdaverify.operators.relations import Tensors, exactly, relation, run, same
from oracles.pointwise.short_conv import ShortConvCall

MOST_STEPS: Final = 9
POWER: Final = 2.0**5


def _linear(problem: Any) -> str | None:
    if problem.activation == "none" and not problem.bias:
        return None
    return "it needs a call without activation and bias"


def _stateful(problem: Any) -> str | None:
    return None if problem.stateful and not problem.packed else "it needs a state, and no pack"


def _impulse(adapter: Adapter, problem: Any) -> list[Outcome]:
    """One token of ones: y is the weight, read backwards, and 0 everywhere else."""
    call, at = problem.inputs(), problem.T // 3
    x, wanted = torch.zeros_like(call.x), torch.zeros_like(call.x)
    x[:, at] = 1
    for back in range(min(problem.W, problem.T - at)):
        wanted[:, at + back] = call.weight[:, problem.W - 1 - back]
    given = replace(call, x=x, initial_state=None, cu_seqlens=None)
    return exactly(given, {"y": run(adapter, problem, given)["y"]}, {"y": wanted})


def _scaled(adapter: Adapter, problem: Any) -> list[Outcome]:
    call = problem.inputs()
    larger = replace(
        call,
        x=POWER * call.x,
        initial_state=None if call.initial_state is None else POWER * call.initial_state,
    )
    plain, found = run(adapter, problem, call), run(adapter, problem, larger)
    return exactly(larger, {"y": found["y"]}, {"y": POWER * plain["y"].double()})


def _part(call: ShortConvCall, first: int, end: int, state: Tensor | None) -> ShortConvCall:
    return replace(call, x=call.x[:, first:end].contiguous(), initial_state=state)


def _cut(
    adapter: Adapter, problem: Any, call: ShortConvCall, cuts: list[int], *, step: bool = False
) -> Tensors:
    """The call in parts, each from the state that the one before returned."""
    state, parts = call.initial_state, list[Tensor]()
    for first, end in zip((0, *cuts), (*cuts, problem.T), strict=True):
        found = run(adapter, problem, _part(call, first, end, state), step=step)
        parts.append(found["y"])
        state = found["final_state"]
    assert state is not None
    return {"y": torch.cat(parts, 1), "final_state": state}


def _returned(adapter: Adapter, problem: Any) -> str | None:
    return None if "final_state" in adapter.exposes(problem) else "it returns no state"


def _split(adapter: Adapter, problem: Any) -> list[Outcome]:
    if reason := _returned(adapter, problem):
        return skipped(reason)
    call = problem.inputs()
    cuts = sorted({1, problem.W - 2, problem.W - 1, problem.T // 2} & {*range(1, problem.T)})
    whole = _unread(run(adapter, problem, call))
    found = [
        same(
            adapter,
            call,
            _unread(_cut(adapter, problem, call, [cut])),
            whole,
            f"cut at token {cut}",
        )
        for cut in cuts
    ]
    return first_wrong_or_last(found) or skipped("too short")


def _decoded(adapter: Adapter, problem: Any) -> list[Outcome]:
    if reason := _returned(adapter, problem):
        return skipped(reason)
    problem = problem.replace(T=min(problem.T, MOST_STEPS))
    call = problem.inputs()
    stepped = _cut(adapter, problem, call, [*range(1, problem.T)], step=True)
    return same(
        adapter, call, _unread(stepped), _unread(run(adapter, problem, call)), "token by token"
    )


def _unread(found: Tensors) -> Tensors:
    """Column 0 of a state means nothing."""
    return {
        name: y.index_fill(-1, torch.tensor([0]), 0.0) if name == "final_state" else y
        for name, y in found.items()
    }


def _singles(adapter: Adapter, problem: Any) -> list[Outcome]:
    call, parts = problem.inputs(), list[Tensors]()
    for n, (first, length) in enumerate(call.spans):
        if length:
            state = (
                None if call.initial_state is None else call.initial_state[n : n + 1].contiguous()
            )
            alone = replace(
                call,
                x=call.x[:, first : first + length].contiguous(),
                initial_state=state,
                cu_seqlens=None,
            )
            parts.append(run(adapter, problem, alone))
    whole = run(adapter, problem, call)
    y = torch.cat([*(part["y"] for part in parts), whole["y"][:, sum(call.lengths) :]], 1)
    return same(adapter, call, {"y": y}, {"y": whole["y"]}, "for every sequence alone")


def _absent(adapter: Adapter, problem: Any) -> list[Outcome]:
    call = problem.inputs()
    fresh = replace(call, initial_state=None)
    zeros = replace(call, initial_state=torch.zeros_like(call.state))
    return same(
        adapter,
        fresh,
        _unread(run(adapter, problem, zeros)),
        _unread(run(adapter, problem, fresh)),
        "from a state of zeros",
    )


def _poisoned(adapter: Adapter, problem: Any) -> list[Outcome]:
    """NaN where nothing may be read: column 0 of the state, rows past the last offset."""
    call = problem.inputs()
    x, used = call.x.clone(), sum(call.lengths) if problem.packed else problem.T
    x[:, used:] = torch.nan
    if call.initial_state is None:
        state = None
    else:
        state = call.initial_state.index_fill(-1, torch.tensor([0]), torch.nan)
    found, plain = (
        _unread(run(adapter, problem, one))
        for one in (replace(call, x=x, initial_state=state), call)
    )
    return same(
        adapter, call, found, plain, "with NaN in column 0 of the state and past the last offset"
    )


def _channels(adapter: Adapter, problem: Any) -> list[Outcome]:
    call = problem.inputs()
    order = torch.arange(problem.D).flip(0)

    def flipped(tensor: Tensor | None, axis: int) -> Tensor | None:
        return None if tensor is None else tensor.index_select(axis, order)

    turned = {
        "x": flipped(call.x, 2),
        "weight": flipped(call.weight, 0),
        "bias": flipped(call.bias, 0),
    }
    found = run(
        adapter, problem, replace(call, **turned, initial_state=flipped(call.initial_state, 1))
    )  # pyright: ignore[reportArgumentType]
    back = {"y": found["y"].flip(2)} | (
        {"final_state": found["final_state"].flip(1)} if "final_state" in found else {}
    )
    return same(
        adapter,
        call,
        _unread(back),
        _unread(run(adapter, problem, call)),
        "with the channels in reversed order",
    )


def _later(adapter: Adapter, problem: Any) -> list[Outcome]:
    call, at = problem.inputs(), (problem.T + 1) // 2
    x = call.x.clone()
    x[:, at:] = 1 - 3 * x[:, at:]
    found, plain = (run(adapter, problem, one)["y"] for one in (replace(call, x=x), call))
    wrong = torch.cat((found[:, :at], plain[:, at:]), 1)
    return same(adapter, call, {"y": wrong}, {"y": plain}, "before tokens that were replaced")


LAWS: Final = {
    law.name: law
    for law in (
        relation("impulse",
                 "of one token of ones y is the weight read backwards, exactly, and 0 elsewhere",
                 "taps in another order, a window cut at the wrong end (C5)", _impulse,
                 untestable=_linear, activation="none", bias=False),
        relation("powers-of-two",
                 "without activation and bias, x and state times 2^5 give y times 2^5, exactly",
                 "clamps, thresholds, sums in a narrow format", _scaled, untestable=_linear,
                 activation="none", bias=False, value="normal"),
        relation("split",
                 "cut anywhere, with the state passed on, a call gives what it gives whole",
                 "states of outputs, of T < W - 1 tokens, of other columns (C6, C9, C14)", _split,
                 untestable=_stateful, state="random", lengths=None),
        relation("decode", "token by token a call gives what it gives whole",
                 "the decode entry point, slots of states (C6, C10)", _decoded,
                 untestable=_stateful, state="random", lengths=None),
        relation("singles", "sequences of a pack give what each gives alone",
                 "offsets, stale history of a neighbour (C4, C15, C23)", _singles,
                 untestable=lambda problem: None if problem.packed else "it needs a pack"),
        relation("absent-state", "no state is a state of zeros",
                 "slots that are read whatever has_initial_state says (C15)", _absent,
                 untestable=lambda problem: None if problem.stateful else "it takes no state",
                 state="random"),
        relation(
            "unread",
            "NaN in column 0 of the state and past the last offset changes nothing",
            "columns and rows read that nobody owns (C10)",
            _poisoned,
            untestable=lambda problem: (
                None if problem.stateful or problem.packed else "it takes neither states nor packs"
            ),
        ),
        relation("channels", "channels are independent and in any order",
                 "addresses across channels, tails of D", _channels),
        relation("later-tokens", "tokens replaced change nothing before them",
                 "windows that reach ahead (C5)", _later,
                 untestable=lambda problem: "it needs a batch" if problem.packed else None,
                 lengths=None),
    )
}  # fmt: skip
"""By name, those to the bit first."""
