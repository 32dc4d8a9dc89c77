"""A design: a table of stages, and the mailboxes that its tensors pass through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from kdaverify.budgets.contract import Contract, contract_from_name
from kdaverify.budgets.emulate import Emulator
from kdaverify.budgets.formats import FORMATS, Format
from oracles.chunk import Stages
from oracles.chunk_backward import BACKWARD, BackwardStages

# The cost model of the designs: a fixed time for each transfer, and the bandwidth of what both
# cores reach.
TRANSFER_US, BYTES_A_US = 1.0, 100e3
KIB = 1024

Formats = Mapping[str, Format]
"""The format of every mailbox, by name."""


@dataclass(frozen=True)
class Mailbox:
    """A tensor that passes from one core to the other once a chunk.

    Args:
        name: under which the stages store it.
        rows, columns: of one matrix of one head.
        to: the core that reads it; a matrix core multiplies what it reads.
        transfer: number of the transfer that carries it; 0 where the design does not say.
        wide: whether it is kept in the accumulator's format, not in the operands'.
    """

    name: str
    rows: int
    columns: int
    to: Literal["cube", "vector"]
    transfer: int = 0
    wide: bool = False

    def bytes_in(self, fmt: Format) -> int:
        return self.rows * self.columns * fmt.dtype.itemsize


@dataclass(frozen=True)
class Design:
    """A kernel between two kinds of cores.

    Args:
        name: what `--pipeline` and `--impl emulated:NAME` call it.
        about: one line.
        stages, backward: what it computes.
        mailboxes: of the forward, in transfer order; backward_mailboxes: of the backward.
        kept: names that its stages store, and no mailbox carries.
        buffers: copies of each mailbox, so that a core can write while the other reads.
        factored: whether its decays are products of stored factors.
        square: whether it can only be run where K = V.
        gates: how many it takes: channel or head.
    """

    name: str
    about: str
    stages: Stages
    mailboxes: tuple[Mailbox, ...]
    backward_mailboxes: tuple[Mailbox, ...]
    kept: tuple[str, ...] = ()
    backward: BackwardStages = BACKWARD
    buffers: int = 1
    factored: bool = False
    square: bool = False
    gates: Literal["channel", "head"] = "channel"

    @property
    def every(self) -> tuple[Mailbox, ...]:
        return (*self.mailboxes, *self.backward_mailboxes)

    def formats(self, operands: Format, wide: Format = FORMATS["fp32"]) -> dict[str, Format]:
        """The formats that the design gives its mailboxes."""
        return {mailbox.name: wide if mailbox.wide else operands for mailbox in self.every}

    def contract(self, operands: Format, formats: Formats | None = None) -> Contract:
        """The design's arithmetic, or with other mailbox formats; operands are its core's."""
        narrow = operands.name in ("bf16", "fp16")
        factors = f"-{operands.name}factors" if self.factored and narrow else ""
        plain = contract_from_name(self.contract_name(f"{operands.name}{factors}"))
        stored = {**self.formats(operands, plain.accumulate), **(formats or {})}
        own = replace(
            plain,
            own=tuple(
                name
                for name in dict.fromkeys((*stored, *self.kept))
                if name not in plain.named_tensors
            ),
        )
        return own.storing(
            **{name: fmt for name, fmt in stored.items() if fmt != own.storage(name, operands)}
        )

    def contract_name(self, operands: str) -> str:
        """The contract of kernels that take its gates, with the operands named."""
        return f"chunk64-{operands}{'[decay:scalar]' if self.gates == 'head' else ''}"

    def emulator(self, operands: Format, formats: Formats | None = None) -> Emulator:
        return Emulator(
            self.name,
            self.contract(operands, formats),
            operands,
            stages=self.stages,
            backward=self.backward,
        )

    @property
    def transfers(self) -> int:
        return max(mailbox.transfer for mailbox in self.mailboxes)

    def bytes_moved(self, formats: Formats) -> int:
        """Bytes that the forward's mailboxes move for a chunk of one head, or a column block."""
        return sum(mailbox.bytes_in(formats[mailbox.name]) for mailbox in self.mailboxes)

    def microseconds(self, formats: Formats) -> float:
        """What the design's own model takes these transfers to cost."""
        return self.transfers * TRANSFER_US + self.bytes_moved(formats) / BYTES_A_US
