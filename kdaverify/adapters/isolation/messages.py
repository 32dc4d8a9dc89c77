"""What the harness and a worker process say to each other; tensors go through arenas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.conventions import Conventions
from kdaverify.adapters.isolation.arena import ArenaSlot
from kdaverify.adapters.isolation.encoded import EncodedOutput, NonTensor
from kdaverify.adapters.isolation.fault import Kind

Step = (
    tuple[Literal["variant"], str]
    | tuple[Literal["configuration"], str]
    | tuple[Literal["redeclared"], Conventions]
    | tuple[Literal["configured"], tuple[tuple[str, str], ...]]
)
Way = tuple[Step, ...]
"""From the adapter that the spec names to the one meant, step by step."""
Entry = Literal["forward", "step", "gradients"]


@dataclass(frozen=True)
class Start:
    """What a worker process is started with; everything but file descriptors as in the harness.

    Args:
        connection, inputs, outputs, stacks, heart: file descriptors.
        parent: process id of the harness.
        bytes: memory limit.
    """

    spec: str
    connection: int
    inputs: int
    outputs: int
    stacks: int
    heart: int
    parent: int
    bytes: int


@dataclass(frozen=True)
class Ready:
    """The adapter is found, and the process holds `resident` bytes of memory of its own."""

    resident: int


@dataclass(frozen=True)
class RunKernel:
    """Run the kernel.

    Args:
        way: to the adapter.
        case: number and name of the case, to be announced once.
        threads: of torch.
        places: of the inputs, and of the cotangents for gradients.
        numbers: of the call, beside its tensors.
        poisoned: whether fresh memory is to hold NaN.
    """

    way: Way
    entry: Entry
    case: tuple[int, str]
    threads: int
    places: Mapping[str, ArenaSlot]
    numbers: Mapping[str, Any]
    poisoned: bool


@dataclass(frozen=True)
class Returned:
    """The outputs of a call."""

    encoded: Mapping[str, EncodedOutput] | NonTensor


@dataclass(frozen=True)
class CallStage:
    """Run one of the kernel's stages.

    Args:
        way: to the adapter.
        dtype, stage: which of its stages.
        threads: of torch.
        places: of the inputs.
        tensors: places of what earlier stages wrote.
        numbers: of the call, beside its tensors.
        chunk_size: as in StageArguments.
    """

    way: Way
    dtype: str
    stage: str
    threads: int
    places: Mapping[str, ArenaSlot]
    tensors: Mapping[str, ArenaSlot]
    numbers: Mapping[str, Any]
    chunk_size: int


@dataclass(frozen=True)
class CallActivation:
    """Run one of the operations beside the kernel.

    Args:
        way: to the adapter.
        dtype, op: which of its operations.
        threads: of torch.
        places: of its tensors; with a cotangent among them it is run backward.
        setting: as in ActivationArguments.
    """

    way: Way
    dtype: str
    op: str
    threads: int
    places: Mapping[str, ArenaSlot]
    setting: float


@dataclass(frozen=True)
class RunInside:
    """Run a function of the harness beside the kernel.

    Args:
        way: to the adapter.
        case: as in Call.
        threads: of torch.
        function: of a module, with its arguments.
    """

    way: Way
    case: tuple[int, str]
    threads: int
    function: Callable[[Adapter], Any]


@dataclass(frozen=True)
class Pickled:
    """What such a function returned. Pickled here: the connection would pass tensors as shared
    memory that no file descriptor reaches.
    """

    value: bytes


@dataclass(frozen=True)
class StageReturned:
    """The tensors that a stage, or an operation beside the kernel, returned."""

    places: Mapping[str, ArenaSlot]


@dataclass(frozen=True)
class Failed:
    """A request without answer: a Fault, or what the adapter itself refused, or does not have."""

    kind: Kind | Literal["REFUSED", "FORWARD_ONLY"]
    message: str


@dataclass(frozen=True)
class ReportEnvironment:
    """Report what ran and with what."""

    way: Way


@dataclass(frozen=True)
class About:
    """proof() and environment() of an adapter."""

    proof: str
    environment: dict[str, Any]


Request = RunKernel | CallStage | CallActivation | RunInside | ReportEnvironment
Reply = Ready | Returned | Pickled | StageReturned | Failed | About
