"""ONNX Runtime: Attention of opset 23 on a CPU."""

from __future__ import annotations

import functools
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.attention_layout import contracts, some_keys
from kdaverify.adapters.base import NOTHING_YET, absent, versions
from kdaverify.adapters.onnxruntime_kda import PROVIDER, SESSIONS, kernels
from kdaverify.adapters.operator_kernel import shipped

OPERATOR: Final = "Attention"
OPSET, IR_VERSION = 23, 11
DTYPES: Final = ("fp32", "fp16")
_RAN: Final[list[str]] = [NOTHING_YET]


@dataclass(frozen=True)
class _Attributes:
    half: bool
    scale: float
    causal: bool


def _attention(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, causal: bool) -> Tensor:
    """Heads and widths are read off the tensors, of rank 4."""
    run = _session(_Attributes(q.dtype == torch.float16, softmax_scale, causal))
    given = zip("qkv", (q, k, v), strict=True)
    feeds = {name: x.detach().transpose(1, 2).contiguous().numpy() for name, x in given}
    (o,) = run.run(["o"], feeds)
    _RAN[0] = _ran(q.dtype == torch.float16)
    return torch.from_numpy(o).transpose(1, 2)


@functools.lru_cache(maxsize=SESSIONS)
def _session(attributes: _Attributes) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(_model(attributes), _options(), providers=[PROVIDER])


def _options() -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = 1  # a pool per session would outnumber the cores
    return options


@functools.cache
def _ran(half: bool) -> str:  # noqa: FBT001
    """The kernels of the runtime that a model becomes, of a profile of one token."""
    import numpy as np
    import onnxruntime

    one = np.ones((1, 1, 1, 8), np.float16 if half else np.float32)
    with tempfile.TemporaryDirectory(prefix="kdaverify-onnxruntime-") as folder:
        options = _options()
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        model = _model(_Attributes(half, 1.0, causal=False))
        session = onnxruntime.InferenceSession(model, options, providers=[PROVIDER])
        session.run(["o"], dict.fromkeys("qkv", one))
        return kernels(json.loads(Path(session.end_profiling()).read_text()), OPERATOR)


def _model(attributes: _Attributes) -> bytes:
    from onnx import TensorProto, helper

    element = TensorProto.FLOAT16 if attributes.half else TensorProto.FLOAT
    value: Any = helper.make_tensor_value_info
    node = helper.make_node(
        OPERATOR, [*"qkv"], ["o"], scale=attributes.scale, is_causal=int(attributes.causal)
    )
    graph = helper.make_graph(
        [node],
        "attention",
        [value(name, element, None) for name in "qkv"],
        [value("o", element, None)],
    )
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    return model.SerializeToString()


ATTENTION: Final = shipped(
    "attention",
    _attention,
    "onnxruntime-attention",
    dtypes=DTYPES,
    gradients=False,
    lse="none",
    causal_alignment="top_left",
    supports=some_keys,
    contract=contracts("math-{0}[S:{0}]", DTYPES),
    proof=lambda: _RAN[0],
    environment=lambda: versions("onnxruntime", "onnx"),
    missing=lambda: absent(("onnx", "onnxruntime"), "pip install 'kdaverify[onnxruntime]'"),
)
"""In fp16 it stores the scores, too."""
