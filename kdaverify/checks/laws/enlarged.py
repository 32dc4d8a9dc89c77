"""Laws of calls made larger by channels of zeros, or by tokens that change nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from kdaverify.adapters.base import Adapter
from kdaverify.checks.execute import CallError, execute
from kdaverify.checks.laws.law import Law, ends_excluded
from kdaverify.checks.outcome import Outcome, outcomes
from kdaverify.checks.status import Status
from kdaverify.problems import Problem
from oracles.inputs import Inputs
from oracles.tensors import TOKENS


def padded_keys(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 12. The scale stays that of the narrower keys; the gates of the other channels are
    those of the first ones again.
    """
    own, K = problem.inputs(), problem.K
    q, k = (pad(x, (0, K)) for x in (own.q, own.k))
    state = None if own.initial_state is None else pad(own.initial_state, (0, 0, 0, K))
    g = own.g.repeat(1, 1, 1, 2) if problem.gates == "channel" else own.g
    wide = replace(own, q=q, k=k, g=g, initial_state=state, scale=own.factor)

    def produce() -> dict[str, Tensor]:
        found = execute(adapter, wide, adapter.exposes(problem)).outputs
        if "final_state" not in found:
            return found
        S_T = found["final_state"]
        return {
            **found,
            "final_state": empty(
                "final_state",
                S_T[..., :K, :],
                S_T[..., K:, :],
                "rows of the state that no key writes",
            ),
        }

    return outcomes(adapter, own, produce)


def empty(name: str, used: Tensor, unused: Tensor, what: str) -> Tensor:
    """`used`, where the rest is exactly 0.

    Raises:
        CallError: it is not.
    """
    wrong = int((unused != 0).sum())
    if wrong:
        raise CallError(
            Status.FAIL, name, f"{name}: {wrong} of {unused.numel()} elements are not 0: {what}"
        )
    return used


PADDED_KEYS: Final = Law(
    name="padded-keys",
    statement="as many key channels of zeros again: the same o and S_T, and rows of exactly 0",
    section="7, law 12",
    exists_for=(
        "sums over channels in tiles: a tile left out, taken twice, or a scale by the width of"
        " memory"
    ),
    check=padded_keys,
    becomes=lambda problem: (
        problem.replace(K=2 * problem.K, scale=problem.scale or problem.K**-0.5),
    ),
    judged=True,
)


def padded_values(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 12."""
    own, V = problem.inputs(), problem.V
    state = None if own.initial_state is None else pad(own.initial_state, (0, V))
    wide = replace(own, v=pad(own.v, (0, V)), initial_state=state)

    def produce() -> dict[str, Tensor]:
        found = execute(adapter, wide, adapter.exposes(problem)).outputs
        return {
            name: empty(name, x[..., :V], x[..., V:], "columns that no value writes")
            for name, x in found.items()
        }

    return outcomes(adapter, own, produce)


PADDED_VALUES: Final = Law(
    name="padded-values",
    statement="as many value columns of zeros again: the same o and S_T, and columns of exactly 0",
    section="7, law 12",
    exists_for="tiles of columns: scrambled, swapped, stale, or dependent on the width (SO5)",
    check=padded_values,
    becomes=lambda problem: (problem.replace(V=2 * problem.V),),
    judged=True,
)


APPENDED: Final = 17
"""More than a row of a tile, so that they end in another one."""


def appended_tokens(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: section 2 with beta = 0 and g = 0;
    queries, keys and values are those of the first tokens again.
    """
    own = problem.inputs()
    longer = _appended(own)

    def produce() -> dict[str, Tensor]:
        found = execute(adapter, longer, adapter.exposes(problem)).outputs
        return {name: x[:, : problem.T] if name == "o" else x for name, x in found.items()}

    return outcomes(adapter, own, produce)


def _appended(own: Inputs) -> Inputs:
    again = torch.arange(own.T + APPENDED) % own.T
    idle = torch.arange(own.T + APPENDED) >= own.T
    moved = {name: getattr(own, name)[:, again] for name in TOKENS}
    g = moved["g"].masked_fill(idle[:, None, None], 0.0)
    beta = moved["beta"].masked_fill(idle[:, None], 0.0)
    return replace(own, **{**moved, "g": g, "beta": beta})


def _tested(problem: Problem) -> str | None:
    if problem.packed:
        return "tokens cannot be appended to every sequence of a pack"
    return ends_excluded(problem, gate=True, beta=True)


APPENDED_TOKENS: Final = Law(
    name="appended-tokens",
    statement="17 tokens of beta = 0 and g = 0 appended: the same o before them, the same S_T",
    section="7, law 14",
    exists_for=(
        "the end of a sequence: a partial chunk, its last gate, its tail of rows (H6, H7, DESIGN-b)"
    ),
    check=appended_tokens,
    untestable=_tested,
    becomes=lambda problem: (problem.replace(T=problem.T + APPENDED),),
    wanted={"packed": False},
    judged=True,
)
