"""Where the Triton kernels of flash-linear-attention run, and which of them did."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib import util
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import torch

from kdaverify.adapters.base import WrongKernelError, absent
from kdaverify.adapters.fla.options import FlaOptions

Backend = Literal["cuda", "npu"]

# Left to itself the package may hand a call over to FlashKDA, TileLang or another backend wherever
# one is installed.
SURROUNDINGS: Final[Mapping[Backend, Mapping[str, str]]] = {
    "cuda": {
        "FLA_DISABLE_BACKEND_DISPATCH": "1",
        "FLA_FLASH_KDA": "0",
        "FLA_TILELANG": "0",
        "FLA_INTRACARD_CP": "0",
    },
    "npu": {"FLA_FLASH_KDA": "0", "FLA_TILELANG": "0", "FLA_INTRACARD_CP": "0"},
}
ASCEND: Final = "fla.ops.kda.backends.triton_ascend."
MAINLINE: Final = "fla.ops.kda."
# The kernels that only this form has; in the safe and in the other way of the diagonal blocks.
OWN: Final = {
    "chunk": ("chunk_intra.", "chunk_intra_token_parallel."),
    "recurrent": ("fused_recurrent.",),
}

LAST: Final = -1
COMPILING: Final = Path(tempfile.gettempdir()) / "kdaverify-compiling"
"""Every kernel is compiled by one process, and the others read it from Triton's cache: eighteen
that begin with problems of the same widths compiled each of their kernels up to eighteen times,
and rows of the covering array that shared 60 backward kernels took 25 s of a core each."""


class Runtime(Protocol):
    """What launches kernels and remembers which."""

    def forget(self) -> None: ...
    def kernels_run(self) -> tuple[str, ...]: ...


def native(backend: Backend) -> bool:
    """Whether the device of a backend is here."""
    if backend == "cuda":
        return torch.cuda.is_available()
    if util.find_spec("torch_npu") is None:
        return False
    # registers torch.npu
    import torch_npu  # noqa: F401 # pyright: ignore[reportMissingImports, reportUnusedImport]

    # there once torch_npu is imported
    return bool(torch.npu.is_available())  # pyright: ignore[reportAttributeAccessIssue]


def missing(backend: Backend, install: str) -> str | None:
    """Why the package cannot run here, neither natively nor interpreted; None if it can.

    Args:
        install: the command that brings what is not installed.
    """
    lacking = absent(("fla", "einops", "triton"), install)
    if lacking or native(backend):
        return lacking
    from kdaverify.adapters.triton_interpreter import missing as interpreter_missing

    return interpreter_missing()


def runtime(backend: Backend, options: FlaOptions, dtype: torch.dtype) -> Runtime:
    """The device's own runtime, else the interpreter; to be called before package imports.

    Raises:
        WrongKernelError: the interpreter does not compute `dtype` as its definition says.
    """
    for name, value in SURROUNDINGS[backend].items():
        os.environ.setdefault(name, value)
    if native(backend):
        return _spy(options.autotune)
    from kdaverify.adapters.triton_interpreter import activate

    interpreter = activate(
        backend=backend,
        autotune=LAST if options.autotune is None else options.autotune,
        tf32=options.tf32 == "yes",
    )
    if dtype == torch.bfloat16 and interpreter.bf16 is not None:
        raise WrongKernelError(interpreter.bf16)
    return interpreter


def proof(runtime: Runtime, backend: Backend, form: str) -> str:
    """The kernels that ran, in words.

    Raises:
        WrongKernelError: the form's own kernels are not among them, or one of another backend is.
    """
    ran = runtime.kernels_run()
    refuse_others(ran, backend)
    wanted, home = OWN[form], _home(backend)
    if not any(name.startswith(tuple(home + part for part in wanted)) for name in ran):
        modules = " or ".join(home + part.rstrip(".") for part in wanted)
        raise WrongKernelError(f"wanted kernels of {modules}, ran {', '.join(ran) or 'none'}")
    return ", ".join(name.removeprefix("fla.ops.") for name in ran)


def refuse_others(ran: tuple[str, ...], backend: Backend) -> None:
    """Raises WrongKernelError where a kernel of another backend ran."""
    others = [
        name
        for name in ran
        if name.startswith(MAINLINE) and name.startswith(ASCEND) != (backend == "npu")
    ]
    if others:
        raise WrongKernelError(
            f"wanted the {backend} kernels of {_home(backend).rstrip('.')} alone, but"
            f" {', '.join(others)} ran too"
        )


def _home(backend: Backend) -> str:
    return ASCEND if backend == "npu" else MAINLINE


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
def _spy(autotune: int | None) -> Spy:
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
