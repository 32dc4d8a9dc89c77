"""The PTO adapter over a shared object compiled here: right where the conventions are, and each
wrong one is named.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kdaverify.adapters import Adapter, AdapterError, WrongKernelError
from kdaverify.adapters.ascend.pto import ASCEND_PTO
from kdaverify.adapters.ascend.shared_object import OutOfBoundsError
from kdaverify.checks.conventions import conventions
from kdaverify.checks.execute import CallError, execute
from kdaverify.checks.forward import forward
from kdaverify.checks.status import Status
from tests.adapters.standins import MakeProblem, distance

SOURCE = Path(__file__).parent / "mega_kernel.c"
PLAIN: dict[str, Any] = {
    "B": 1,
    "H": 1,
    "HV": 2,
    "K": 128,
    "V": 128,
    "dtype": "fp16",
    "state": "absent",
}
CALLS: dict[str, dict[str, Any]] = {
    "one chunk": {"T": 5},
    "a tail": {"T": 130},
    "batch": {"B": 2, "T": 21, "H": 2},
    "pack": {"T": 150, "lengths": (0, 3, 129, 0)},
    "scale": {"T": 9, "scale": 0.3},
}
Compile = Callable[..., Adapter]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """The adapter on the stand-in, with one fault compiled in."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler: install gcc")
    folder = tmp_path_factory.mktemp("pto")
    probe = folder / "half.c"
    probe.write_text("_Float16 x;\n")
    if subprocess.run(
        [compiler, "-c", "-o", str(folder / "half.o"), str(probe)], capture_output=True, check=False
    ).returncode:
        pytest.skip(f"{compiler} has no _Float16: install gcc >= 12 or clang >= 15")

    @functools.cache
    def library(fault: str) -> Path:
        target = folder / f"{fault.lower()}.so"
        flags = ["-std=gnu11", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", f"-DFAULT={fault}"]
        subprocess.run([compiler, *flags, "-o", str(target), str(SOURCE), "-lm"], check=True)
        return target

    def adapter(fault: str = "NONE", **options: str) -> Adapter:
        return ASCEND_PTO.configured({"library": str(library(fault)), "device": "cpu", **options})

    return adapter


@pytest.mark.parametrize("call", CALLS)
def test_a_right_library_is_right(make_problem: MakeProblem, compiled: Compile, call: str) -> None:
    adapter, problem = compiled(block_dim="3"), make_problem(**{**PLAIN, **CALLS[call]})
    assert adapter.supports(problem) is None and adapter.exposes(problem) == ("o",)
    assert distance(adapter, problem)["o"] < 4e-4
    assert adapter.proof().startswith("call_kernel of none.so (sha256 ")
    assert adapter.proof().endswith("block_dim 3, two-token self-test fits")


def test_its_answers_pass_the_suites_and_its_conventions_the_probe(
    make_problem: MakeProblem, compiled: Compile
) -> None:
    adapter = compiled()
    assert adapter.contract("fp16").name == "chunk128-fp16"
    assert conventions(adapter).status is Status.PASS
    problem = make_problem(**PLAIN, T=140, gate="mild", key="coherent-0.9", beta="near-one")
    assert [outcome.status for outcome in forward(adapter, problem)] == [Status.PASS]


def test_gates_are_those_of_fp16_and_queries_come_multiplied(
    make_problem: MakeProblem, compiled: Compile
) -> None:
    x = make_problem(**PLAIN, T=9, scale=0.3).inputs()
    received = compiled().received(x)
    assert torch.equal(received.g, x.g.half().float()) and not torch.equal(received.g, x.g)
    assert torch.equal(received.q, (x.q.float() * 0.3).half()) and received.scale == 1.0


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("GATE_SUMMED", "gates read as natural log, summed from the start of the chunk"),
        ("BETA_DOUBLED", "beta doubled"),
        ("SCALED_INSIDE", "a scale of K^-1/2 applied inside (declared: q comes multiplied)"),
        ("Q_TOKEN_MAJOR", "q read token by token"),
        ("G_HEAD_MAJOR", "g read head by head"),
        ("O_HEAD_MAJOR", "o written head by head"),
    ],
)
def test_what_no_declaration_expresses_is_named_by_the_self_test(
    make_problem: MakeProblem, compiled: Compile, fault: str, said: str
) -> None:
    with pytest.raises(WrongKernelError) as caught:
        compiled(fault).forward(make_problem(**PLAIN, T=5).inputs())
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("GATE_LOG2", "declared gate='log', but behaves as gate='log2'"),
        ("GATE_DECAY", "declared gate='log', but behaves as gate='decay'"),
        ("BETA_LOGIT", "declared beta='value', but behaves as beta='logit'"),
    ],
)
def test_a_wrong_declaration_is_a_convention_error(
    compiled: Compile, fault: str, said: str
) -> None:
    outcome = conventions(compiled(fault))
    assert (outcome.status, said in outcome.message) == (Status.CONVENTION, True), outcome.message


def test_the_snapshot_of_the_last_chunk_is_judged_as_the_final_state(
    make_problem: MakeProblem, compiled: Compile
) -> None:
    problem = make_problem(**PLAIN, T=130)
    leaving = compiled("SNAPSHOT_LEAVING", final_state="snapshot")
    assert (
        leaving.exposes(problem) == ("o", "final_state")
        and leaving.contract("fp16").name == "chunk128-fp16-fp16carry"
    )
    assert max(distance(leaving, problem).values()) < 4e-4
    pack = make_problem(**PLAIN, T=133, lengths=(0, 130, 0, 3))
    assert max(distance(leaving, pack).values()) < 4e-4
    # As the kernel documents its snapshots, they are not the final state.
    entering = forward(compiled(final_state="snapshot"), problem)
    assert [outcome.status for outcome in entering] == [Status.PASS, Status.FAIL]
    assert "state='vk'" not in conventions(leaving).message


def test_a_write_past_a_buffer_is_an_error(make_problem: MakeProblem, compiled: Compile) -> None:
    with pytest.raises(
        OutOfBoundsError, match=r"o: the kernel changed 2 of the 512 bytes after its \[2, 3, 128\]"
    ):
        compiled("WRITES_PAST_O").forward(make_problem(**PLAIN, T=5).inputs())


@pytest.mark.parametrize("heads", [(1, 2), (2, 2)])
def test_an_edited_input_is_the_callers(
    make_problem: MakeProblem, compiled: Compile, heads: tuple[int, int]
) -> None:
    problem = make_problem(**{**PLAIN, "H": heads[0], "HV": heads[1]}, T=5)
    with pytest.raises(CallError, match="k: the kernel changed 1 of") as caught:
        execute(compiled("EDITS_KEYS"), problem.inputs(), ("o",))
    assert caught.value.status is Status.MUTATED_INPUT


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"V": 64}, "no V = 64: it takes widths of 128 alone"),
        ({"state": "random"}, "no initial state"),
        ({"lengths": (0,), "T": 0}, "at least one token"),
    ],
)
def test_limits_of_the_interface_are_reasons(
    make_problem: MakeProblem, changes: dict[str, Any], said: str
) -> None:
    assert said in str(ASCEND_PTO.supports(make_problem(**{**PLAIN, **changes})))


def test_a_library_that_is_not_there_or_is_none_is_said(
    tmp_path: Path, make_problem: MakeProblem
) -> None:
    assert "no library: name a shared object with megagdn-pto's call_kernel" in str(
        ASCEND_PTO.missing()
    )
    assert "no file" in str(ASCEND_PTO.configured({"library": str(tmp_path / "no.so")}).missing())
    text = tmp_path / "text.so"
    text.write_text("no library")
    adapter = ASCEND_PTO.configured({"library": str(text), "device": "cpu"})
    assert adapter.missing() is None
    with pytest.raises(AdapterError, match="cannot be loaded"):
        adapter.forward(make_problem(**PLAIN, T=5).inputs())
    with pytest.raises(
        AdapterError, match="block_dim: wanted a whole number of at least 1, got '0'"
    ):
        ASCEND_PTO.configured({"block_dim": "0"})
