"""Where the Triton kernels of flash-linear-attention run, and which of them did."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import util
from typing import Final, Literal, Protocol

import torch

from kdaverify.adapters.base import WrongKernelError
from kdaverify.adapters.fla.options import FlaOptions
from kdaverify.adapters.triton_device import FIRST, spy
from kdaverify.adapters.triton_interpreter import kernels_missing

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
    return kernels_missing(("fla", "einops", "triton"), install, native=native(backend))


def fixed(backend: Backend) -> FlaOptions:
    """Options of implementations that take none: on a device, kernels are not tuned."""
    return FlaOptions(autotune=FIRST if native(backend) else None)


def runtime(backend: Backend, options: FlaOptions, dtype: torch.dtype) -> Runtime:
    """The device's own runtime, else the interpreter; to be called before package imports.

    Raises:
        WrongKernelError: the interpreter does not compute `dtype` as its definition says.
    """
    for name, value in SURROUNDINGS[backend].items():
        os.environ.setdefault(name, value)
    if native(backend):
        return spy(options.autotune)
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
