"""An adapter whose kernel lives in another Python interpreter."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from safetensors.torch import save_file
from torch import Tensor

from kdaverify.adapters.base import NOTHING_YET, Adapter
from kdaverify.adapters.conventions import Conventions
from kdaverify.adapters.declaration import Declaration
from kdaverify.adapters.elsewhere.interpreter import Interpreter
from kdaverify.adapters.exchange.answer import Answer, answer
from kdaverify.adapters.exchange.declared import Declared, Passed
from kdaverify.adapters.exchange.manifest import INPUTS, OUTPUTS, Call

FILE: Final = "call.safetensors"
SECONDS: Final = 30
FINDS: Final = "import importlib.util as u, sys; print(*[name for name in sys.argv[1:] if u.find_spec(name) is None])"


@dataclass(frozen=True)
class Place:
    """Where a kernel is.

    Args:
        python: executable of the interpreter.
        kernel: package.module:function or path/file.py:function.
        framework: whose arrays it takes: torch, jax or numpy.
        step: its decode function; "" for the same.
    """

    python: Path
    kernel: str
    framework: str
    step: str = ""


class Elsewhere(Declared):
    """Calls go to the other interpreter and back through files in memory; it needs safetensors and the kernel, nothing of ours.

    Args:
        limit: seconds that starting it, or a call, may take.
        interpreter: the process; one of its own by default.
    """

    def __init__(self, declaration: Declaration, place: Place, limit: float, interpreter: Interpreter | None = None) -> None:
        super().__init__(declaration)
        self._place, self._limit = place, limit
        told = (place.kernel, place.step, place.framework, json.dumps(declaration.keywords))
        self._interpreter = interpreter or Interpreter(place.python, told, limit)
        self._last: Answer | None = None

    def missing(self) -> str | None:
        python, kernel = self._place.python, self._place.kernel.rpartition(":")[0]
        if not python.is_file():
            return f"no interpreter {python}; say python=/path/of/its/bin/python"
        if kernel.endswith(".py") and not Path(kernel).is_file():
            return f"no file {kernel}; say kernel=/path/of/my_port.py:my_function"
        needed = ("safetensors", "numpy", self._place.framework)
        asked = subprocess.run([python, "-c", FINDS, *needed], capture_output=True, text=True, timeout=SECONDS, check=False)
        if asked.returncode:
            return f"{python} does not work: {asked.stderr.strip().splitlines()[-1:]}"
        lacking = asked.stdout.split()
        return f"{python} has no {', '.join(lacking)}: {python} -m pip install {' '.join(lacking)}" if lacking else None

    def carry(self, call: Passed) -> tuple[Any, Any]:
        tensors = {name: value.contiguous() for name, value in call.arguments.items() if isinstance(value, Tensor)}
        folder, asked = self._interpreter.folder, Call(
            file=FILE, entry=call.entry, scale=call.arguments.get("scale"), state_from=None, sha256="", outputs={}
        )  # fmt: skip
        for left in (folder / OUTPUTS).iterdir():
            left.unlink()
        save_file(tensors, folder / INPUTS / FILE)
        self._interpreter.ask(asked)
        self._last = answer(folder, asked)
        return self._last.outputs.get("o"), self._last.outputs.get("final_state")

    def redeclared(self, conventions: Conventions) -> Adapter | None:
        if conventions.layout == "thd" and "cu_seqlens" not in self.declaration.keywords:
            return None
        declaration = self.declaration.model_copy(update=dataclasses.asdict(conventions))
        return Elsewhere(declaration, self._place, self._limit, self._interpreter)

    def proof(self) -> str:
        return NOTHING_YET if self._last is None else f"{self._last.about['function']} in {self._place.python}"

    def environment(self) -> dict[str, str]:
        told: Mapping[str, str] = self._interpreter.about() if self._last is None else self._last.about
        about = {name: value for name, value in told.items() if name != "function"}
        return {"device": "", **about, "mode": "elsewhere"}

    def end(self) -> None:
        self._interpreter.end()
