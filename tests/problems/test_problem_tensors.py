"""Tensors are the same bits on every machine.

`golden.json` holds the first 16 hexadecimal digits of the SHA-256 of every tensor of the smoke
panel. After a wanted change of the
panel or of a regime, write it again:

    python tests/problems/test_problem_tensors.py > tests/problems/golden.json
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from torch import Tensor

from kdaverify.problems import DTYPES, TORCH, Problem, panel
from oracles.inputs import Inputs
from oracles.tensors import FLOATING, TOKENS

TENSORS = FLOATING
GOLDEN = Path(__file__).with_name("golden.json")

Plain: TypeAlias = Callable[..., Problem]
Digests: TypeAlias = dict[str, dict[str, dict[str, str]]]


def _digest(tensor: Tensor | None) -> str:
    return (
        "absent"
        if tensor is None
        else hashlib.sha256(tensor.view(torch.uint8).numpy().tobytes()).hexdigest()[:16]
    )


def _digests(inputs: Inputs) -> dict[str, str]:
    return {name: _digest(getattr(inputs, name)) for name in TENSORS}


def _panel_digests() -> Digests:
    return {
        dtype: {entry.name: _digests(entry.problem.inputs()) for entry in panel(dtype, "smoke")}
        for dtype in DTYPES
    }


def test_the_smoke_panel_is_the_golden_one() -> None:
    assert _panel_digests() == json.loads(GOLDEN.read_text())


def test_a_fresh_process_without_vector_instructions_builds_the_same_bits() -> None:
    config: Any = np.show_config(mode="dicts")
    features: dict[str, Any] = config["SIMD Extensions"]
    plain = {
        "NPY_DISABLE_CPU_FEATURES": " ".join(features.get("found", [])),
        "ATEN_CPU_CAPABILITY": "default",
        "OMP_NUM_THREADS": "1",
    }
    env = {**os.environ, **plain, "PYTHONPATH": str(Path(__file__).parents[2])}
    written = subprocess.run(
        [sys.executable, __file__], env=env, capture_output=True, text=True, check=True, timeout=120
    ).stdout
    assert json.loads(written) == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("dtype", DTYPES)
def test_types_are_the_ones_tested_for(plain: Plain, dtype: str) -> None:
    x = plain(dtype=dtype).inputs()
    wide = torch.float64 if dtype == "fp64" else torch.float32
    assert {tensor.dtype for tensor in (x.q, x.k, x.v, x.beta)} == {TORCH[dtype]}
    assert {x.g.dtype, x.state.dtype} == {wide}


def test_a_longer_problem_begins_with_the_shorter_one(plain: Plain) -> None:
    short, long = plain(T=21).inputs(), plain(T=40).inputs()
    for name in TOKENS:
        assert torch.equal(getattr(long, name)[:, :21], getattr(short, name)), name


@pytest.mark.parametrize(
    ("axis", "name", "moved"),
    [("state", "absent", "initial_state"), ("gate", "mixed", "g"), ("value", "zero", "v")],
)
def test_changing_one_regime_moves_no_other_tensor(
    plain: Plain, axis: str, name: str, moved: str
) -> None:
    before, after = _digests(plain().inputs()), _digests(plain(**{axis: name}).inputs())
    assert {tensor for tensor in TENSORS if before[tensor] != after[tensor]} == {moved}


def test_every_seed_head_batch_entry_and_sequence_has_its_own_numbers(plain: Plain) -> None:
    x, y = plain(H=2, HV=4).inputs(), plain(H=2, HV=4, seed=8).inputs()
    for tensor in (x.q, x.k, x.v, x.g, x.beta):
        parts = [part for batch in tensor.unbind(0) for part in batch.unbind(1)]
        assert not any(torch.equal(a, b) for i, a in enumerate(parts) for b in parts[:i])
    assert not any(torch.equal(getattr(x, name), getattr(y, name)) for name in TENSORS)


def test_rounding_goes_through_float32(plain: Plain) -> None:
    exact = plain(dtype="fp64").inputs()
    for dtype in ("bf16", "fp16"):
        assert torch.equal(
            plain(dtype=dtype).inputs().v, exact.v.to(torch.float32).to(TORCH[dtype])
        )


def test_every_call_gives_fresh_memory(plain: Plain) -> None:
    problem = plain()
    problem.inputs().v.zero_()
    assert bool(problem.inputs().v.any())


def test_offsets_follow_the_lengths(plain: Plain) -> None:
    x = plain(B=1, T=30, lengths=(0, 21, 3)).inputs()
    assert x.cu_seqlens is not None
    assert x.cu_seqlens.tolist() == [0, 0, 21, 24]
    assert plain().inputs().cu_seqlens is None


def test_the_scale_is_passed_on(plain: Plain) -> None:
    assert plain(scale=0.5).inputs().scale == 0.5
    assert plain().inputs().scale is None


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_panel_digests(), indent=1) + "\n")
