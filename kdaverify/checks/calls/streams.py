"""A kernel runs on the stream that is current, after what was queued there."""

from __future__ import annotations

import torch

from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome
from oracles.signature import TensorCall

CYCLES = 20_000_000
"""What the inputs wait for: some ten milliseconds."""


def _on_a_stream(case: CallRuleCase) -> list[Outcome]:
    if case.adapter.device != "cuda":
        raise Unreachable("streams are those of CUDA")
    there = case.inputs.on("cuda")
    plain = case.run(there)
    stream = torch.cuda.Stream()

    def late(x: TensorCall) -> TensorCall:
        # the function that keeps a stream busy has no public name
        sleep = torch.cuda._sleep  # pyright: ignore[reportPrivateUsage] # noqa: SLF001
        sleep(CYCLES)
        return x.copied()

    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        found = case.run(there, copied=late)
    torch.cuda.synchronize()
    return same_or_right(
        {n: x.cpu() for n, x in plain.items()},
        {n: x.cpu() for n, x in found.items()},
        case.judged,
        "on a stream of its own",
    )


RULES = (
    CallRule(
        "other-stream",
        "inputs that are made late, on a stream that is not the default one",
        "launches on the default stream",
        _on_a_stream,
        costly=True,
        inside=True,
    ),
)
