"""Faults that only a sequence of calls, a view, or a size of its own can show, and one that
conforming kernels are too coarse to show.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kdaverify.adapters import find
from kdaverify.adapters.eager import EAGER
from kdaverify.faults.adapter import Faulty
from kdaverify.faults.catalogue import FAULTS
from kdaverify.faults.kernel import Patch
from kdaverify.problems import Problem, cotangents
from oracles.chunk_backward import BACKWARD
from oracles.gradients import Cotangents
from oracles.inputs import Inputs
from tests.faults.showing import rms
from tests.faults.triggers import PLAIN


@pytest.fixture
def x() -> Inputs:
    return Problem.model_validate(PLAIN).inputs()


def a_view(tensor: Tensor) -> Tensor:
    """The same values with head and token axes laid out the other way round."""
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


def test_a_fresh_request_inherits_the_state_of_the_last_one(x: Inputs) -> None:
    adapter, fresh = find("fault:S3"), replace(x, initial_state=None)
    assert torch.equal(adapter.forward(fresh).o, EAGER.forward(fresh).o)
    assert not torch.equal(adapter.forward(fresh).o, EAGER.forward(fresh).o)


def test_the_second_scale_is_that_of_the_first_call(x: Inputs) -> None:
    adapter, other = find("fault:B35"), replace(x, scale=0.5)
    assert torch.equal(adapter.forward(x).o, EAGER.forward(x).o)
    assert not torch.equal(adapter.forward(other).o, EAGER.forward(other).o)


def test_the_first_result_is_overwritten_by_the_second_call(x: Inputs) -> None:
    adapter = find("fault:S26")
    first = adapter.forward(x).o
    assert torch.equal(first, EAGER.forward(x).o)
    adapter.forward(replace(x, v=-x.v))
    assert not torch.equal(first, EAGER.forward(x).o)


def test_v_is_overwritten(x: Inputs) -> None:
    given = x.copied()
    find("fault:S23").forward(given)
    assert not torch.equal(given.v, x.v)


@pytest.mark.parametrize(
    ("fault", "name", "output"),
    [("S15", "initial_state", "o"), ("S29", "v", "o"), ("X5", "v", "o")],
)
def test_a_view_is_taken_for_a_dense_tensor(x: Inputs, fault: str, name: str, output: str) -> None:
    adapter, viewed = find(f"fault:{fault}"), replace(x, **{name: a_view(getattr(x, name))})
    assert torch.equal(getattr(adapter.forward(x), output), getattr(EAGER.forward(x), output))
    assert not torch.allclose(
        getattr(adapter.forward(viewed), output), getattr(EAGER.forward(viewed), output)
    )


def test_a_cotangent_that_is_a_view_is_taken_for_a_dense_one(x: Inputs) -> None:
    adapter, given = find("fault:P7"), cotangents(Problem.model_validate(PLAIN), "o")
    assert given.do is not None
    right = adapter.gradients(x, given).dv
    assert not torch.allclose(adapter.gradients(x, Cotangents(a_view(given.do))).dv, right)


def test_gates_at_an_odd_address_are_refused(x: Inputs) -> None:
    room = torch.empty(x.g.numel() + 4)
    moved = room[4:].view(x.g.shape).copy_(x.g)
    find("fault:S30").forward(x)
    with pytest.raises(RuntimeError, match="multiple of 32 bytes"):
        find("fault:S30").forward(replace(x, g=moved))


def test_a_grid_above_its_limit_is_refused(x: Inputs) -> None:
    def sequences(count: int) -> Inputs:
        return replace(x, initial_state=None, cu_seqlens=torch.zeros(count + 1, dtype=torch.int32))

    find("fault:L4").forward(sequences(32767))
    with pytest.raises(RuntimeError, match="grid of 65536"):
        find("fault:L4").forward(sequences(32768))


def test_a_fault_below_what_conforming_kernels_differ_by_changes_bits_all_the_same() -> None:
    # Both parts of dh are products of operands rounded alike: one more rounding of each is lost
    # among theirs.
    problem = Problem.model_validate({**PLAIN, "dtype": "bf16"})
    x, given, fault = problem.inputs(), cotangents(problem, "both"), FAULTS["B10"]
    stages = Faulty(fault, patch=Patch(backward=lambda _: BACKWARD))
    found, right = (
        adapter.gradients(x, given).d_initial_state for adapter in (Faulty(fault), stages)
    )
    assert 0 < rms(found - right) < 0.01 * rms(right)
