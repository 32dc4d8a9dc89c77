"""ONNX Runtime: the contrib operator com.microsoft.LinearAttention on CPU."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import (
    Output,
    WatchedAdapter,
    WrongKernelError,
    absent,
    all_behind,
    versions,
)
from kdaverify.adapters.conventions import Conventions
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.presets import preset
from kdaverify.problems import TORCH, Domain, Problem
from kdaverify.problems.axes import Gates
from oracles.inputs import Inputs
from oracles.tensors import OUTPUTS

OPERATOR: Final = "LinearAttention"
DOMAIN: Final = "com.microsoft"
PROVIDER: Final = "CPUExecutionProvider"
OPSET, CONTRIB_OPSET, IR_VERSION = 21, 1, 10
SESSIONS: Final = 64


@dataclass(frozen=True)
class _Configuration:
    """What the attributes and types of the model depend on."""

    H: int
    HV: int
    scale: float
    half: bool
    stateful: bool
    gated: bool


class OnnxRuntime(WatchedAdapter):
    """A model of one node. Gates come in the dtype of q; the state is fp32 for both.

    There is no fp16 kernel on CPU: the runtime casts to fp32 before the node and rounds o after it.
    Without a past state the final one would be fp16 too, so beside fp16 an absent state goes in as
    zeros. The width of the gates says whether they are those of channels or of heads.
    Source: onnxruntime docs/ContribOperators.md, com.microsoft.LinearAttention v1, update_rules
    gated_delta and delta.

    Args:
        name: of the implementation.
        gates: of a head: channel, head or none.
    """

    dtypes = ("fp32", "fp16")
    differentiable = False
    barriers = all_behind("torch tensors are copied to arrays of the runtime and back")

    def __init__(self, name: str, gates: Gates) -> None:
        # The operator has no offsets.
        self.name = name
        self.conventions = Conventions(gates=gates)
        self.domain = Domain(gates=gates, packed=False)

    def missing(self) -> str | None:
        return absent(("onnx", "onnxruntime"), "pip install 'kdaverify[onnxruntime]'")

    def contract(self, dtype: str) -> Contract:
        return preset("onnxruntime", dtype)

    def supports(self, problem: Problem) -> str | None:
        if problem.scale == 0.0:
            return "scale 0 stands for K^-1/2 in the operator"
        return super().supports(problem)

    def received(self, inputs: Inputs) -> Inputs:
        return replace(inputs, g=inputs.g.to(inputs.q.dtype).to(inputs.g.dtype))

    def forward(self, inputs: Inputs) -> Output:
        half = inputs.q.dtype == TORCH["fp16"]
        given = replace(inputs, initial_state=inputs.state) if half else inputs
        session = _session(
            _Configuration(
                inputs.H,
                inputs.HV,
                inputs.factor,
                half,
                given.initial_state is not None,
                inputs.KG > 0,
            )
        )
        o, final_state = session.run(_feeds(given))
        self._ran = session.kernels
        return Output(torch.tensor(o).view(inputs.v.shape), torch.tensor(final_state))

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **versions("onnxruntime", "onnx")}


def _feeds(x: Inputs) -> dict[str, Any]:
    tokens = {"q": x.q, "k": x.k, "v": x.v, **({"g": x.g.to(x.q.dtype)} if x.KG else {})}
    feeds = {name: tensor.flatten(2) for name, tensor in tokens.items()} | {"beta": x.beta}
    state = {} if x.initial_state is None else {"past_state": x.initial_state}
    return {name: _array(tensor) for name, tensor in (feeds | state).items()}


def _array(tensor: Tensor) -> Any:
    return tensor.detach().contiguous().numpy()


class _Session:
    """One configuration's session, opened at its first run, which observes its kernels."""

    def __init__(self, configuration: _Configuration) -> None:
        self._configuration = configuration
        self._session: Any = None
        self.kernels = ""

    def run(self, feeds: dict[str, Any]) -> Sequence[Any]:
        return (
            self._first_run(feeds) if self._session is None else self._session.run(OUTPUTS, feeds)
        )

    def _first_run(self, feeds: dict[str, Any]) -> Sequence[Any]:
        import onnxruntime

        with tempfile.TemporaryDirectory(prefix="kdaverify-onnxruntime-") as folder:
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3  # errors: what the optimiser rewrites is in the profile
            options.intra_op_num_threads = 1  # a pool per session would outnumber the cores
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(folder) / "profile")
            session = onnxruntime.InferenceSession(
                _model(self._configuration), options, providers=[PROVIDER]
            )
            outputs = session.run(OUTPUTS, feeds)
            self.kernels = kernels(json.loads(Path(session.end_profiling()).read_text()))
        self._session = session
        return outputs


def kernels(profile: list[dict[str, Any]], operator: str = OPERATOR) -> str:
    """The kernels in a profile; WrongKernelError unless the operator itself is among them."""
    ran = [
        event["args"]
        for event in profile
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
    ]
    names = [f"{args['op_name']} on {args['provider']}" for args in ran]
    if f"{operator} on {PROVIDER}" not in names:
        raise WrongKernelError(
            f"onnxruntime ran {', '.join(names)}; wanted {operator} on {PROVIDER}"
        )
    casts = sum(args["op_name"] == "Cast" for args in ran)
    others = sorted(
        {name for name, args in zip(names, ran, strict=True) if args["op_name"] != "Cast"}
    )
    return ", ".join(others) + (f" between {casts} casts" if casts else "")


@functools.lru_cache(maxsize=SESSIONS)
def _session(configuration: _Configuration) -> _Session:
    return _Session(configuration)


def _model(c: _Configuration) -> bytes:
    from onnx import TensorProto, helper

    element = TensorProto.FLOAT16 if c.half else TensorProto.FLOAT
    value: Callable[..., Any] = helper.make_tensor_value_info
    names = ["q", "k", "v", "past_state" if c.stateful else "", "g" if c.gated else "", "beta"]
    inputs = [
        value(name, TensorProto.FLOAT if name == "past_state" else element, None)
        for name in names
        if name
    ]
    outputs = [
        value(name, kind, None)
        for name, kind in zip(OUTPUTS, (element, TensorProto.FLOAT), strict=True)
    ]
    node = helper.make_node(
        OPERATOR,
        names,
        OUTPUTS,
        domain=DOMAIN,
        q_num_heads=c.H,
        kv_num_heads=c.HV,
        update_rule="gated_delta" if c.gated else "delta",
        scale=c.scale,
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, CONTRIB_OPSET)]
    graph = helper.make_graph([node], "kda", inputs, outputs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION).SerializeToString()


ONNXRUNTIME: Final = OnnxRuntime("onnxruntime", "channel")
ONNXRUNTIME_GDN: Final = OnnxRuntime("onnxruntime-gdn", "head")
ONNXRUNTIME_DELTA: Final = OnnxRuntime("onnxruntime-delta", "none")
