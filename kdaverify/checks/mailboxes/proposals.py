"""The proposals made for the state kernel, P1 to P7, each judged by what it does to the numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.designs.catalogue import TRITON_NPU_STATE as KERNEL
from kdaverify.budgets.designs.design import BYTES_A_US, KIB, TRANSFER_US, Formats
from kdaverify.budgets.designs.state_kernel import ONLY_GATED
from kdaverify.budgets.emulate import Emulator
from kdaverify.budgets.formats import FORMATS, Format
from kdaverify.budgets.pipeline import run_form
from kdaverify.budgets.sums import one_by_one
from kdaverify.checks.mailboxes.bench import DesignTest, Trial
from kdaverify.checks.mailboxes.memory import Drift, Memory
from oracles.inputs import Inputs

JUDGEMENTS: Final = 10
"""How many `judge` gives: two readings of some, and two together."""

_OUTPUTS: Final = {"o": "o", "final_state": "S_T"}


@dataclass(frozen=True)
class Judgement:
    """What a proposal comes to.

    Args:
        name: P1 to P7, and which reading where there are two.
        proposes: in one line.
        saved: KiB of the 144 of a block.
        yes: whether it may be followed.
        because: in a few words.
        factors: by what rms errors grow at most over all regimes; 1 where no bit changes.
        share: the largest multiple of any tolerance; worst: of which regime and output.
        memory: the drift of the state; None where it was not run because no bit changes.
    """

    name: str
    proposes: str
    saved: float
    yes: bool = True
    because: str = "same bits"
    factors: dict[str, float] | None = None
    share: float | None = None
    worst: tuple[str, str, str] | None = None
    memory: Drift | None = None


def judge(bench: DesignTest) -> Iterator[Judgement]:
    """Judges the seven, one after the other.

    Args:
        bench: of the state kernel, its operands the 16-bit format proposed.
    """
    narrow, memory = bench.operands, Memory(bench.operands)
    plain, P1, P2 = KERNEL.emulator(narrow), {"residual": narrow}, {"S_delta": narrow}
    base = bench.trial_of(plain)

    def measured(
        name: str, proposes: str, emulator: Emulator, saved: float, over: Trial = base
    ) -> Judgement:
        return _measured(
            Judgement(name, proposes, saved), bench.trial_of(emulator), over, memory.drift(emulator)
        )

    yield measured(
        "P1", f"v - w h crosses in {narrow.name}", KERNEL.emulator(narrow, P1), _saved(narrow, P1)
    )
    yield measured(
        "P2",
        f"k^T v_new crosses in {narrow.name}, the state stays in fp32",
        KERNEL.emulator(narrow, P2),
        _saved(narrow, P2),
    )
    yield measured("P1 + P2", "both", KERNEL.emulator(narrow, P1 | P2), _saved(narrow, P1 | P2))
    master = replace(plain, contract=replace(plain.contract, carry=narrow))
    yield measured(
        "P2, as the master",
        f"the state that crosses in {narrow.name} is the one that goes on",
        master,
        _saved(narrow, P2),
    )
    yield from _gating(bench, measured)
    wide = bench.trial(KERNEL.formats(narrow) | {"h": FORMATS["fp32"]})
    yield measured(
        "P4",
        f"w h reads a {narrow.name} shadow of an fp32 state; against an fp32 one",
        plain,
        0.0,
        wide,
    )
    calls = bench.problems["ordinary"].inputs()
    yield _columns(calls, narrow)
    yield _snapshots(calls, narrow)
    yield _single_buffers(narrow)


def _measured(tested: Judgement, trial: Trial, base: Trial, memory: Drift) -> Judgement:
    """The judgement that the figures give: within every tolerance, and no drift."""
    overflows = list(
        dict.fromkeys(place[0] for place, share in trial.shares.items() if math.isinf(share))
    )
    because = "within every tolerance, no drift"
    if overflows:
        because = f"not finite: {', '.join(overflows)}"
    elif trial.share > 1:
        because = "over tolerance"
    elif not memory.within:
        because = "drifts"
    found = {
        "factors": _factors(trial, base),
        "share": trial.share,
        "worst": trial.worst,
        "memory": memory,
    }
    return replace(tested, yes=trial.share <= 1 and memory.within, because=because, **found)


def _factors(trial: Trial, base: Trial) -> dict[str, float]:
    """The largest growth of an rms error over all regimes: of o, of S_T, of any gradient."""
    largest: dict[str, float] = {}
    for place, factor in trial.growth(base).items():
        output = _OUTPUTS.get(place[1], "gradients")
        largest[output] = max(largest.get(output, 0.0), factor)
    return largest


def _gating(bench: DesignTest, measured: Callable[..., Judgement]) -> Iterator[Judgement]:
    """P3: v - w h never crosses; what the state takes is the same, what o takes need not be."""
    narrow = bench.operands
    calls = bench.problems["one-gate"].inputs()
    kept, fused = (KERNEL.emulator(narrow), replace(KERNEL.emulator(narrow), stages=ONLY_GATED))
    saved = _footprint(narrow)["residual"]
    same = torch.equal(kept.run(calls)[1], fused.run(calls)[1])
    because = (
        "S_T has the same bits: fp32 products lose nothing in an fp32 mailbox; o needs v_new from"
        " before the gate"
    )
    yield Judgement(
        "P3", f"only the gated v_new crosses, in {narrow.name}", saved, same, because, {"S_T": 1.0}
    )
    yield measured(
        "P3, o as well", "o divides the gate out of the v_new that crossed", fused, saved
    )


def _columns(calls: Inputs, narrow: Format) -> Judgement:
    """P5: columns of the state never meet in the forward."""
    kernel, half = replace(KERNEL.emulator(narrow), dot=one_by_one), calls.V // 2
    halves = [
        kernel.run(_of_columns(calls, columns))
        for columns in (slice(0, half), slice(half, calls.V))
    ]
    whole = kernel.run(calls)
    same = all(
        torch.equal(y, torch.cat(parts, dim=-1))
        for y, parts in zip(whole, zip(*halves, strict=True), strict=True)
    )
    moved = KERNEL.bytes_moved(KERNEL.formats(narrow))
    before, after = (
        blocks * KERNEL.transfers * TRANSFER_US + 2 * moved / BYTES_A_US for blocks in (2, 4)
    )
    because = (
        f"{_bits(same=same)}; per head and chunk {before:.1f} us of transfers become {after:.1f}"
    )
    return Judgement("P5", "BV = 32", sum(_footprint(narrow).values()) / 2, same, because)


def _of_columns(x: Inputs, columns: slice) -> Inputs:
    state = None if x.initial_state is None else x.initial_state[..., columns].contiguous()
    return replace(x, v=x.v[..., columns].contiguous(), initial_state=state)


def _snapshots(calls: Inputs, narrow: Format) -> Judgement:
    """P6: what is not kept is made again, from the same state and by the same operations."""
    kernel = KERNEL.emulator(narrow)
    kept, again = _snapshots_of(kernel, calls), _snapshots_of(kernel, calls)
    same = all(torch.equal(a, b) for a, b in zip(kept, again, strict=True))
    again_from = (
        f"a backward runs the forward again, from S_0 or an fp32 state: from a {narrow.name} h it"
        " drifts as P2's master"
    )
    because = f"{_bits(same=same)}; {again_from}"
    return Judgement("P6", "snapshots h and v_new on request", 0.0, same, because)


def _snapshots_of(kernel: Emulator, calls: Inputs) -> list[Tensor]:
    found: list[Tensor] = []

    def store(name: str, tensor: Tensor) -> Tensor:
        kept = kernel.store(name, tensor)
        if name in ("h", "v_gated"):
            found.append(kept)
        return kept

    arithmetic = replace(kernel.arithmetic, store=store)
    run_form(
        kernel.contract,
        calls,
        dtype=kernel.contract.work,
        arithmetic=arithmetic,
        stages=kernel.stages,
    )
    return found


def _single_buffers(narrow: Format) -> Judgement:
    """P7: no rounding depends on the number of copies of a mailbox."""
    microseconds = KERNEL.microseconds(KERNEL.formats(narrow))
    because = (
        f"same bits; the {microseconds:.1f} us of transfers of a chunk no longer hide behind the"
        " other core's work"
    )
    return Judgement(
        "P7",
        "single instead of double buffers",
        sum(_footprint(narrow).values()) / 2,
        because=because,
    )


def _bits(*, same: bool) -> str:
    return "same bits" if same else "other bits"


def _footprint(narrow: Format) -> dict[str, float]:
    """KiB of every mailbox of a block, its copies included."""
    formats = KERNEL.formats(narrow)
    return {
        mailbox.name: KERNEL.buffers * mailbox.bytes_in(formats[mailbox.name]) / KIB
        for mailbox in KERNEL.mailboxes
    }


def _saved(narrow: Format, formats: Formats) -> float:
    own, sizes = KERNEL.formats(narrow), _footprint(narrow)
    return sum(
        sizes[name] * (1 - fmt.dtype.itemsize / own[name].dtype.itemsize)
        for name, fmt in formats.items()
    )
