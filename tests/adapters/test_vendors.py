"""Every shipped implementation that is installed is right on a benign problem,
and proves which kernel ran.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kdaverify.adapters import Adapter, WrongKernelError, find
from kdaverify.adapters.shipped import SHIPPED
from kdaverify.operator import DEFAULT
from kdaverify.problems import cotangents
from oracles.adjoint import adjoint
from oracles.tensors import FLOATING
from tests.adapters.standins import MakeProblem, distance

pytestmark = pytest.mark.whole_run

PRECISION = {"fp64": 1e-13, "fp32": 3e-6, "bf16": 6e-3, "fp16": 7e-4}
KERNELS = {
    "eager": "chunk64-",
    "eager-recurrent": "recurrent-",
    "transformers-recurrent": "recurrent_kimi_delta_attention (line",
    "transformers-chunk": "chunk_kimi_delta_attention (line",
    "onnxruntime": "LinearAttention on CPUExecutionProvider",
    "pallas": "Pallas pallas_prepass_fwd, interpreted and pallas_split_fwd, interpreted",
}
# Those that share a process with others; isolated ones bring an interpreter or a device of their
# own. Designs on paper may be wrong. Those without a gate of every channel are tested in
# test_delta_rules.py, those of other operators in tests/operators.
NAMES = [
    name
    for name in SHIPPED
    if not (find(name).isolated or name.startswith("emulated:"))
    and find(name).op == DEFAULT
    and find(name).domain.gates == "channel"
]
CASES = [(name, dtype) for name in NAMES for dtype in find(name).dtypes]


def installed(name: str) -> Adapter:
    adapter = find(name)
    if reason := adapter.missing():
        pytest.skip(reason)
    return adapter


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_a_benign_problem_is_right_to_its_precision(
    make_problem: MakeProblem, name: str, dtype: str
) -> None:
    adapter = installed(name)
    problem = make_problem(dtype=dtype, T=70)
    assert adapter.supports(problem) is None
    found = distance(adapter, problem)
    assert set(found) == {"o", "final_state"}
    assert max(found.values()) < PRECISION[dtype]
    assert KERNELS[name] in adapter.proof()


@pytest.mark.parametrize("name", NAMES)
def test_outputs_come_in_the_dtypes_of_the_contract(make_problem: MakeProblem, name: str) -> None:
    adapter = installed(name)
    dtype = adapter.dtypes[-1]
    for state in ("absent", "random"):
        x = make_problem(dtype=dtype, T=70, state=state).inputs()
        output = adapter.forward(x)
        assert output.o.dtype == x.q.dtype
        assert output.final_state.dtype == adapter.contract(dtype).carry.dtype


@pytest.mark.parametrize("name", NAMES)
def test_the_step_is_the_forward_of_one_token(make_problem: MakeProblem, name: str) -> None:
    adapter = installed(name)
    x = make_problem(T=1).inputs()
    forward, step = adapter.forward(x), adapter.step(x)
    torch.testing.assert_close(step.o, forward.o, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(step.final_state, forward.final_state, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_callers_tensors_are_neither_edited_nor_returned(
    make_problem: MakeProblem, name: str
) -> None:
    adapter, x, before = installed(name), make_problem(T=70).inputs(), make_problem(T=70).inputs()
    output = adapter.forward(x)
    for tensor in FLOATING:
        given = getattr(x, tensor)
        assert torch.equal(given, getattr(before, tensor))
        for returned in (output.o, output.final_state):
            assert returned.untyped_storage().data_ptr() != given.untyped_storage().data_ptr()


@pytest.mark.parametrize("name", ["eager", "eager-recurrent"])
@pytest.mark.parametrize(
    "changes",
    [
        {"B": 1, "lengths": (0, 5, 70, 0)},
        {"HV": 6},
        {"scale": 0.3},
        {"B": 1, "lengths": (0, 0), "T": 0},
    ],
)
def test_eager_takes_everything(
    make_problem: MakeProblem, name: str, changes: dict[str, Any]
) -> None:
    problem = make_problem(**{"T": 80, **changes})
    assert find(name).supports(problem) is None
    assert max(distance(find(name), problem).values()) < PRECISION["fp32"]


def test_eager_returns_a_copy_of_the_state_of_an_empty_pack(make_problem: MakeProblem) -> None:
    x = make_problem(B=1, lengths=(0, 0), T=0).inputs()
    assert x.initial_state is not None
    output = find("eager").forward(x)
    assert torch.equal(output.final_state, x.initial_state)
    assert output.final_state.data_ptr() != x.initial_state.data_ptr()


def test_eager_has_gradients(make_problem: MakeProblem) -> None:
    x = make_problem(dtype="bf16").inputs()
    x.q.requires_grad_()
    (found,) = torch.autograd.grad(find("eager").forward(x).o.float().sum(), x.q)
    assert found.abs().sum() > 0


def test_onnxruntime_gates_are_those_of_its_dtype(make_problem: MakeProblem) -> None:
    adapter = installed("onnxruntime")
    x = make_problem(dtype="fp16").inputs()
    assert torch.equal(adapter.received(x).g, x.g.half().float())
    assert torch.equal(adapter.received(make_problem().inputs()).g, make_problem().inputs().g)
    assert "casts" in _proof_after(adapter, lambda: adapter.forward(x))


def test_pallas_packs_expose_o_alone_and_ignore_what_padding_tokens_hold(
    make_problem: MakeProblem,
) -> None:
    adapter = installed("pallas")
    problem = make_problem(B=1, lengths=(0, 5, 33, 0, 20), T=70, HV=6, state="absent")
    assert adapter.exposes(problem) == ("o",)
    assert distance(adapter, problem)["o"] < PRECISION["fp32"]
    assert "initial states" in str(adapter.supports(problem.replace(state="random")))


def test_pallas_is_differentiated_through_the_package_s_own_backward(
    make_problem: MakeProblem,
) -> None:
    adapter, problem = installed("pallas"), make_problem(T=70)
    x, given = problem.inputs(), cotangents(problem, "both")
    found, exact = adapter.gradients(x, given).named(), adjoint(x, given).named()
    assert "pallas_prepass_bwd" in adapter.proof()
    for name, gradient in exact.items():
        assert (found[name] - gradient).norm() < 1e-5 * gradient.norm(), name


def test_limits_of_the_interfaces_are_reasons(make_problem: MakeProblem) -> None:
    assert "no packed sequences" in str(
        find("transformers-chunk").supports(make_problem(B=1, lengths=(21,)))
    )
    assert "it takes 1 alone" in str(find("transformers-chunk").supports(make_problem(HV=6)))
    assert "no scale but K^-1/2" in str(
        find("transformers-recurrent").supports(make_problem(scale=0.5))
    )
    assert "no packed sequences" in str(
        find("onnxruntime").supports(make_problem(B=1, lengths=(21,)))
    )
    assert "scale 0" in str(find("onnxruntime").supports(make_problem(scale=0.0)))
    assert "no V = 160: it takes widths up to 128" in str(
        find("pallas").supports(make_problem(V=160))
    )
    assert "at least one token" in str(
        find("pallas").supports(make_problem(B=1, lengths=(0,), T=0))
    )


def test_transformers_never_runs_a_kernel_of_another_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed("transformers-chunk")
    from transformers.models.kimi_linear import modeling_kimi_linear

    from kdaverify.adapters import transformers_kda

    original = transformers_kda.torch_function(
        transformers_kda.KIMI.module, "chunk_kimi_delta_attention"
    )

    @functools.wraps(original)
    def dispatching(*args: Any, **keywords: Any) -> None:
        raise AssertionError("the hub was called")

    def foreign(*args: Any, **keywords: Any) -> None:
        raise AssertionError("another package was called")

    find_again: Callable[[str, str], Any] = transformers_kda.torch_function.__wrapped__
    monkeypatch.setattr(modeling_kimi_linear, "chunk_kimi_delta_attention", dispatching)
    assert find_again(transformers_kda.KIMI.module, "chunk_kimi_delta_attention") is original
    monkeypatch.setattr(modeling_kimi_linear, "chunk_kimi_delta_attention", foreign)
    with pytest.raises(WrongKernelError, match="wanted the torch function"):
        find_again(transformers_kda.KIMI.module, "chunk_kimi_delta_attention")


def test_onnxruntime_without_its_kernel_is_the_wrong_kernel() -> None:
    from kdaverify.adapters import onnxruntime_kda

    event = {
        "cat": "Node",
        "name": "n_kernel_time",
        "args": {"op_name": "Scan", "provider": "CPUExecutionProvider"},
    }
    with pytest.raises(
        WrongKernelError, match="ran Scan on CPUExecutionProvider; wanted LinearAttention"
    ):
        onnxruntime_kda.kernels([event])


def test_pallas_falling_back_to_plain_jax_is_the_wrong_kernel(
    make_problem: MakeProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = installed("pallas")
    import deltanet_tpu

    monkeypatch.setattr(
        deltanet_tpu, "chunk_kda", functools.partial(deltanet_tpu.chunk_kda, fallback_scan=True)
    )
    with pytest.raises(WrongKernelError, match="fell back to plain JAX"):
        adapter.forward(make_problem(H=8, HV=8).inputs())  # a shape not compiled before


def _proof_after(adapter: Adapter, call: Callable[[], object]) -> str:
    call()
    return adapter.proof()
