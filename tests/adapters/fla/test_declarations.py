"""What the FLA adapters say of themselves: options, limits,
contracts, and the kernels that count as theirs.
"""

from __future__ import annotations

import re

import pytest

from kdaverify.adapters import AdapterError, WrongKernelError, find
from kdaverify.adapters.fla.adapter import Fla
from kdaverify.adapters.fla.runtime import ASCEND, MAINLINE, Backend, proof
from tests.adapters.standins import MakeProblem


class Ran:
    """A runtime that records what it was called with."""

    def __init__(self, *kernels: str) -> None:
        self._kernels = kernels

    def forget(self) -> None:
        self._kernels = ()

    def kernels_run(self) -> tuple[str, ...]:
        return self._kernels


OWN = {"cuda": f"{MAINLINE}chunk_intra.kernel", "npu": f"{ASCEND}chunk_intra.kernel_npu"}


@pytest.mark.parametrize("backend", ["cuda", "npu"])
def test_kernels_of_the_own_home_are_proof(backend: Backend) -> None:
    assert proof(Ran(OWN[backend], "fla.ops.utils.cumsum.kernel"), backend, "chunk").startswith(
        "kda."
    )


@pytest.mark.parametrize("backend", ["cuda", "npu"])
def test_kernels_of_another_home_are_not(backend: Backend) -> None:
    other = OWN["npu" if backend == "cuda" else "cuda"]
    for ran in (Ran(OWN[backend], other), Ran(other), Ran(), Ran("fla.ops.utils.cumsum.kernel")):
        with pytest.raises(WrongKernelError, match="wanted"):
            proof(ran, backend, "chunk")


def test_the_recurrence_is_not_proven_by_kernels_of_the_chunk_form() -> None:
    with pytest.raises(WrongKernelError, match="fused_recurrent"):
        proof(Ran(OWN["cuda"]), "cuda", "recurrent")


def test_options_are_part_of_the_name_and_of_the_declaration() -> None:
    adapter = find("fla:state=vk,chunk_size=32,beta=sigmoid")
    assert adapter.name == "fla:chunk_size=32,beta=sigmoid,state=vk"
    assert (adapter.conventions.state, adapter.conventions.beta) == ("vk", "logit")
    assert adapter.contract("bf16").chunk_size == 32
    assert find("fla:state=kv").name == "fla"


@pytest.mark.parametrize(
    ("spec", "reported"),
    [
        ("fla:colour=red", "no option 'colour'; it has chunk_size, safe_gate"),
        ("fla:chunk_size=16", "chunk_size: wanted one of 32, 64, got '16'"),
        ("fla-recurrent:chunk_size=32", "no option 'chunk_size'"),
        ("triton_npu:autotune=best", "autotune: wanted a whole number"),
        ("fla:state=vk,state", "wanted each option once"),
    ],
)
def test_options_that_do_not_exist_are_refused_with_those_that_do(spec: str, reported: str) -> None:
    with pytest.raises(AdapterError, match=re.escape(reported)):
        find(spec)


# What its backward keeps in fp32.
KEPT = "dAkk:fp32;dAqk:fp32;dkb:fp32;dvb:fp32]"


def test_contracts_follow_the_format_and_where_it_runs() -> None:
    rounded = {dtype: f"beta_k:{dtype};beta_k_wy:{dtype};{KEPT}" for dtype in ("bf16", "fp16")}
    interpreted = Fla("fla", "cuda", "chunk")
    vars(interpreted)["_native"] = False
    assert [interpreted.contract(dtype).name for dtype in ("fp32", "bf16")] == [
        "chunk64-fp32",
        f"chunk64-bf16-fp32solve[{rounded['bf16']}",
    ]
    native = Fla("fla", "cuda", "chunk")
    vars(native)["_native"] = True
    assert [native.contract(dtype).name for dtype in ("fp32", "fp16")] == [
        "chunk64-tf32",
        f"chunk64-fp16-tf32solve[{rounded['fp16']}",
    ]
    assert find("fla-recurrent").contract("bf16").name == "recurrent-fp32"
    assert (
        find("triton_npu:safe_gate=yes").contract("bf16").name
        == f"chunk64-bf16-anchored-fp32solve[beta_k_wy:bf16;{KEPT}"
    )
    # Made in the kernel, beta is fp32, and so is its product with k.
    assert (
        find("fla:beta=sigmoid").contract("bf16").name
        == f"chunk64-bf16-fp32solve[beta_k:fp32;beta_k_wy:fp32;{KEPT}"
    )


def test_limits_are_reasons(make_problem: MakeProblem) -> None:
    assert "K <= 256" in str(find("fla").supports(make_problem(K=300)))
    assert "safe_gate promises" in str(
        find("fla:safe_gate=yes").supports(make_problem(dtype="bf16", gate="bound-20"))
    )
    assert "a sigmoid" in str(find("fla:beta=sigmoid").supports(make_problem(beta="two")))
    assert find("fla:gate=softplus").supports(make_problem(dtype="fp32")) is None
    assert "gates g in [-1e+06, -9.31323e-10] alone" in str(
        find("fla:gate=softplus").supports(make_problem(dtype="bf16", gate="zero"))
    )
