"""A JAX kernel under the decorator is judged whole: its outputs, and its own VJP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kdaverify import kernel
from kdaverify.adapters import KernelAdapter, frameworks
from kdaverify.adapters.base import AdapterError
from kdaverify.checks.forward import forward
from kdaverify.checks.gradients import gradients
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.self_consistency import self_consistency
from kdaverify.checks.status import Status
from kdaverify.problems import Problem

jax = pytest.importorskip("jax")
pytest.importorskip("ml_dtypes")
from tests.adapters import jax_kda  # noqa: E402 # imports JAX

pytestmark = pytest.mark.whole_run

DENSE = Problem(
    B=1,
    T=7,
    H=1,
    HV=2,
    K=5,
    V=4,
    dtype="fp32",
    gate="log-sigmoid",
    key="random",
    beta="uniform",
    state="random",
    value="normal",
    seed=3,
)
PACKED = DENSE.replace(T=14, lengths=(0, 8, 5), key="coherent-0.9")


def adapter(
    function: Callable[..., Any], packing: str = "cu_seqlens", **options: Any
) -> KernelAdapter:
    return kernel(framework="jax", packing=packing, dtypes=("fp64", "fp32", "bf16"), **options)(
        function
    )


def rejected(outcomes: list[Outcome]) -> dict[str, Status]:
    return {
        outcome.output: outcome.status for outcome in outcomes if outcome.status is not Status.PASS
    }


@pytest.mark.rotates
@pytest.mark.parametrize("function", [jax_kda.kda, jax_kda.compiled], ids=["plain", "jitted"])
@pytest.mark.parametrize(
    "problem", [DENSE, PACKED, PACKED.replace(dtype="bf16"), DENSE.replace(T=1, state="absent")]
)
def test_a_conforming_token_loop_passes_there_and_back(
    function: Callable[..., Any], problem: Problem
) -> None:
    port = adapter(function)
    assert rejected(forward(port, problem)) == rejected(gradients(port, problem, of="both")) == {}


@pytest.mark.rotates
@pytest.mark.parametrize("problem", [DENSE, DENSE.replace(dtype="bf16")], ids=["fp32", "bf16"])
def test_its_gradients_are_consistent_with_its_outputs(problem: Problem) -> None:
    assert rejected(self_consistency(adapter(jax_kda.compiled), problem)) == {}


def test_float64_keeps_its_type_though_jax_would_not() -> None:
    assert not jax.config.jax_enable_x64
    problem = DENSE.replace(dtype="fp64")
    assert (
        rejected(forward(adapter(jax_kda.compiled), problem))
        == rejected(gradients(adapter(jax_kda.compiled), problem, of="both"))
        == {}
    )


@pytest.mark.rotates
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(("function", "wrong"), [("wrong_dbeta", "dbeta"), ("lost_dg", "dg")])
def test_a_wrong_custom_vjp_is_rejected_by_the_name_of_its_gradient(
    function: str, wrong: str, dtype: str
) -> None:
    port, problem = adapter(getattr(jax_kda, function)), DENSE.replace(dtype=dtype, T=12)
    assert rejected(forward(port, problem)) == {}
    assert rejected(gradients(port, problem, of="both")) == {wrong: Status.FAIL}


def test_a_wrong_custom_vjp_is_inconsistent_with_its_outputs() -> None:
    (found,) = self_consistency(adapter(jax_kda.wrong_dbeta), DENSE)
    assert found.status is Status.FAIL and "over tolerance: dbeta (" in found.message


def test_a_kernel_that_leaves_jax_is_forward_only() -> None:
    (found,) = gradients(adapter(jax_kda.leaves_jax), DENSE, of="both")
    assert found.status is Status.SKIP
    assert found.message.startswith("forward only: ") and "__array__" in found.message


def test_a_bug_in_a_backward_is_an_error_and_no_missing_backward() -> None:
    def bug(_: Any) -> Any:
        raise ValueError("seven is too many")

    (found,) = gradients(adapter(jax_kda.with_backward(bug)), DENSE, of="both")
    assert (found.status, "ValueError: seven is too many" in found.message) == (Status.ERROR, True)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (jax_kda.numpy_out, "o: wanted a JAX array (framework='jax'), got numpy.ndarray"),
        (jax_kda.triple, "o: wanted a JAX array (framework='jax'), got builtins.tuple"),
    ],
)
def test_what_is_no_jax_array_is_named(function: Callable[..., Any], said: str) -> None:
    found, *_ = forward(adapter(function, packing="none"), DENSE.replace(state="absent"))
    assert found.status is Status.ERROR and said in found.message


def test_o_alone_is_differentiated_too() -> None:
    port, problem = (
        adapter(jax_kda.o_alone, packing="none", final_state=False),
        DENSE.replace(state="absent"),
    )
    assert rejected(forward(port, problem)) == rejected(gradients(port, problem, of="o")) == {}


def test_other_layouts_and_a_decode_step_of_its_own() -> None:
    def turned(
        q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: float, initial_state: Any = None
    ) -> Any:
        x = (y.swapaxes(1, 2) for y in (q, k, v, g, beta))
        o, state = jax_kda.compiled(
            *x, scale=scale, initial_state=None if initial_state is None else initial_state.mT
        )
        return o.swapaxes(1, 2), state.mT

    port = adapter(turned, packing="none", layout="bhtd", state="vk", step=turned)
    assert rejected(forward(port, DENSE)) == rejected(gradients(port, DENSE, of="both")) == {}
    assert port.step(DENSE.replace(T=1).inputs()).o.shape == (1, 1, 2, 4)


def test_offsets_are_concrete_outside_of_a_kernel_s_own_jit() -> None:
    def lengths_first(
        q: Any,
        k: Any,
        v: Any,
        g: Any,
        beta: Any,
        *,
        scale: float,
        initial_state: Any = None,
        cu_seqlens: Any = None,
    ) -> Any:
        offsets = None if cu_seqlens is None else jax.numpy.array(tuple(map(int, cu_seqlens)))
        assert isinstance(scale, float)
        return jax_kda.compiled(
            q, k, v, g, beta, scale=scale, initial_state=initial_state, cu_seqlens=offsets
        )

    assert rejected(gradients(adapter(lengths_first), PACKED, of="both")) == {}


def test_segment_ids_reach_it() -> None:
    def by_ids(
        q: Any,
        k: Any,
        v: Any,
        g: Any,
        beta: Any,
        *,
        scale: float,
        initial_state: Any = None,
        segment_ids: Any = None,
    ) -> Any:
        if segment_ids is None:
            return jax_kda.compiled(q, k, v, g, beta, scale=scale, initial_state=initial_state)
        ids = segment_ids[0]
        starts = jax.numpy.flatnonzero(
            jax.numpy.diff(ids, prepend=-2), size=4, fill_value=ids.shape[0]
        )
        offsets = starts.at[-1].set(jax.numpy.sum(ids >= 0))
        return jax_kda.compiled(q, k, v, g, beta, scale=scale, cu_seqlens=offsets)[0], None

    problem = PACKED.replace(state="absent")
    port = adapter(by_ids, packing="segment_ids")
    assert rejected(forward(port, problem)) == rejected(gradients(port, problem, of="o")) == {}


def test_it_can_still_be_called_with_arrays() -> None:
    x = [jax.numpy.ones((1, 2, 1, 3))] * 4
    o, _ = adapter(jax_kda.kda)(*x, x[0][..., 0], scale=1.0)
    assert isinstance(o, jax.Array)


def test_records_name_jax_and_its_device() -> None:
    about = adapter(jax_kda.kda).environment()
    assert (about["jax"], about["device"]) == (jax.__version__, jax.default_backend())


def test_without_jax_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_: str) -> None:
        return None

    monkeypatch.setattr("kdaverify.adapters.base.util.find_spec", nothing)
    assert adapter(jax_kda.kda).missing() == "jax, ml_dtypes not installed: pip install jax"
    assert set(frameworks.FRAMEWORKS) == {"torch", "jax"}


def test_an_unknown_framework_is_refused_with_those_there_are() -> None:
    with pytest.raises(AdapterError, match="framework: wanted one of torch, jax, got 'mlx'"):
        kernel(framework="mlx")(jax_kda.kda)


@pytest.mark.parametrize("pair", [False, True])
def test_a_call_returns_what_the_function_does(pair: bool) -> None:
    """A norm returned (y, None), in torch y."""

    def norm(x: Any, gate: Any, weight: Any, *, eps: float) -> Any:
        y = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + eps) * weight * gate
        return (y, None) if pair else y

    port: Any = kernel(
        op="gated_rms_norm", framework="jax", activation="sigmoid", dtypes=("fp32",)
    )(norm)
    x = torch.randn(3, 4)
    found = port(x, x, torch.ones(4), eps=1e-6)
    y = found[0] if pair else found
    assert isinstance(y, torch.Tensor) and y.shape == (3, 4)
    assert not pair or found[1] is None
