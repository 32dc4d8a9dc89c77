"""What is wrong with every call is found before the suites: one message that names the cause and
the mend, and nothing else is scored.
"""

from __future__ import annotations

import importlib
import re
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
from kdaverify.adapters.isolation import housed
from kdaverify.adapters.registry import find
from kdaverify.checks.conventions import conventions
from kdaverify.checks.status import Status
from kdaverify.faults.conforming import conforming
from kdaverify.limits import Limits
from kdaverify.verdicts.record import read
from oracles.inputs import Inputs

ROOT: Final = Path(__file__).parents[2]
GOLDEN: Final = Path(__file__).with_name("preflight")
Results = tuple[Tensor, Tensor]


def right(x: Inputs) -> Results:
    output = EAGER.forward(x)
    return output.o, output.final_state


def yielding(x: Inputs) -> Any:
    yield from right(x)


def in_place(x: Inputs) -> Results:
    x.q.mul_(2)
    return right(x)


def state_in_place(x: Inputs) -> Results:
    o, state = right(x)
    if x.initial_state is None:
        return o, state
    with torch.no_grad():
        return o, x.initial_state.copy_(state)


def state_slot(x: Inputs) -> Results:
    """A view of the state that was given, which nothing changed: of one token with beta = 0."""
    o, state = right(x)
    return o, state if x.initial_state is None else x.initial_state[:]


def raising(x: Inputs) -> Results:
    raise ValueError(f"a tile of {x.K} is not supported")


def as_jax(x: Inputs) -> Any:
    import jax.numpy as jnp

    return tuple(jnp.asarray(tensor.float().numpy()) for tensor in right(x))


def calls_jax(x: Inputs) -> Any:
    jnp: Any = importlib.import_module("jax.numpy")
    return jnp.einsum("bthk,bthv->bhkv", x.k, x.v), x.initial_state


def changed(**fields: Callable[[Inputs], Any]) -> Callable[[Inputs], Results]:
    """The right kernel on a call with some inputs changed,
    as a port does that means something else by them.
    """
    return lambda x: right(
        Inputs(**{**vars(x), **{name: change(x) for name, change in fields.items()}})
    )


def transposed(x: Inputs) -> Results:
    o, state = right(x)
    return o, state.mT.contiguous()


WRONG: Final[dict[str, tuple[Callable[[Inputs], Any], Status]]] = {
    "returns nothing": (lambda _: None, Status.MISSING),
    "returns no state": (lambda x: right(x)[0], Status.MISSING),
    "head-major o": (
        lambda x: (right(x)[0].transpose(1, 2).contiguous(), right(x)[1]),
        Status.SHAPE,
    ),
    "o without its heads": (lambda x: (right(x)[0].flatten(2), right(x)[1]), Status.SHAPE),
    "o in another format": (lambda x: (right(x)[0].half(), right(x)[1]), Status.DTYPE),
    "float64 outputs": (lambda x: tuple(y.double() for y in right(x)), Status.DTYPE),
    "numpy": (lambda x: tuple(y.float().numpy() for y in right(x)), Status.TYPE),
    "jax": (as_jax, Status.TYPE),
    "calls jax": (calls_jax, Status.ERROR),
    "yields": (yielding, Status.TYPE),
    "raises": (raising, Status.ERROR),
    "edits its inputs": (in_place, Status.MUTATED_INPUT),
    "edits its state": (state_in_place, Status.MUTATED_INPUT),
    "returns its state": (state_slot, Status.ALIASED_OUTPUT),
    "moves to a GPU": (lambda x: right(x.on("cuda")), Status.ERROR),
    "log2 gates": (changed(g=lambda x: x.g * 0.6931471805599453), Status.CONVENTION),
    "transposed final state": (transposed, Status.CONVENTION),
    "no scale": (changed(scale=lambda _: 1.0), Status.CONVENTION),
}
"""Calls that are wrong for any problem, and what each is rejected as; the whole message lies in
GOLDEN."""


def port(call: Callable[[Inputs], Any]) -> Adapter:
    @kernel(contract="chunk64-bf16", packing="cu_seqlens", dtypes=("bf16",))
    def port(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        initial_state: Tensor,
        cu_seqlens: Tensor,
    ) -> Any:
        return call(Inputs(q, k, v, g, beta, scale, initial_state, cu_seqlens))

    return port


@kernel(contract="chunk64-bf16", dtypes=("bf16",))
def states_vk(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, scale: float, initial_state: Tensor
) -> Results:
    return transposed(Inputs(q, k, v, g, beta, scale, initial_state.mT.contiguous()))


def wrong(name: str) -> Adapter:
    """The kernel of a golden message."""
    return states_vk if name == "transposed states" else port(WRONG[name][0])


@pytest.mark.parametrize("name", [*WRONG, "transposed states"])
def test_one_message_names_the_cause_and_the_mend(name: str) -> None:
    if name == "moves to a GPU" and torch.cuda.is_available():
        pytest.skip("there is one here")
    outcome = conventions(wrong(name))
    assert outcome.status is (WRONG[name][1] if name in WRONG else Status.CONVENTION), (
        outcome.message
    )
    assert golden(outcome.message) == (GOLDEN / f"{name.replace(' ', '_')}.txt").read_text()
    assert wrong(name).operator.misfit(wrong(name)) == outcome.message


def golden(message: str) -> str:
    """A message without what depends on the machine: line numbers,
    and what torch says where there is no GPU.
    """
    numbered = re.sub(r"(\.py):\d+", r"\1:LINE", message)
    return re.sub(r"raised \w+: .*(?=; its tensors lie)", "raised ...", numbered) + "\n"


INSTANCE: Final = "an instance without the decorator"


def test_every_golden_message_is_of_a_wrong_call() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == {
        name.replace(" ", "_") for name in (*WRONG, "transposed states", INSTANCE)
    }


def test_an_object_without_the_decorator_is_named_with_its_mend(tmp_path: Path) -> None:
    (tmp_path / "port.py").write_text(
        "class Port:\n    def __call__(self, q, k, v, g, beta, *, scale): ...\nport = Port()\n"
    )
    with pytest.raises(AdapterError) as refused:
        find(str(tmp_path / "port.py"))
    message = str(refused.value).replace(f"{tmp_path}/", "")
    assert golden(message) == (GOLDEN / f"{INSTANCE.replace(' ', '_')}.txt").read_text()


def test_the_same_missing_device_in_every_call_is_no_rejection() -> None:
    """What is raised in every call alike may be missing here alone: not enough evidence."""
    if torch.cuda.is_available():
        pytest.skip("there is one here")
    adapter = wrong("moves to a GPU")
    assert len({outcome.message for outcome in adapter.operator.preflight(adapter)}) == 1


class Callable5:
    """A kernel that is an object, as modules of torch are."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        initial_state: Tensor,
    ) -> Results:
        return right(Inputs(q, k, v, g, beta, scale, initial_state))


@pytest.mark.parametrize(
    "adapter",
    [
        port(right),
        port(lambda x: (right(x)[0].transpose(1, 2).contiguous().transpose(1, 2), right(x)[1])),
        kernel(contract="chunk64-bf16", dtypes=("bf16",))(Callable5()),
        conforming("chunk", state="vk", gate="log2", packing="cu_seqlens"),
    ],
    ids=("plain", "outputs that are views", "an object", "other conventions"),
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
    def plain(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        initial_state: Tensor,
    ) -> Results:
        return right(Inputs(q, k, v, g, beta, scale, initial_state))

    assert isinstance(plain, Adapter) and plain.name == "plain"
    assert conventions(plain).status is Status.PASS


def test_a_shipped_kernel_that_a_port_imports_is_not_judged_in_its_place(tmp_path: Path) -> None:
    head = "from kdaverify.adapters.eager import EAGER\n"
    (tmp_path / "alone.py").write_text(
        f"{head}class Port:\n    def __call__(self, q): ...\nport = Port()\n"
    )
    with pytest.raises(
        AdapterError,
        match=r"holds no adapter; .*it defines port: write port = kdaverify.kernel\(...\)\(port\)",
    ):
        find(str(tmp_path / "alone.py"))
    (tmp_path / "both.py").write_text(
        f"{head}import kdaverify\n@kdaverify.kernel\ndef port(q, k, v, g, beta, *, scale): ...\n"
    )
    assert find(str(tmp_path / "both.py")).name == "port"


@pytest.mark.whole_run
def test_a_kernel_that_ends_every_process_is_reported_once(tmp_path: Path) -> None:
    """It had 271 failing verdicts of 15 kinds, each after a process of its own."""
    done = verified(tmp_path, "    os.abort()")
    assert done.returncode == 1, done.stdout + done.stderr
    assert (
        "the process ended during the pre-flight: Aborted in port (port.py:4); judging again,"
        " port.py in a worker process" in done.stdout
    )
    assert "died of SIGABRT in port (port.py:4)" in done.stdout
    assert "found before the suites" in done.stdout and "1 of 1 tests judged" in done.stdout


def test_a_kernel_that_hangs_in_every_call_is_stopped_after_a_few(tmp_path: Path) -> None:
    """Each further test waited for the whole time limit: 120 s, of 285 tests."""
    (tmp_path / "port.py").write_text(
        "import time, kdaverify\n@kdaverify.kernel\n"
        "def port(q, k, v, g, beta, *, scale, initial_state): time.sleep(60)\n"
    )
    spec = str(tmp_path / "port.py")
    port = housed(find(spec), spec, isolate=True, limits=Limits(seconds=0.2))
    try:
        assert "no answer within 0.2 s" in str(port.operator.misfit(port))
    finally:
        port.end()


def test_a_kernel_that_ends_the_process_for_some_sizes_is_left_to_the_suites() -> None:
    every = port(lambda _: sys.exit(3))
    some = port(lambda x: right(x) if x.K % 64 == 0 else sys.exit(3))
    assert "ended its process: SystemExit: 3" in str(every.operator.misfit(every))
    assert some.operator.misfit(some) is None


def verified(folder: Path, body: str) -> subprocess.CompletedProcess[str]:
    (folder / "port.py").write_text(
        "import os, kdaverify\n@kdaverify.kernel\n"
        f"def port(q, k, v, g, beta, *, scale, initial_state):\n{body}\n"
    )
    command = [sys.executable, "-m", "kdaverify", "verify", "--impl", "port.py"]
    return subprocess.run(
        [*command, "--workers", "0", "--diagnosis", "0"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.whole_run
def test_a_session_says_it_once_and_scores_nothing_else(tmp_path: Path) -> None:
    body = (
        "def port(q, k, v, g, beta, *, scale, initial_state):\n    return q.transpose(1, 2) + 0,"
        " initial_state\n"
    )
    (tmp_path / "port.py").write_text(f"import kdaverify\n@kdaverify.kernel\n{body}")
    command = [
        sys.executable,
        "-m",
        "kdaverify",
        "verify",
        "--impl",
        "port.py",
        "--record",
        "record.jsonl",
    ]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    reported = done.stdout[done.stdout.index("port: REJECT") :].splitlines()
    assert len(reported) <= 9 and done.stdout.count("wanted shape") == 1, done.stdout
    assert "found before the suites" in done.stdout and "grade" not in done.stdout
    # Before any worker process starts, by the first suite alone.
    assert "1 of 1 tests judged, 1 failing" in done.stdout
    assert read(tmp_path / "record.jsonl").accounts[0].expected[0].properties
