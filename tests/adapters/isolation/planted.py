"""Kernels that take their process with them, and kernels that answer strangely; all of them
variants of one adapter.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch

import kdaverify as kv
from kdaverify.adapters.base import Adapter, AdapterError, Output, WrongKernelError
from kdaverify.adapters.conventions import Conventions
from kdaverify.budgets.contract import Contract, contract_from_name
from oracles.inputs import Inputs
from oracles.recurrence import recurrence
from tests.adapters.standins import standin
from tests.checks.test_execute import BAD, port

LIBC: Final = ctypes.CDLL(None)


def right(
    q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: Any, initial_state: Any, cu_seqlens: Any
) -> Any:
    o, final = recurrence(Inputs(q, k, v, g, beta, scale, initial_state, cu_seqlens))
    return o.to(q.dtype), final.to(g.dtype)


def first(act: Callable[[], object]) -> Adapter:
    """The right kernel, once it has survived `act`."""

    def call(
        q: Any,
        k: Any,
        v: Any,
        g: Any,
        beta: Any,
        *,
        scale: Any,
        initial_state: Any,
        cu_seqlens: Any,
    ) -> Any:
        act()
        return right(
            q, k, v, g, beta, scale=scale, initial_state=initial_state, cu_seqlens=cu_seqlens
        )

    declare = kv.kernel(
        name="planted",
        contract="recurrent-fp32",
        dtypes=("fp32", "bf16", "fp16"),
        packing="cu_seqlens",
    )
    return declare(call)


def segfault() -> None:
    ctypes.string_at(0)


def abort() -> None:
    LIBC.abort()


def abort_in_a_thread() -> None:
    thread = threading.Thread(target=abort)
    thread.start()
    thread.join()


def abort_after_the_answer() -> None:
    threading.Timer(0.05, abort).start()


def loop() -> None:
    while True:
        pass


def loop_in_native_code() -> None:
    sum(range(10**12))


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def print_and_exit() -> None:
    LIBC.puts(b"printed by native code")
    print("out of tiles", file=sys.stderr)  # noqa: T201
    LIBC.fflush(None)
    os._exit(4)


def hoard() -> None:
    """In steps so small that none is refused before the watcher sees what they come to,
    if the system refuses none.
    """
    hoarded: list[bytearray] = []
    while True:
        hoarded.append(bytearray(1 << 22))


def hang_up() -> None:
    # the connection has the number that it had in the harness, be it 3 or 300
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    time.sleep(60)


def wrong_kernel() -> None:
    raise WrongKernelError("the eager fallback ran")


def talk() -> None:
    """More than is kept, from Python and from native code, on both streams."""
    for _ in range(20):
        print("x" * 100_000)  # noqa: T201
        LIBC.write(2, b"y" * 1000, 1000)


def poisoned() -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def bad_alloc() -> None:
    LIBC.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n", 64)
    abort()


FAULTS: Final[Mapping[str, Callable[[], object]]] = {
    "segfault": segfault,
    "sys.exit": lambda: sys.exit(3),
    "os._exit": print_and_exit,
    "loop": loop,
    "loop in native code": loop_in_native_code,
    "stopped": stop,
    "numpy memory": lambda: np.ones(1 << 30),
    "torch memory": lambda: torch.ones(1 << 30),
    "hoard": hoard,
    "bad_alloc": bad_alloc,
    "abort": abort,
    "abort in a thread": abort_in_a_thread,
    "abort after the answer": abort_after_the_answer,
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "hangs up": hang_up,
    "poisoned": poisoned,
    "wrong kernel": wrong_kernel,
    "talks": talk,
    "raises": lambda: divmod(1, 0),
}


def strided(
    q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: Any, initial_state: Any, cu_seqlens: Any
) -> Any:
    """Returns what is right with gaps and turned around."""
    o, final = right(
        q, k, v, g, beta, scale=scale, initial_state=initial_state, cu_seqlens=cu_seqlens
    )
    gaps = torch.stack((o, o), dim=-1)[..., 0]
    return gaps, final.mT.contiguous().mT


class Canonical(Adapter):
    """Hands over the harness's own tensors, and returns whatever `answer` makes of them."""

    name = "planted"
    dtypes = ("fp64", "fp32", "bf16", "fp16")

    def __init__(self, answer: Callable[[Inputs], Any]) -> None:
        self._answer = answer

    def contract(self, dtype: str) -> Contract:
        return contract_from_name("recurrent-fp64" if dtype == "fp64" else "recurrent-fp32")

    def forward(self, inputs: Inputs) -> Output:
        return self._answer(inputs)

    def proof(self) -> str:
        return "planted"


def seen(inputs: Inputs) -> Output:
    """How the inputs lie in memory, and how many threads torch has."""
    return Output(
        torch.tensor([inputs.q.stride(), inputs.v.stride(), inputs.state.stride()]),
        torch.tensor(torch.get_num_threads()),
    )


def refuse(inputs: Inputs) -> Output:
    raise AdapterError(f"no compiler for {inputs.K} channels")


class Planted(Adapter):
    """The right kernel; every other one is a variant of it, so that one process holds them all."""

    name = "planted"
    dtypes = ("fp32", "bf16", "fp16")

    def __init__(self, case: str = "") -> None:
        self._kernel = first(lambda: None)
        self._case = case

    def contract(self, dtype: str) -> Contract:
        return self._kernel.contract(dtype)

    def forward(self, inputs: Inputs) -> Output:
        return self._kernel.forward(inputs)

    def proof(self) -> str:
        return f"{self._kernel.proof()} after {self._case}"

    def begin(self, case: str) -> None:
        self._case = case

    def variants(self) -> Mapping[str, Adapter]:
        return {
            **{name: first(act) for name, act in FAULTS.items()},
            **{name: port(change) for name, (change, _, _) in BAD.items()},
            "strided": kv.kernel(
                name="planted",
                contract="recurrent-fp32",
                dtypes=("fp32", "bf16", "fp16"),
                packing="cu_seqlens",
            )(strided),
            "echo": Canonical(lambda x: Output(x.v.clone(), x.state.clone())),
            "half a view": Canonical(lambda x: Output(x.v[:, :, 1:], x.state.clone())),
            "bits of a view": Canonical(lambda x: Output(x.v.view(torch.int32), x.state.clone())),
            "unspeakable": Unspeakable(lambda x: Output(x.v.clone(), x.state.clone())),
            "refuses": Canonical(refuse),
            "no output": Canonical(lambda x: (x.v.clone(), x.state.clone())),
            "a list": Canonical(lambda x: Output(x.v.tolist(), {"state": 1})),
            "seen": Canonical(seen),
            "elsewhere": Elsewhere(),
            "another convention": standin(Conventions(state="vk"), Conventions()),
        }


class Unspeakable(Canonical):
    """Dies when its environment is read."""

    def environment(self) -> dict[str, str]:
        os._exit(5)


class Elsewhere(Canonical):
    """A variant with an environment of its own."""

    def __init__(self) -> None:
        super().__init__(
            lambda x: Output(x.v.clone() * float(os.environ.get("PLANTED", "nan")), x.state.clone())
        )

    def surroundings(self) -> Mapping[str, str]:
        return {"PLANTED": "2"}


PLANTED: Final = Planted()
