"""Which Triton the interpreter needs, found out without importing it."""

from __future__ import annotations

from importlib import metadata, util
from typing import Final

from kdaverify.adapters.base import absent

OLDEST: Final = (3, 7)
FIRST_WITHOUT: Final = (3, 9)
WANTED: Final = (
    "Triton 3.7 or 3.8 (3.6 cannot read scalars of numpy 2.4, 3.9 has no block pointers)"
)
COMMAND: Final = "pip install 'triton>=3.7.1,<3.9'"


class InterpreterError(RuntimeError):
    """Triton's interpreter cannot run in this process; the message says why and what to do."""


def missing() -> str | None:
    """Why kernels cannot be interpreted here, and the remedy; None if they can. Imports nothing."""
    if util.find_spec("triton") is None:
        return f"triton not installed: {COMMAND}"
    try:
        return unfit(metadata.version("triton"))
    except metadata.PackageNotFoundError:
        return (
            f"the module triton is not from the distribution triton (a fork?); wanted {WANTED}:"
            f" {COMMAND}"
        )


def kernels_missing(modules: tuple[str, ...], install: str, *, native: bool) -> str | None:
    """Why a package's Triton kernels can run neither natively nor interpreted; None if they can.

    Args:
        modules: what has to be installed.
        install: the command that brings it.
        native: whether the device that they are for is here.
    """
    lacking = absent(modules, install)
    return lacking if lacking or native else missing()


def unfit(version: str) -> str | None:
    """Why Triton `version` does not do; None if it does."""
    if OLDEST <= _series(version) < FIRST_WITHOUT:
        return None
    return f"Triton {version} found, wanted {WANTED}: {COMMAND}"


def _series(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in version.split(".")[:2])
