"""A kernel in another interpreter is differentiated there,
by its framework or by a backward of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from kdaverify.adapters.base import Adapter, AdapterError
from kdaverify.adapters.registry import find
from kdaverify.checks.forward import forward
from kdaverify.checks.gradients import gradients
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.self_consistency import self_consistency
from kdaverify.checks.status import Status
from kdaverify.problems import Problem
from tests.rows import ROOT

pytestmark = pytest.mark.whole_run

pytest.importorskip("jax")
pytest.importorskip("ml_dtypes")

HERE = ROOT / "tests/adapters"
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
Named = Callable[..., Adapter]


@pytest.fixture
def named() -> Iterator[Named]:
    """Makes adapters for functions of the files here, in another process of this interpreter;
    ends the processes.
    """
    made: list[Adapter] = []

    def call(framework: str, function: str, **changes: str) -> Adapter:
        packing = "cu_seqlens" if framework == "jax" else "none"
        options = {
            "python": sys.executable,
            "kernel": f"{HERE}/{framework}_kda.py:{function}",
            "framework": framework,
            "packing": packing,
        }
        words = ",".join(
            f"{name}={value}"
            for name, value in {**options, "dtypes": "fp64+fp32+bf16", **changes}.items()
        )
        made.append(find(f"elsewhere:{words}"))
        return made[-1]

    yield call
    for adapter in made:
        adapter.end()


def rejected(outcomes: list[Outcome]) -> dict[str, Status]:
    return {
        outcome.output: outcome.status for outcome in outcomes if outcome.status is not Status.PASS
    }


@pytest.mark.rotates
@pytest.mark.parametrize(("framework", "packed"), [("jax", PACKED), ("torch", DENSE)])
def test_a_conforming_token_loop_passes_there_and_back(
    named: Named, framework: str, packed: Problem
) -> None:
    adapter = named(framework, "kda")
    assert adapter.missing() is None
    for problem in (
        DENSE,
        packed.replace(dtype="bf16"),
        DENSE.replace(dtype="fp64"),
        DENSE.replace(T=1, state="absent"),
    ):
        assert (
            rejected(forward(adapter, problem))
            == rejected(gradients(adapter, problem, of="both"))
            == {}
        )
    assert (
        rejected(gradients(adapter, DENSE, of="o"))
        == rejected(gradients(adapter, DENSE, of="final_state"))
        == {}
    )
    assert rejected(self_consistency(adapter, DENSE)) == {}


@pytest.mark.rotates
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("framework", "function", "wrong"),
    [("jax", "lost_dg", "dg"), ("torch", "wrong_dbeta", "dbeta")],
)
def test_a_wrong_backward_is_rejected_by_the_name_of_its_gradient(
    named: Named, framework: str, function: str, wrong: str, dtype: str
) -> None:
    found = gradients(named(framework, function), DENSE.replace(dtype=dtype), of="both")
    assert rejected(found) == {wrong: Status.FAIL}


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_a_crash_in_the_backward_is_a_crash_and_the_next_call_has_a_process(
    named: Named, framework: str
) -> None:
    adapter = named(framework, "aborts")
    (found,) = gradients(adapter, DENSE, of="both")
    assert found.status is Status.CRASH and "died of SIGABRT during this call" in found.message
    assert rejected(forward(adapter, DENSE)) == {}


@pytest.mark.parametrize(
    ("framework", "function", "said"),
    [
        ("jax", "leaves_jax", "TracerArrayConversionError"),
        ("torch", "detached", "no output carries a gradient graph of torch"),
        ("torch", "leaves_torch", "Tensor that requires grad"),
        (
            "numpy",
            "kda",
            "NumPy has no derivatives; name the kernel's own backward by the option backward=",
        ),
    ],
)
def test_a_kernel_without_a_derivative_is_forward_only(
    named: Named, framework: str, function: str, said: str
) -> None:
    (found,) = gradients(named(framework, function), DENSE, of="both")
    assert found.status is Status.SKIP
    assert found.message.startswith("forward only: ") and said in found.message


def test_a_backward_of_its_own_is_judged_in_place_of_the_framework_s(named: Named) -> None:
    for problem in (DENSE, PACKED.replace(dtype="bf16"), DENSE.replace(state="absent")):
        assert (
            rejected(
                gradients(
                    named("jax", "leaves_jax", backward=f"{HERE}/jax_kda.py:backward"),
                    problem,
                    of="both",
                )
            )
            == {}
        )


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("backward", "said"),
    [
        (
            "backward_without_state",
            "backward: wanted (dq, dk, dv, dg, dbeta, d_initial_state), got 5 values",
        ),
        (
            "backward_in_fp32",
            (
                "the backward returned dq: wanted [1, 7, 1, 5] in torch.bfloat16, got [1, 7, 1, 5]"
                " in torch.float32"
            ),
        ),
        (
            "backward_per_value_head",
            (
                "the backward returned dq: wanted [1, 7, 1, 5] in torch.bfloat16, got [1, 7, 2, 5]"
                " in torch.bfloat16"
            ),
        ),
    ],
)
def test_gradients_of_a_wrong_number_type_or_shape_are_named(
    named: Named, backward: str, said: str
) -> None:
    # Torch would sum a gradient over value heads, and cast it, to fit.
    adapter = named("jax", "kda", backward=f"{HERE}/jax_kda.py:{backward}")
    (found,) = gradients(adapter, DENSE.replace(dtype="bf16"), of="both")
    assert found.status is Status.ERROR and said in found.message


def test_a_backward_that_is_not_there_is_named(named: Named) -> None:
    assert (
        named("jax", "kda", backward="/nowhere/port.py:back").missing()
        == "no file /nowhere/port.py; say backward=/path/of/my_port.py:my_function"
    )
    with pytest.raises(
        AdapterError,
        match=r"backward: wanted module:function or path/file\.py:function, got 'back'",
    ):
        named("jax", "kda", backward="back")
