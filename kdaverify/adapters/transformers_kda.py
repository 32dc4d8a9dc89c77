"""Hugging Face transformers: the torch functions of Kimi Linear."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kdaverify.adapters.base import NOTHING_YET, Adapter, Output, WrongKernelError, absent, versions
from kdaverify.adapters.conventions import Conventions
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.presets import preset
from kdaverify.problems import Domain
from oracles.inputs import Inputs

MODULE: Final = "transformers.models.kimi_linear.modeling_kimi_linear"
FUNCTIONS: Final = {"recurrent": "recurrent_kimi_delta_attention", "chunk": "chunk_kimi_delta_attention"}
STEP: Final = "recurrent"


class Transformers(Adapter):
    """One of the two torch functions; inside, everything is fp32 and only o is rounded to the dtype of the inputs.

    Args:
        form: "recurrent" or "chunk". Decoding goes through the recurrent one for both, as in the model.
    Source: transformers.models.kimi_linear.modeling_kimi_linear.
    """

    dtypes = ("fp32", "bf16", "fp16")
    conventions = Conventions()
    # No cu_seqlens, no grouped heads, and always K^-1/2.
    domain = Domain(packed=False, head_ratios=(1,), scales=False)

    def __init__(self, form: str) -> None:
        self.name = f"transformers-{form}"
        self._form = form
        self._ran = NOTHING_YET

    def missing(self) -> str | None:
        return absent(("transformers",), "pip install 'kdaverify[transformers]'")

    def contract(self, dtype: str) -> Contract:
        return preset(self.name, dtype)

    def forward(self, inputs: Inputs) -> Output:
        return self._run(FUNCTIONS[self._form], inputs)

    def step(self, inputs: Inputs) -> Output:
        return self._run(FUNCTIONS[STEP], inputs)

    def proof(self) -> str:
        return self._ran

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **versions("transformers")}

    def _run(self, name: str, inputs: Inputs) -> Output:
        x = self.conventions.arguments(inputs)
        o, final_state = torch_function(name)(
            x["q"], x["k"], x["v"], g=x["g"], beta=x["beta"], initial_state=x["initial_state"], output_final_state=True
        )
        self._ran = _place(name)
        return Output(o, final_state)


@functools.cache
def torch_function(name: str) -> Callable[..., Any]:
    """The plain torch function of the model file, without the decorator that may hand over to another package.

    The decorated name calls flash-linear-attention, or a kernel from the hub, wherever one is installed.
    Raises:
        WrongKernelError: what lies under the decorators is not the function of the model file.
    """
    module = importlib.import_module(MODULE)
    function = inspect.unwrap(getattr(module, name))
    code = getattr(function, "__code__", None)
    if code is None or code.co_name != name or Path(code.co_filename) != Path(str(module.__file__)):
        raise WrongKernelError(f"{MODULE}.{name}: wanted the torch function of {module.__file__}, got {function!r}")
    return function


def _place(name: str) -> str:
    code = torch_function(name).__code__  # pyright: ignore[reportFunctionMemberAccess]
    return f"{MODULE}.{name} (line {code.co_firstlineno}, undecorated)"


RECURRENT: Final = Transformers("recurrent")
CHUNK: Final = Transformers("chunk")
