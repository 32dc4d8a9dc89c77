"""What a worker gets: once what the campaign is, then case after case."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from kdaverify.campaign.suite_tests import PropertyTest
from kdaverify.limits import Limits
from kdaverify.verdicts.verdict import Verdict

Key: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True)
class Orders:
    """What holds for every case.

    Args:
        specs: how the user named each implementation, by its name.
        profile: decides how expensive a random problem may be.
        seed: of the random cases.
        folder: where the user stands: paths in `specs` are relative to it.
        isolate: whether kernels run in processes of their own; None leaves it to each.
        limits: of those.
    """

    specs: Mapping[str, str]
    profile: str
    seed: int
    folder: str
    isolate: bool | None = None
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Random:
    """Case `number` of the campaign."""

    implementation: str
    number: int

    @property
    def key(self) -> Key:
        return self.implementation, self.number


@dataclass(frozen=True)
class Fixed:
    """A case that is not random."""

    implementation: str
    test: PropertyTest

    @property
    def key(self) -> Key:
        return self.implementation, self.test.property, self.test.problem, self.test.detail


@dataclass(frozen=True)
class Smaller:
    """Case `number`, made smaller as long as `output` is rejected with `status`."""

    implementation: str
    number: int
    output: str
    status: str

    @property
    def key(self) -> Key:
        return self.implementation, self.number, self.output, self.status


@dataclass(frozen=True)
class Named:
    """A rejected case, of which is said what is wrong with the kernel.

    Args:
        row: its verdict as JSON.
        seconds: that this may take.
    """

    implementation: str
    row: str
    seconds: float

    @property
    def key(self) -> Key:
        return self.implementation, self.row


Task: TypeAlias = Random | Fixed | Smaller | Named


@dataclass(frozen=True)
class TaskResult:
    """What a worker says of a task.

    Args:
        rows: verdicts as JSON.
        trouble: what went wrong in the harness instead; "" where nothing did.
    """

    rows: tuple[str, ...] = ()
    trouble: str = ""

    def verdicts(self) -> list[Verdict]:
        return [Verdict.model_validate_json(row) for row in self.rows]


def key_of(verdict: Verdict) -> Key:
    """The key of the task that a recorded verdict answers."""
    if verdict.number is not None:
        return verdict.implementation, verdict.number
    return (
        verdict.implementation,
        verdict.property,
        verdict.problem,
        json.dumps(verdict.detail, sort_keys=True),
    )
