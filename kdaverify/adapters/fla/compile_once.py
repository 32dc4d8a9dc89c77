"""Every kernel is compiled by one process: the others wait for it and read it from Triton's cache.

Eighteen processes that begin with problems of the same widths compiled each of their kernels up to
eighteen times: rows of the covering array that shared 60 backward kernels took 25 s of a core each.
"""

from __future__ import annotations

import fcntl
import hashlib
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(tempfile.gettempdir()) / "kdaverify-compiling"


def compile_once() -> None:
    """Has the compiler of this process take turns with that of others, kernel by kernel; does
    nothing with a Triton that compiles elsewhere.
    """
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
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / hashlib.sha256(name.encode()).hexdigest()[:32]).open("w") as file:
        # closing the file, or the end of the process, gives the lock back
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
