"""vLLM's modules are imported without the package, and its delta rules conform where they are
called as serving calls them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import util
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from kdaverify.adapters import find
from kdaverify.adapters.isolation.isolated import housed
from kdaverify.adapters.vllm_delta import DeltaCall, in_pool
from kdaverify.checks.properties import check
from kdaverify.limits import Limits

IMPORTING: Final = """
import sys
from kdaverify.adapters.vllm_package import module

cdiv = module("own.ops.kernel").cdiv
print(cdiv(65, 64), [name for name in sys.modules if name.partition(".")[0] == "vllm"])
"""
NAMES: Final = ("vllm-gdn", "vllm-gdn-recurrent", "vllm-kda", "vllm-kda-recurrent")


def counting(
    q: Tensor,
    *_: Tensor,
    initial_state: Tensor,
    ssm_state_indices: Tensor,
    cu_seqlens: Tensor,
    **__: Any,
) -> tuple[Tensor, Tensor]:
    """A kernel that adds 1 to a state for every token, and keeps it in the token's slot."""
    for slots, length in zip(ssm_state_indices.tolist(), cu_seqlens.diff().tolist(), strict=True):
        state = initial_state[slots[0]].clone()
        for slot in slots[:length]:
            state += 1
            initial_state[slot] = state
    return q, initial_state


@pytest.mark.parametrize("lengths", [(5,), (2, 0, 3), (0, 5), (5, 0)])
def test_a_state_is_that_after_the_last_token_of_its_sequence(lengths: tuple[int, ...]) -> None:
    offsets = torch.tensor((0, *lengths)).cumsum(0)
    tokens = tuple(torch.zeros(5, 1, 1) for _ in range(5))
    begun = torch.arange(len(lengths)).mul(10.0).view(-1, 1, 1, 1)
    o, state = in_pool(counting, DeltaCall(tokens, 1.0, begun.clone(), offsets))
    assert o.shape == (5, 1, 1)
    assert torch.equal(state, begun + torch.tensor(lengths).view(-1, 1, 1, 1))


def test_a_module_is_imported_without_its_package(tmp_path: Path) -> None:
    if util.find_spec("triton") is None:
        pytest.skip("no Triton")
    ops = tmp_path / "vllm" / "own" / "ops"
    ops.mkdir(parents=True)
    for package in (tmp_path / "vllm", ops):
        (package / "__init__.py").write_text("raise ImportError('the whole package')\n")
    (ops / "other.py").write_text("from vllm.utils.math_utils import cdiv\n")
    (ops / "kernel.py").write_text(
        "from vllm.triton_utils import tl, triton\nfrom .other import cdiv\n"
    )
    # a process that has imported Triton cannot interpret it any more
    ran = subprocess.run(
        [sys.executable, "-c", IMPORTING],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        check=False,
    )
    assert ran.stdout == "2 []\n", ran.stderr


@pytest.mark.whole_run
@pytest.mark.parametrize("name", NAMES)
def test_an_ordinary_call_conforms(name: str) -> None:
    adapter = find(name)
    if why := adapter.missing():
        pytest.skip(why)
    judged = housed(adapter, name, limits=Limits())
    try:
        for dtype in adapter.dtypes:
            example: Any = adapter.operator.example()
            problem = adapter.operator.within(adapter, example.replace(dtype=dtype))
            found = check("forward", judged, problem, {})
            assert {one.status.name for one in found} == {"PASS"}, found
    finally:
        judged.end()
