"""Key channels of zeros: nothing changes, and their rows of the state stay exactly 0."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from torch import Tensor
from torch.nn.functional import pad

from kdaverify.adapters.base import Adapter
from kdaverify.checks.execute import CallError, execute
from kdaverify.checks.laws.law import Law
from kdaverify.checks.outcome import Outcome, outcomes
from kdaverify.checks.status import Status
from kdaverify.problems import Problem


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


def _wide(problem: Problem) -> tuple[Problem, ...]:
    return (problem.replace(K=2 * problem.K, scale=problem.scale or problem.K**-0.5),)


PADDED_KEYS: Final = Law(
    name="padded-keys",
    statement="as many key channels of zeros again: the same o and S_T, and rows of exactly 0",
    section="7, law 12",
    exists_for=(
        "sums over channels in tiles: a tile left out, taken twice, or a scale by the width of"
        " memory"
    ),
    check=padded_keys,
    becomes=_wide,
    judged=True,
)
