"""Kernels that every harness should reject, and conforming ones that none should: each gives o and
S_T of a call under chunk64-bf16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.emulate import RESIDUAL, Emulator, merge_blocks
from kdaverify.budgets.formats import FORMATS
from oracles.chunk import STAGES, Chunk, Stage
from oracles.inputs import Inputs

CONTRACT: Final = contract_from_name("chunk64-bf16")
IO: Final = FORMATS["bf16"]
PLAIN: Final = Emulator("plain", CONTRACT, IO)
Kernel = Callable[[Inputs], tuple[Tensor, Tensor]]


def backwards(a: Tensor, b: Tensor) -> Tensor:
    """A dot product summed in 16 partial sums, last first: conforming, and in no ensemble."""
    parts = min(a.shape[-1], 16)
    total = torch.zeros((), dtype=a.dtype)
    for left, right in reversed(
        list(zip(a.tensor_split(parts, dim=-1), b.tensor_split(parts, dim=-2), strict=True))
    ):
        total = total + left @ right
    return total


def staged(**patched: Stage) -> Kernel:
    """The baseline reference kernel with some stages replaced."""
    return replace(PLAIN, stages=replace(STAGES, **patched)).run


def doubling(fmt: str) -> Stage:
    """The inverse as a product of powers, all in one format: right on keys that hardly overlap,
    nonsense on coherent ones.
    """
    low = FORMATS[fmt].round

    def solve(c: Chunk) -> None:
        power, identity = low(-c.Akk), torch.eye(c.Akk.shape[-1], dtype=c.Akk.dtype)
        inverse = identity + power
        for _ in range(5):
            power = low(power @ power)
            inverse = low(inverse @ (identity + power))
        c.R = c.store("R", inverse)

    return solve


def _last_gate_dropped(c: Chunk) -> None:
    STAGES.cumsum(c)
    c.G = (
        torch.cat((c.G[..., :-1, :], c.G[..., -2:-1, :]), dim=-2)
        if c.G.shape[-2] > 1
        else torch.zeros_like(c.G)
    )


def _history_cut(c: Chunk) -> None:
    c.S = torch.zeros_like(c.S)
    STAGES.state(c)


def _changed(change: Callable[[Tensor], Tensor], *, o_alone: bool = False) -> Kernel:
    def kernel(x: Inputs) -> tuple[Tensor, Tensor]:
        o, final = PLAIN.run(x)
        return change(o), final if o_alone else change(final)

    return kernel


def _token_zeroed(o: Tensor) -> Tensor:
    return torch.cat((o[:, :60], torch.zeros_like(o[:, 60:61]), o[:, 61:]), dim=1)


def _sign_flipped(y: Tensor) -> Tensor:
    at = y.abs().argmax()
    return torch.where(torch.arange(y.numel()).view(y.shape) == at, -y, y) if y.numel() else y


BROKEN: Final[Mapping[str, Kernel]] = {
    "zeros": _changed(torch.zeros_like),
    "scaled by 1.02": _changed(lambda y: 1.02 * y),
    "beta ignored": lambda x: PLAIN.run(replace(x, beta=torch.ones_like(x.beta))),
    "last gate dropped": staged(cumsum=_last_gate_dropped),
    "history cut at 64": staged(state=_history_cut),
    "one token zeroed": _changed(_token_zeroed, o_alone=True),
    "one sign flipped": _changed(_sign_flipped, o_alone=True),
    "state in bf16": replace(PLAIN, contract=contract_from_name("chunk64-bf16-bf16carry")).run,
    "doubling inverse, bf16": staged(solve=doubling("bf16")),
    "doubling inverse, fp16": staged(solve=doubling("fp16")),
}
CONFORMING: Final[Mapping[str, Kernel]] = {
    "plain": PLAIN.run,
    "sums taken backwards": replace(PLAIN, dot=backwards).run,
    "residual form": replace(PLAIN, stages=RESIDUAL).run,
    "solve by blocks": staged(solve=merge_blocks),
    "chunks of 32": replace(PLAIN, contract=replace(CONTRACT, chunk_size=32)).run,
}
