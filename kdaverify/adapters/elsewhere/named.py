"""The implementation `elsewhere`: a kernel in another Python interpreter, named by options."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kdaverify.adapters.base import Adapter, AdapterError
from kdaverify.adapters.declaration import WORDS, declared
from kdaverify.adapters.elsewhere.adapter import Elsewhere, KernelLocation
from kdaverify.adapters.unconfigured import Unconfigured

NAME: Final = "elsewhere"
NEEDED: Final = ("python", "kernel")
FRAMEWORKS: Final = ("torch", "jax", "numpy")
OWN: Final = (*NEEDED, "framework", "step", "backward", "limit")
LIMIT: Final = "300"
NEEDS: Final = (
    "it needs to know where:"
    " elsewhere:python=/path/bin/python,kernel=/path/my_port.py:my_function,framework=jax"
)


def _at(options: Mapping[str, str]) -> Adapter:
    """The kernel by its options: python, kernel, framework, step, backward, limit, declaration.

    Raises:
        AdapterError: an option is missing or unknown, or has no such value.
    """
    unknown = [option for option in options if option not in (*OWN, *WORDS)]
    if unknown:
        raise AdapterError(
            f"{NAME}: no option {', '.join(unknown)}; it has {', '.join((*OWN, *WORDS))}"
        )
    lacking = [option for option in NEEDED if option not in options]
    if lacking:
        raise AdapterError(f"{NAME}: no {' and no '.join(lacking)} given; {NEEDS}")
    for option in ("kernel", "backward"):
        module, _, function = options.get(option, options["kernel"]).rpartition(":")
        if not (module and function):
            raise AdapterError(
                f"{NAME}: {option}: wanted module:function or path/file.py:function, got"
                f" {options[option]!r}"
            )
    framework = options.get("framework", FRAMEWORKS[0])
    if framework not in FRAMEWORKS:
        raise AdapterError(
            f"{NAME}: framework: wanted one of {', '.join(FRAMEWORKS)}, got {framework!r}"
        )
    words = {
        "name": options["kernel"].rpartition(":")[2],
        # backward names a function here; "a/b" in contract declares that of another pipeline
        **{
            option: text
            for option, text in options.items()
            if option in WORDS and option not in OWN
        },
    }
    place = KernelLocation(
        Path(options["python"]).expanduser(),
        options["kernel"],
        framework,
        options.get("step", ""),
        options.get("backward", ""),
    )
    return Elsewhere(declared(words), place, _seconds(options.get("limit", LIMIT)))


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise AdapterError(f"{NAME}: limit: wanted a positive number of seconds, got {text!r}")
    return seconds


ELSEWHERE: Final = Unconfigured(NAME, NEEDS, _at)
