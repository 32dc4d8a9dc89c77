"""What is wrong with every call is found before the suites: one message that names the cause and the mend, and nothing else is scored."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from kdaverify.adapters import kernel
from kdaverify.adapters.base import Adapter, AdapterError
from kdaverify.adapters.eager import EAGER
from kdaverify.adapters.registry import find
from kdaverify.checks.conventions import conventions
from kdaverify.checks.status import Status
from kdaverify.faults.conforming import conforming
from oracles.inputs import Inputs

ROOT: Final = Path(__file__).parents[2]
Results = tuple[Tensor, Tensor]


def right(x: Inputs) -> Results:
    output = EAGER.forward(x)
    return output.o, output.final_state


def yielding(x: Inputs) -> Any:
    yield from right(x)


def in_place(x: Inputs) -> Results:
    x.q.mul_(2)
    return right(x)


def raising(x: Inputs) -> Results:
    raise ValueError(f"a tile of {x.K} is not supported")


def as_jax(x: Inputs) -> Any:
    import jax.numpy as jnp

    return tuple(jnp.asarray(tensor.float().numpy()) for tensor in right(x))


def changed(**fields: Callable[[Inputs], Any]) -> Callable[[Inputs], Results]:
    """The right kernel on a call with some inputs changed, as a port does that means something else by them."""
    return lambda x: right(Inputs(**{**vars(x), **{name: change(x) for name, change in fields.items()}}))


WRONG: Final[dict[str, tuple[Callable[[Inputs], Any], Status, str]]] = {
    "returns nothing": (lambda _: None, Status.MISSING, "the kernel returned None; return (o, final_state)"),
    "returns no state": (lambda x: right(x)[0], Status.MISSING, "final_state: wanted a tensor of shape"),
    "head-major o": (
        lambda x: (right(x)[0].transpose(1, 2).contiguous(), right(x)[1]), Status.SHAPE, "axes 1 and 2 are swapped: transpose them back",
    ),
    "o without its heads": (lambda x: (right(x)[0].flatten(2), right(x)[1]), Status.SHAPE, "check the declared layout"),
    "o in another format": (lambda x: (right(x)[0].half(), right(x)[1]), Status.DTYPE, "o: wanted torch.bfloat16"),
    "float64 outputs": (lambda x: tuple(y.double() for y in right(x)), Status.DTYPE, "got torch.float64; cast it"),
    "numpy": (lambda x: tuple(y.float().numpy() for y in right(x)), Status.TYPE, "return torch.from_numpy(...) of it"),
    "jax": (as_jax, Status.TYPE, 'declare framework="jax"'),
    "yields": (yielding, Status.TYPE, "the function yields; return the tensors"),
    "raises": (raising, Status.ERROR, "ValueError: a tile of 64 is not supported (test_preflight.py:"),
    "edits its inputs": (in_place, Status.MUTATED_INPUT, "q: the kernel changed 4096 of 4096 elements of its input in place"),
    "moves to a GPU": (lambda x: right(x.on("cuda")), Status.ERROR, 'declare device="cuda"'),
    "log2 gates": (changed(g=lambda x: x.g * 0.6931471805599453), Status.CONVENTION, "behaves as gate='log2'"),
    "no scale": (changed(scale=lambda _: 1.0), Status.CONVENTION, "= 1 / scale times its exact value"),
}  # fmt: skip


def port(call: Callable[[Inputs], Any]) -> Adapter:
    @kernel(contract="chunk64-bf16", packing="cu_seqlens", dtypes=("bf16",))
    def port(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, scale: float, initial_state: Tensor, cu_seqlens: Tensor) -> Any:
        return call(Inputs(q, k, v, g, beta, scale, initial_state, cu_seqlens))

    return port


@pytest.mark.parametrize("name", WRONG)
def test_one_message_names_the_cause_and_the_mend(name: str) -> None:
    call, status, said = WRONG[name]
    if name == "moves to a GPU" and torch.cuda.is_available():
        pytest.skip("there is one here")
    outcome = conventions(port(call))
    assert (outcome.status, said in outcome.message) == (status, True), outcome.message
    assert "\n" not in outcome.message
    assert port(call).operator.misfit(port(call)) == outcome.message


@pytest.mark.parametrize(
    "adapter",
    [
        port(right),
        port(lambda x: (right(x)[0].transpose(1, 2).contiguous().transpose(1, 2), right(x)[1])),
        conforming("chunk", state="vk", gate="log2", packing="cu_seqlens"),
    ],
    ids=("plain", "outputs that are views", "other conventions"),
)
def test_a_right_kernel_is_not_stopped(adapter: Adapter) -> None:
    assert conventions(adapter).status is Status.PASS
    assert adapter.operator.misfit(adapter) is None


def test_a_kernel_that_answers_ordinary_problems_alone_is_left_to_the_suites() -> None:
    def picky(x: Inputs) -> Results:
        if x.K % 64:
            raise ValueError("K: wanted a multiple of 64")
        return right(x)

    assert conventions(port(picky)).status is Status.SKIP
    assert port(picky).operator.misfit(port(picky)) is None


def test_wrong_numbers_are_left_to_the_suites() -> None:
    wrong = port(lambda x: (1.3 * right(x)[0], right(x)[1]))
    assert conventions(wrong).status is Status.SKIP


def test_a_decorator_needs_no_parentheses() -> None:
    @kernel
    def plain(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, scale: float, initial_state: Tensor) -> Results:
        return right(Inputs(q, k, v, g, beta, scale, initial_state))

    assert isinstance(plain, Adapter) and plain.name == "plain"
    assert conventions(plain).status is Status.PASS


def test_a_shipped_kernel_that_a_port_imports_is_not_judged_in_its_place(tmp_path: Path) -> None:
    head = "from kdaverify.adapters.eager import EAGER\n"
    (tmp_path / "alone.py").write_text(f"{head}class Port:\n    def __call__(self, q): ...\nport = Port()\n")
    with pytest.raises(AdapterError, match=r"holds no adapter; .*it defines port: say port = kdaverify.kernel\(...\)\(port\)"):
        find(str(tmp_path / "alone.py"))
    (tmp_path / "both.py").write_text(f"{head}import kdaverify\n@kdaverify.kernel\ndef port(q, k, v, g, beta, *, scale): ...\n")
    assert find(str(tmp_path / "both.py")).name == "port"


@pytest.mark.whole_run
def test_a_session_says_it_once_and_scores_nothing_else(tmp_path: Path) -> None:
    body = "def port(q, k, v, g, beta, *, scale, initial_state):\n    return q.transpose(1, 2) + 0, initial_state\n"
    (tmp_path / "port.py").write_text(f"import kdaverify\n@kdaverify.kernel\n{body}")
    command = [sys.executable, "-m", "kdaverify", "verify", "--impl", "port.py", "--record", "record.jsonl"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 1, done.stdout + done.stderr
    told = done.stdout[done.stdout.index("port: REJECT") :].splitlines()
    assert len(told) <= 8 and sum("wanted shape" in line for line in told) == 1, done.stdout
    assert "found before the suites" in done.stdout and "grade" not in done.stdout
