"""Calling `recurrent_kda`, which writes into a pool of states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Output
from kdaverify.adapters.conventions import Conventions
from kdaverify.adapters.handover import Handover
from kdaverify.problems import TORCH
from oracles.inputs import Inputs
from oracles.tensors import TOKENS

KEY_WIDTH: Final = 128
VALUE_WIDTHS: Final = (128, 256)
MOST_TOKENS: Final = 8
GUARD: Final = 7.0
"""What the slots that no sequence owns are filled with."""


class StatePoolError(RuntimeError):
    """A kernel wrote into a slot of its state pool that no sequence owns."""


def limit(inputs: Inputs) -> str | None:
    """Why the operator cannot take a call, or None."""
    if inputs.q.dtype != TORCH["bf16"]:
        return f"recurrent_kda takes bf16 only, got {inputs.q.dtype}"
    if inputs.K != KEY_WIDTH or inputs.V not in VALUE_WIDTHS:
        return f"recurrent_kda takes K = 128 and V = 128 or 256, got K = {inputs.K}, V = {inputs.V}"
    if inputs.cu_seqlens is not None or inputs.T > MOST_TOKENS:
        return (
            f"recurrent_kda is called for dense steps of at most {MOST_TOKENS} tokens, got"
            f" {inputs.lengths}"
        )
    return None


@dataclass(frozen=True)
class RecurrentCall:
    """How the operator is called: BSND, on a private pool with guards around every slot.

    Args:
        function: the vendor's.
        state: order of the states said to the operator, kv or vk. Its documentation and its code
            differ on the default.
        conventions: in which the tensors are really handed over and taken back.
    """

    function: Callable[..., Any]
    state: str
    conventions: Conventions

    def __call__(self, inputs: Inputs) -> Output:
        handed = self.conventions.arguments(inputs)
        handover = Handover(self.conventions, inputs, handed)
        o, pool = self.answer(inputs, handed)
        return handover.output(o, pool)

    def raw(self, inputs: Inputs) -> tuple[Any, Any]:
        """What the operator returns for a call, as it lies in memory."""
        return self.answer(inputs, self.conventions.arguments(inputs))

    def answer(self, inputs: Inputs, handed: dict[str, Any]) -> tuple[Any, Tensor]:
        """o, and the states out of the pool.

        Raises:
            StatePoolError: a guard changed.
        """
        start = handed["initial_state"]
        if start is None:
            start = self.conventions.hand("initial_state", inputs.state, inputs)
        pool = _pool(start)
        slots = 1 + 2 * torch.arange(inputs.N, dtype=torch.int32, device=pool.device)
        o, _ = self.function(
            *(handed[name] for name in TOKENS),
            pool,
            cu_seqlens=torch.arange(inputs.B + 1, dtype=torch.int32, device=pool.device) * inputs.T,
            ssm_state_indices=slots.repeat_interleave(inputs.T),
            layout="BSND",
            scale=handed["scale"],
            output_final_state=True,
            inplace_final_state=True,
            state_v_first=self.state == "vk",
        )
        _check_guards(pool)
        return o, pool[1::2].clone()


def _pool(start: Tensor) -> Tensor:
    """A slot for every state, at the odd indices, and a guard before, between and after them."""
    pool = start.new_full((2 * len(start) + 1, *start.shape[1:]), GUARD)
    pool[1::2] = start
    return pool


def _check_guards(pool: Tensor) -> None:
    touched = [2 * i for i, slot in enumerate(pool[::2]) if not bool((slot == GUARD).all())]
    if touched:
        raise StatePoolError(
            f"recurrent_kda: wanted only the slots of the call written, but slots {touched} of"
            f" {len(pool)} changed too"
        )
