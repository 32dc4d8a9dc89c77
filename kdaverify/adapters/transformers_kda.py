"""Hugging Face transformers: the torch functions of Kimi Linear and of Qwen3-Next."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kdaverify.adapters.base import Output, WatchedAdapter, WrongKernelError, absent, versions
from kdaverify.adapters.conventions import Conventions
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.presets import preset
from kdaverify.problems import Domain
from oracles.inputs import Inputs

STEP: Final = "recurrent"


@dataclass(frozen=True)
class ModelFunctions:
    """The torch functions of one model.

    Args:
        module: the model's file.
        functions: by form, "recurrent" and "chunk".
        domain: none has cu_seqlens, and all have K^-1/2 alone.
        contracts: presets by form.
    """

    module: str
    functions: Mapping[str, str]
    domain: Domain
    contracts: Mapping[str, str]


KIMI: Final = ModelFunctions(
    "transformers.models.kimi_linear.modeling_kimi_linear",
    {"recurrent": "recurrent_kimi_delta_attention", "chunk": "chunk_kimi_delta_attention"},
    Domain(packed=False, head_ratios=(1,), scales=False),
    {"recurrent": "transformers-recurrent", "chunk": "transformers-chunk"},
)
QWEN: Final = ModelFunctions(
    "transformers.models.qwen3_next.modeling_qwen3_next",
    {"recurrent": "torch_recurrent_gated_delta_rule", "chunk": "torch_chunk_gated_delta_rule"},
    Domain(gates="head", packed=False, scales=False),
    {"recurrent": "transformers-gdn-recurrent", "chunk": "transformers-gdn-chunk"},
)


class Transformers(WatchedAdapter):
    """One of the two torch functions; fp32 inside, o alone is rounded to the inputs' dtype.

    Args:
        name: of the implementation.
        model: whose functions.
        form: "recurrent" or "chunk". Decoding is recurrent for both, as in the model.
    Source: the model's file in transformers.
    """

    dtypes = ("fp32", "bf16", "fp16")

    def __init__(self, name: str, model: ModelFunctions, form: str) -> None:
        self.name, self._model, self._form = name, model, form
        self.conventions, self.domain = Conventions(gates=model.domain.gates), model.domain

    def missing(self) -> str | None:
        return absent(("transformers",), "pip install 'kdaverify[transformers]'")

    def contract(self, dtype: str) -> Contract:
        return preset(self._model.contracts[self._form], dtype)

    def forward(self, inputs: Inputs) -> Output:
        return self._run(self._form, inputs)

    def step(self, inputs: Inputs) -> Output:
        return self._run(STEP, inputs)

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **versions("transformers")}

    def _run(self, form: str, inputs: Inputs) -> Output:
        module, name = self._model.module, self._model.functions[form]
        x = self.conventions.arguments(inputs)
        o, final_state = torch_function(module, name)(
            x["q"],
            x["k"],
            x["v"],
            g=x["g"],
            beta=x["beta"],
            initial_state=x["initial_state"],
            output_final_state=True,
        )
        self._ran = _place(module, name)
        return Output(o, final_state)


@functools.cache
def torch_function(place: str, name: str) -> Callable[..., Any]:
    """The plain torch function of the model file, without the decorator that may hand over to
    another package.

    The decorated name calls flash-linear-attention, or a kernel from the hub, wherever one is
    installed.
    Raises:
        WrongKernelError: what lies under the decorators is not the function of the model file.
    """
    module = importlib.import_module(place)
    function = inspect.unwrap(getattr(module, name))
    code = getattr(function, "__code__", None)
    if code is None or code.co_name != name or Path(code.co_filename) != Path(str(module.__file__)):
        raise WrongKernelError(
            f"{place}.{name}: wanted the torch function of {module.__file__}, got {function!r}"
        )
    return function


def _place(module: str, name: str) -> str:
    code = torch_function(module, name).__code__  # pyright: ignore[reportFunctionMemberAccess]
    return f"{module}.{name} (line {code.co_firstlineno}, undecorated)"


RECURRENT: Final = Transformers("transformers-recurrent", KIMI, "recurrent")
CHUNK: Final = Transformers("transformers-chunk", KIMI, "chunk")
GDN_RECURRENT: Final = Transformers("transformers-gdn-recurrent", QWEN, "recurrent")
GDN_CHUNK: Final = Transformers("transformers-gdn-chunk", QWEN, "chunk")
