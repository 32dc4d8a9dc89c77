"""Kernels whose carried state is in 16 bits, as autograd differentiates the casts of it.

Of `w @ S.float()`, `q @ S.float()` and `S.float() * decay` autograd rounds each gradient to the
format of S, and adds them up in it. Without such a kernel a right port of chunks of 16 whose state
is in bf16 was rejected for d_initial_state: an rms of 1.2 to 1.5 times its tolerance, and a bias of
2.9 times where terms of large cotangents cancel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from kdaverify.budgets.contract import Contract
from kdaverify.budgets.emulate import Emulator
from kdaverify.budgets.formats import Format
from kdaverify.budgets.solves import Dot
from oracles.chunk import Chunk, Stage


def cast_members(members: Sequence[Emulator], contract: Contract, io: Format) -> list[Emulator]:
    """Those of a token loop that rounds the gradient of the carried state after q do^T is added to
    it, and not before: automatic differentiation does, where the state is cast after every token.

    The two round differently where the terms cancel, or where one is far smaller. Without these a
    right port, its state in bf16, was rejected for a tail of dbeta at 9 times its tolerance (packs
    of single tokens).

    Args:
        members: reference kernels with a backward of their own.
    """
    narrow, wide = contract.storage("dS", io), contract.storage("P", io)
    if contract.form != "recurrent" or narrow.unit <= wide.unit:
        return []
    cast = contract.storing(P=narrow, dS=wide)
    return [
        replace(
            member, name=f"{member.name}, state's gradient cast after each token", contract=cast
        )
        for member in members
    ]


def casting_reads(plain: Emulator, contract: Contract, io: Format) -> list[Emulator]:
    """The kernel whose carried state is a tensor of its format, which every product that reads it
    casts, to be differentiated by autograd; none where the state, or its gradient, is declared as
    wide as sums.
    """
    wide = contract.accumulate.unit
    if contract.carry.unit <= wide or contract.storage("dS", io).unit <= wide:
        return []
    member = replace(
        plain,
        name="state cast by every product that reads it",
        dot=_casting(plain.dot, contract),
        stages=replace(plain.stages, state=_narrow_first(plain.stages.state, contract)),
        narrow_start=True,
        narrow_tensor=True,
    )
    return [member]


def _casting(dot: Dot, contract: Contract) -> Dot:
    work = contract.work

    def cast(a: Tensor, b: Tensor) -> Tensor:
        return dot(a.to(work), b.to(work))

    return cast


def _narrow_first(stage: Stage, contract: Contract) -> Stage:
    """The stage of the state, which an initial state reaches in the working type."""

    def state(c: Chunk) -> None:
        c.S = c.S.to(contract.carry.dtype)
        stage(c)

    return state
