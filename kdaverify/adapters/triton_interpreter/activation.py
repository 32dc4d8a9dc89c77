"""Interpretation switched on, once per process."""

from __future__ import annotations

import os
import sys
from functools import cached_property
from typing import Final, Literal, get_args

from kdaverify.adapters.triton_interpreter import devices, language, launches, memo
from kdaverify.adapters.triton_interpreter.bfloat16 import Bfloat16
from kdaverify.adapters.triton_interpreter.dots import Dots
from kdaverify.adapters.triton_interpreter.installation import InterpreterError, missing
from kdaverify.adapters.triton_interpreter.launches import Launches, Settings
from kdaverify.adapters.triton_interpreter.loops import Loops
from kdaverify.adapters.triton_interpreter.operators import Operators
from kdaverify.adapters.triton_interpreter.reductions import Reductions

Backend = Literal["cuda", "npu"]
SWITCH: Final = "TRITON_INTERPRET"


class TritonInterpreter:
    """The process's interpreter: what to choose, and what ran.

    Args:
        backend: whose kernels the process runs.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._settings = Settings()
        self._launches = Launches()
        _install(backend, self._settings, self._launches)

    @property
    def autotune(self) -> int:
        """Which configuration autotuned kernels run; -1 is the last; kernels with fewer wrap."""
        return self._settings.autotune

    @autotune.setter
    def autotune(self, index: int) -> None:
        self._settings.autotune = index

    @property
    def tf32(self) -> bool:
        """Whether one-pass TF32 products round their fp32 operands."""
        return self._settings.tf32

    @tf32.setter
    def tf32(self, on: bool) -> None:
        if on and self.backend == "npu":
            raise InterpreterError(
                "tf32=True: TF32 is a format of NVIDIA's tensor cores, the backend is npu; leave it"
                " False"
            )
        self._settings.tf32 = on

    def kernels_run(self) -> tuple[str, ...]:
        """Module and name of every kernel launched since `forget`, in order of first launch."""
        return tuple(self._launches.kernels)

    def forget(self) -> None:
        """Starts a new list of kernels and choices."""
        self._launches.kernels.clear()
        self._launches.chosen.clear()

    def configurations(self) -> dict[str, tuple[str, ...]]:
        """The configurations that every autotuned kernel launched so far offered, by kernel."""
        return dict(self._launches.configurations)

    def chosen(self) -> dict[str, str]:
        """The configuration that every autotuned kernel ran with last, since the last `forget`."""
        return dict(self._launches.chosen)

    def self_test(self) -> dict[str, str | None]:
        """Every check of the interpreter's arithmetic: None, or its first difference to torch."""
        from kdaverify.adapters.triton_interpreter.self_test import self_test

        kept = dict(self._launches.kernels)
        try:
            return self_test()
        finally:  # its own kernels are nobody's
            self._launches.kernels = kept

    @cached_property
    def bf16(self) -> str | None:
        """None where bf16 is computed as torch does, or why bf16 verdicts are refused."""
        failed = [
            f"{name}: {difference}"
            for name, difference in self.self_test().items()
            if difference is not None
        ]
        if failed:
            return f"interpreted bf16 is not bf16 ({'; '.join(failed)}); judge fp32 or fp16"
        return None


_active: list[TritonInterpreter] = []


def activate(
    *, backend: Backend = "cuda", autotune: int = 0, tf32: bool = False
) -> TritonInterpreter:
    """Switches Triton to its interpreter and closes gaps; later calls return the same one.

    Call it before the kernels' package is imported.

    Args:
        backend: whose kernels the process runs; one per process.
        autotune: which configuration autotuned kernels run, -1 for the last.
        tf32: whether one-pass TF32 products round their fp32 operands.
    Raises:
        InterpreterError: Triton is absent, unfit, imported to compile, or of another backend.
    """
    if backend not in get_args(Backend):
        raise InterpreterError(
            f"backend: wanted one of {', '.join(get_args(Backend))}, got {backend!r}"
        )
    if not _active:
        _switch_on()
        _active.append(TritonInterpreter(backend))
    interpreter = _active[0]
    if interpreter.backend != backend:
        raise InterpreterError(
            f"this process interprets kernels for {interpreter.backend}, wanted {backend}: use one"
            " process for each"
        )
    interpreter.autotune, interpreter.tf32 = autotune, tf32
    return interpreter


def _switch_on() -> None:
    reason = missing()
    if reason is not None:
        raise InterpreterError(reason)
    if "triton" in sys.modules and os.environ.get(SWITCH) != "1":
        raise InterpreterError(
            f"triton was imported before interpretation was switched on: set {SWITCH}=1 first, or"
            " use a new process"
        )
    os.environ[SWITCH] = "1"


def _install(backend: Backend, settings: Settings, record: Launches) -> None:
    import triton.language as tl
    from triton.runtime import interpreter as module

    if not isinstance(tl.sum, module.InterpretedFunction):
        raise InterpreterError(
            f"triton was imported to compile, and {SWITCH} set since: use a new process"
        )
    memo.install(module, tl)
    language.patch_for_good(module, tl)
    language.take_floats_as_fp32(module, tl)
    language.take_any_extent(tl, backend)
    Operators(module, tl)
    Loops(module, tl)
    language.let_numbers_beat_nan(module)
    Dots(module, tl, Bfloat16(module, tl), settings)
    Reductions(module, tl)
    launches.choose_configurations(settings, record)
    launches.size_grids_by_arguments(module)
    launches.record_launches(module, record)
    devices.install(backend)
