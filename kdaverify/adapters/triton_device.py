"""Triton kernels on their device: which of them ran, in which configuration, compiled once.

A tuner times every configuration of a kernel for each new shape: 90 s with 8 workers on an H200
were over before the first case of vLLM's chunk kernels, or of FLA's convolution, was judged.
Wherever nobody chose a configuration, the first is run.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

FIRST: Final = 0
"""The configuration of kernels whose adapter has no option to choose one."""
COMPILING: Final = Path(tempfile.gettempdir()) / "kdaverify-compiling"
"""Every kernel is compiled by one process, and the others read it from Triton's cache: eighteen
that begin with problems of the same widths compiled each of their kernels up to eighteen times,
and rows of the covering array that shared 60 backward kernels took 25 s of a core each."""


class Spy:
    """Remembers every Triton kernel launched in this process.

    Args:
        autotune: every kernel's configuration; None leaves it to tuners, for the whole process.
    """

    def __init__(self, autotune: int | None) -> None:
        from triton.runtime.jit import JITFunction

        self._ran: dict[str, None] = {}
        if autotune is not None:
            from kdaverify.adapters.triton_interpreter import launches

            launches.choose_configurations(launches.Settings(autotune), launches.Launches())
        compile_once()
        launch, ran = JITFunction.run, self._ran

        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            ran[f"{self.fn.__module__}.{self.fn.__name__}"] = None
            return launch(self, *args, **kwargs)

        # it passes on whatever it is called with
        JITFunction.run = run  # pyright: ignore[reportAttributeAccessIssue]

    def forget(self) -> None:
        self._ran.clear()

    def kernels_run(self) -> tuple[str, ...]:
        return tuple(self._ran)


@functools.cache
def spy(autotune: int | None) -> Spy:
    """That of this process; see Spy."""
    return Spy(autotune)


def compile_once() -> None:
    """Makes compilers of processes take turns, kernel by kernel, where Triton compiles here."""
    from triton.runtime.jit import JITFunction

    compile_kernel: Any = getattr(JITFunction, "_do_compile", None)
    if compile_kernel is None:
        return

    def do_compile(self: Any, key: str, *args: Any, **kwargs: Any) -> Any:
        with turn(f"{self.fn.__module__}.{self.fn.__name__} {key}"):
            return compile_kernel(self, key, *args, **kwargs)

    # it passes on whatever it is called with
    JITFunction._do_compile = do_compile  # pyright: ignore[reportPrivateUsage] # noqa: SLF001


@contextmanager
def turn(name: str) -> Generator[None]:
    """While no other process is inside for the same name."""
    COMPILING.mkdir(exist_ok=True)
    with (COMPILING / hashlib.sha256(name.encode()).hexdigest()[:32]).open("w") as file:
        # closing the file, or the end of the process, gives the lock back
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
