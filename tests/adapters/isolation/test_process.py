"""A worker process lives no longer than it should, and leaves nothing behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import torch

from kdaverify.adapters import AdapterError
from kdaverify.adapters.isolation import Isolated, housed
from kdaverify.adapters.isolation.arena import Arena, same
from kdaverify.adapters.isolation.fault import CallFailure, fault_of
from kdaverify.adapters.isolation.process import Process
from kdaverify.limits import Limits
from kdaverify.problems import Problem
from tests.adapters.isolation.conftest import SPEC
from tests.adapters.isolation.planted import PLANTED
from tests.processes import alive
from tests.rows import ROOT

# Runs one call, says which process answered it, and then calls a kernel that never answers.
ABANDONING: Final = f"""
from kdaverify.adapters.isolation import Isolated
from kdaverify.limits import Limits
from kdaverify.problems import Problem
from tests.adapters.isolation.planted import PLANTED
import sys
inputs = Problem.from_json(sys.argv[1]).inputs()
isolated = Isolated(PLANTED, {SPEC!r}, limits=Limits())
isolated.forward(inputs)
print(isolated.process(), flush=True)
if sys.argv[2] != "none":
    isolated.variants()[sys.argv[2]].forward(inputs)
"""


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def open_files() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_process_that_is_ended_twice_closes_no_file_of_others(tmp_path: Path) -> None:
    inputs, outputs = Arena.new("inputs"), Arena.new("outputs")
    process = Process("eager", inputs, outputs, surroundings={}, folder=tmp_path, size=0)
    process.end()
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
    process.end()
    for fd in others:
        os.close(fd)


def test_processes_files_and_memory_are_given_back(problem: Problem) -> None:
    before, pids = open_files(), list[int | None]()
    isolated = Isolated(PLANTED, SPEC, limits=Limits())
    isolated.forward(problem.inputs())
    pids.append(isolated.process())
    with pytest.raises(
        CallFailure,
        match=(
            "the kernel's process was killed from outside, as the system does when memory runs out"
        ),
    ):
        isolated.variants()["killed"].forward(problem.inputs())
    pids.append(isolated.process())
    isolated.forward(problem.inputs())
    pids.append(isolated.process())
    isolated.end()
    pids.append(isolated.process())
    del isolated
    assert open_files() == before
    assert all(not alive(pid) for pid in pids if pid is not None)
    assert pids[1] is pids[3] is None


def test_a_forgotten_adapter_ends_its_process(problem: Problem) -> None:
    isolated = Isolated(PLANTED, SPEC, limits=Limits())
    isolated.forward(problem.inputs())
    pid = isolated.process()
    assert pid is not None
    assert alive(pid)
    del isolated
    gc.collect()
    assert not alive(pid)


@pytest.mark.parametrize(
    ("entry", "how"), [("none", None), ("loop in native code", signal.SIGKILL)]
)
def test_no_process_outlives_its_parent(
    problem: Problem, entry: str, how: signal.Signals | None
) -> None:
    words = [sys.executable, "-c", ABANDONING, problem.to_json(), entry]
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        if how is not None:
            parent.send_signal(how)
        _, complaints = parent.communicate(timeout=120)
    assert complaints == ""
    assert wait_for(lambda: not alive(pid))


def test_the_terminal_s_signals_do_not_reach_it(planted: Isolated, problem: Problem) -> None:
    planted.forward(problem.inputs())
    pid = planted.process()
    assert pid is not None
    assert os.getsid(pid) == pid != os.getsid(0)


def test_an_interrupted_call_is_not_answered_later(planted: Isolated, problem: Problem) -> None:
    echo, loop = planted.variants()["echo"], planted.variants()["loop"]
    echo.forward(problem.inputs())
    pid = planted.process()
    assert pid is not None
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    with pytest.raises(KeyboardInterrupt):
        loop.forward(problem.inputs())
    assert not alive(pid)
    assert echo.forward(problem.inputs()).o.equal(problem.inputs().v)


def test_a_talkative_kernel_disturbs_nothing(planted: Isolated, problem: Problem) -> None:
    loud = planted.variants()["talks"]
    for _ in range(3):
        assert loud.forward(problem.inputs()).o.shape == problem.inputs().v.shape


def test_an_adapter_that_its_process_cannot_find_is_refused_in_words(
    tmp_path: Path, problem: Problem
) -> None:
    isolated = Isolated(PLANTED, str(tmp_path / "absent.py"), limits=Limits())
    with pytest.raises(AdapterError, match=r"absent.py: no such file"):
        isolated.forward(problem.inputs())
    assert isolated.process() is None


def test_a_verdict_is_reported_even_where_the_process_cannot_say_what_it_runs_with(
    planted: Isolated,
) -> None:
    assert (
        planted.variants()["unspeakable"]
        .environment()["mode"]
        .startswith("unknown: the kernel ended its process with exit code 5")
    )


def test_where_a_kernel_runs_is_the_adapter_s_choice_unless_tested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PLANTED", raising=False)
    elsewhere = PLANTED.variants()["elsewhere"]
    assert housed(elsewhere, SPEC, limits=Limits()) is elsewhere
    assert os.environ["PLANTED"] == "2"  # what its process needs, where that is ours
    assert isinstance(housed(PLANTED, SPEC, isolate=True, limits=Limits()), Isolated)
    monkeypatch.setattr(type(PLANTED), "isolated", True)
    assert isinstance(housed(PLANTED, SPEC, limits=Limits()), Isolated)
    assert housed(PLANTED, SPEC, isolate=False, limits=Limits()) is PLANTED


def test_what_vendors_say_is_understood() -> None:
    said = {
        "CUDA out of memory. Tried to allocate 20.00 GiB": "OOM",
        "Triton Error [CUDA]: out of memory": "OOM",
        "RESOURCE_EXHAUSTED: Out of memory allocating 17 bytes": "OOM",
        "CUDA error: device-side assert triggered": "CRASH",
        "Triton Error [CUDA]: an illegal memory access was encountered": "CRASH",
        "The Inner error is reported as above. The error code is 507015": "CRASH",
        "out of resource: shared memory, Required: 300000": "ERROR",
    }
    for text, kind in said.items():
        with pytest.raises(RuntimeError) as caught:
            raise RuntimeError(text)
        assert fault_of(caught.value).kind == kind, text


def test_the_wrong_limits_are_refused() -> None:
    for limits in ({"seconds": 0.0}, {"seconds": float("inf")}, {"gib": -1.0}):
        with pytest.raises(ValueError, match="wanted a positive number"):
            Limits(**limits)


def test_tensors_with_an_axis_of_stride_0_are_compared_inside_their_memory() -> None:
    """Comparing as many bytes as they have elements read 4 MB behind 4 bytes, and died of it."""
    nan, one = (torch.tensor([value]).expand(1000, 1000) for value in (torch.nan, 1.0))
    assert same(nan, torch.tensor([torch.nan]).expand(1000, 1000))
    assert not same(nan, one)
