"""An adapter whose kernel lives in another Python interpreter."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import Tensor

from kdaverify.adapters.base import NOTHING_YET, Adapter
from kdaverify.adapters.conventions import Conventions
from kdaverify.adapters.custom_vjp import with_vjp
from kdaverify.adapters.declaration import Declaration
from kdaverify.adapters.elsewhere.interpreter import PythonInterpreter
from kdaverify.adapters.exchange.answer import ExchangedOutputs, answer
from kdaverify.adapters.exchange.declared import Declared, DeclaredCall, Entry
from kdaverify.adapters.exchange.manifest import INPUTS, OUTPUTS, ExportedCall
from kdaverify.adapters.isolation.fault import CallFailure
from oracles.autograd import ForwardOnlyError
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs
from oracles.tensors import COTANGENTS, GRADIENTS
from oracles.tensors import OUTPUTS as RETURNED

FILE: Final = "call.safetensors"
SECONDS: Final = 30
FINDS: Final = (
    "import importlib.util as u, sys; print(*[name for name in sys.argv[1:] if u.find_spec(name) is"
    " None])"
)

_COTANGENT: Final[Mapping[str, str]] = dict(zip(RETURNED, COTANGENTS, strict=True))
_GRADIENT: Final = {name: gradient for gradient, name in GRADIENTS.items()}


@dataclass(frozen=True)
class KernelLocation:
    """Where a kernel is.

    Args:
        python: executable of the interpreter.
        kernel: package.module:function or path/file.py:function.
        framework: whose arrays it takes: torch, jax or numpy.
        step: its decode function; "" for the same.
        backward: (do, d_final_state, q, k, v, g, beta, *, keywords) -> (dq, dk, dv, dg, dbeta[,
            d_initial_state]), the last one if there is an initial state; "" where the framework
            differentiates the kernel.
    """

    python: Path
    kernel: str
    framework: str
    step: str = ""
    backward: str = ""


class Elsewhere(Declared):
    """Calls reach the other interpreter through files in memory; it needs safetensors alone.

    Args:
        limit: seconds that starting it, or a call, may take.
        interpreter: the process; one of its own by default.
    """

    def __init__(
        self,
        declaration: Declaration,
        place: KernelLocation,
        limit: float,
        interpreter: PythonInterpreter | None = None,
    ) -> None:
        super().__init__(declaration)
        self._declaration = declaration
        self._place, self._limit = place, limit
        signature = {
            "positional": declaration.tokens,
            "keywords": declaration.keywords,
            "returned": RETURNED,
        }
        reported = (
            place.kernel,
            place.step,
            place.backward,
            place.framework,
            json.dumps(signature),
        )
        self._interpreter = interpreter or PythonInterpreter(place.python, reported, limit)
        self._last: ExchangedOutputs | None = None

    def missing(self) -> str | None:
        python = self._place.python
        if not python.is_file():
            return f"no interpreter {python}; say python=/path/of/its/bin/python"
        for option in ("kernel", "backward"):
            file = str(getattr(self._place, option)).rpartition(":")[0]
            if file.endswith(".py") and not Path(file).is_file():
                return f"no file {file}; say {option}=/path/of/my_port.py:my_function"
        needed = ("safetensors", "numpy", self._place.framework)
        tested = subprocess.run(
            [python, "-c", FINDS, *needed],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        if tested.returncode:
            return f"{python} does not work: {tested.stderr.strip().splitlines()[-1:]}"
        lacking = tested.stdout.split()
        return (
            f"{python} has no {', '.join(lacking)}: {python} -m pip install {' '.join(lacking)}"
            if lacking
            else None
        )

    def carry(self, call: DeclaredCall) -> tuple[Any, Any]:
        tensors = call.tensors
        leaves = [name for name, value in tensors.items() if value.requires_grad]
        names: list[str] = []

        def forward(*values: Tensor) -> tuple[Tensor, ...]:
            outputs = self._answered(
                call, call.entry, {**tensors, **dict(zip(leaves, values, strict=True))}
            )
            names.extend(outputs)
            return tuple(outputs.values())

        def vjp(values: Sequence[Tensor], cotangents: Sequence[Tensor]) -> list[Tensor]:
            given = dict(zip(leaves, values, strict=True))
            loss = {_COTANGENT[name]: dy for name, dy in zip(names, cotangents, strict=True)}
            found = self._answered(call, "vjp", {**tensors, **given, **loss})
            return [_checked(_GRADIENT[name], found, given[name]) for name in leaves]

        returned = with_vjp(forward, vjp, *(tensors[name] for name in leaves))
        outputs = dict(zip(names, returned, strict=True))
        return outputs.get("o"), outputs.get("final_state")

    def gradients(self, inputs: Inputs, cotangents: Cotangents) -> Gradients[Any]:
        if self._place.framework == "numpy" and not self._place.backward:
            raise ForwardOnlyError(
                "NumPy has no derivatives; name the kernel's own backward by the option"
                " backward=module:function"
            )
        self._tested = ("forward", inputs)
        return self._kernel.gradients(inputs, cotangents)

    def _answered(
        self, call: DeclaredCall, entry: Entry, tensors: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """What the other interpreter returns for one call, by name."""
        folder = self._interpreter.folder
        tested = ExportedCall(file=FILE, entry=entry, values=call.values)
        for left in (folder / OUTPUTS).iterdir():
            left.unlink()
        # A file holds no two names of one memory.
        save_file(
            {
                name: value.detach().clone(memory_format=torch.contiguous_format)
                for name, value in tensors.items()
            },
            folder / INPUTS / FILE,
        )
        self._interpreter.run(tested)
        self._last = answer(folder, tested, tuple(GRADIENTS) if entry == "vjp" else RETURNED)
        return self._last.outputs

    def redeclared(self, conventions: Conventions) -> Adapter | None:
        if conventions.layout == "thd" and "cu_seqlens" not in self.declaration.keywords:
            return None
        declaration = self._declaration.model_copy(update=dataclasses.asdict(conventions))
        return Elsewhere(declaration, self._place, self._limit, self._interpreter)

    def proof(self) -> str:
        if self._last is None:
            return NOTHING_YET
        return f"{self._last.about['function']} in {self._place.python}"

    def environment(self) -> dict[str, str]:
        reported: Mapping[str, str] = (
            self._interpreter.about() if self._last is None else self._last.about
        )
        about = {name: value for name, value in reported.items() if name != "function"}
        return {"device": "", **about, "mode": "elsewhere"}

    def end(self) -> None:
        self._interpreter.end()


def _checked(name: str, found: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The gradient of `x`, which torch would otherwise sum or cast to fit.

    Raises:
        Fault: it is not there, or has another shape or type.
    """
    wanted, got = (
        f"{list(y.shape)} in {y.dtype}" if y is not None else "none" for y in (x, found.get(name))
    )
    if wanted != got:
        raise CallFailure("ERROR", f"the backward returned {name}: wanted {wanted}, got {got}")
    return found[name]
