"""A real bug of an attention kernel: where it was reported, on which calls it shows, its patch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kdaverify.faults.attention.kernel import AttentionPatch

Op = Literal["mla_decode", "attention", "merge_state"]
Stage = Literal[
    "gather", "dequant", "scores", "partial", "combine", "lse", "delta", "dq", "dkv", "call"
]
EVERY = ("fp32", "bf16", "fp16")


@dataclass(frozen=True)
class AttentionFault:
    """One bug.

    Args:
        id: as in the survey of real faults.
        title: what is wrong, in a few words.
        reference: repository and issue.
        op: the operator of the kernel that has it.
        trigger: on which calls it shows.
        outputs: what it changes there; "call" where it breaks a rule of calls.
        stage: where in the pipeline it sits.
        make: its patch; called once for each implementation, so what it keeps between calls is
            kept in a closure.
        dtypes: of the problems it can be tested on.
    """

    id: str
    title: str
    reference: str
    op: Op
    trigger: str
    outputs: tuple[str, ...]
    stage: Stage
    make: Callable[[], AttentionPatch]
    dtypes: tuple[str, ...] = EVERY
