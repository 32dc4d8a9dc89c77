"""Whatever a kernel does to its process ends one case, with a verdict that says what and where."""

from __future__ import annotations

import json
import re
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final
from unittest.mock import create_autospec

import pytest
import torch

import kdaverify
import oracles
from kdaverify.adapters import Adapter
from kdaverify.adapters.isolation import Isolated, postmortem, supervisor
from kdaverify.adapters.isolation.fault import reported
from kdaverify.checks.conventions import conventions
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.limits import Limits
from kdaverify.problems import Problem
from oracles.autograd import gradients_of
from tests.adapters.isolation.compiling import COMPILED
from tests.adapters.isolation.conftest import Isolate
from tests.adapters.isolation.planted import PLANTED

SECONDS: Final = 1.0
HERE: Final = r"\(planted.py:\d+\)"
VERDICTS: Final = {
    "segfault": (
        Status.CRASH,
        rf"died of SIGSEGV in string_at .*, called by segfault {HERE}, called by call {HERE}$",
    ),
    "sys.exit": (Status.CRASH, r"ended its process: SystemExit: 3 \(planted.py:\d+ in <lambda>\)$"),
    "os._exit": (
        Status.CRASH,
        r"exit code 4 .*\nit last printed:\n  printed by native code\n  out of tiles$",
    ),
    "loop": (
        Status.HANG,
        (
            rf"^no answer within 1 s .*; its interpreter runs: .*; in loop {HERE}, called by call"
            rf" {HERE}$"
        ),
    ),
    "loop in native code": (
        Status.HANG,
        rf"holds the interpreter lock; in loop_in_native_code {HERE}",
    ),
    "numpy memory": (Status.OOM, r"raised MemoryError: Unable to allocate 8.00 GiB"),
    "torch memory": (
        Status.OOM,
        r"raised RuntimeError: .*can't allocate memory: you tried to allocate 4294967296 bytes",
    ),
    "bad_alloc": (
        Status.OOM,
        r"could not get memory \(its limit is 1 GiB, --memory-limit\) and died of SIGABRT",
    ),
    "abort in a thread": (Status.CRASH, rf"died of SIGABRT in abort {HERE}, called by run"),
    "poisoned": (
        Status.CRASH,
        (
            r"left its device unusable: RuntimeError: CUDA error: an illegal memory access"
            r" .*\(planted.py"
        ),
    ),
}


def judged(adapter: Adapter, problem: Problem) -> list[Outcome]:
    return check("forward", adapter, problem, {})


IN_A_ROW: Final = [[*VERDICTS][first::3] for first in range(3)]
"""Each of them ends the process that the next one needs, and a process takes 2 s to start."""


@pytest.mark.whole_run
@pytest.mark.rotates
@pytest.mark.parametrize("names", IN_A_ROW, ids=", ".join)
def test_several_in_a_row_each_get_their_verdict_and_the_cases_between_keep_theirs(
    isolate: Isolate, problem: Problem, names: list[str]
) -> None:
    isolated, slowest = isolate(seconds=SECONDS), 0.0
    variants, healthy = isolated.variants(), judged(PLANTED, problem)
    for name in names:
        status, message = VERDICTS[name]
        assert judged(isolated, problem) == healthy  # starts the process that the fault will end
        started = time.monotonic()
        (outcome,) = judged(variants[name], problem)
        slowest = max(slowest, time.monotonic() - started)
        assert outcome.status is status, (name, outcome)
        assert re.search(message, outcome.message, re.DOTALL), (name, outcome.message)
    assert slowest < SECONDS + 4.0
    assert judged(isolated, problem) == healthy


@pytest.mark.parametrize(
    ("variant", "status", "message"),
    [
        ("compiles", Status.PASS, ""),
        ("compiles for ever", Status.HANG, r"^no answer within 4 s .*; in run \(autotuner.py:5\)"),
        ("waits", Status.HANG, r"^no answer within 1 s "),
    ],
)
def test_a_call_that_compiles_has_several_times_its_limit(
    problem: Problem, monkeypatch: pytest.MonkeyPatch, variant: str, status: Status, message: str
) -> None:
    monkeypatch.setattr(supervisor, "COMPILING", 4)
    isolated = Isolated(
        COMPILED, "tests.adapters.isolation.compiling:COMPILED", limits=Limits(seconds=SECONDS)
    )
    outcome = judged(isolated.variants()[variant], problem)[0]
    isolated.end()
    assert outcome.status is status and re.search(message, outcome.message), outcome.message


def test_a_kernel_that_hangs_up_has_crashed(
    planted: Isolated, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postmortem, "GRACE", 0.2)
    (outcome,) = judged(planted.variants()["hangs up"], problem)
    assert (outcome.status, outcome.message) == (
        Status.CRASH,
        "the kernel closed the connection of its process",
    )


def test_a_stopped_process_hangs_and_is_called_stopped(isolate: Isolate, problem: Problem) -> None:
    (outcome,) = judged(isolate(seconds=SECONDS / 2).variants()["stopped"], problem)
    assert outcome.status is Status.HANG
    assert "its process is stopped" in outcome.message


def test_a_kernel_that_only_raises_keeps_its_process_and_its_message(
    planted: Isolated, problem: Problem
) -> None:
    judged(planted, problem)
    before = planted.process()
    for name in ("raises", "wrong kernel"):
        own, apart = (judged(adapter.variants()[name], problem) for adapter in (PLANTED, planted))
        assert own == apart
        assert own[0].status is {"raises": Status.ERROR, "wrong kernel": Status.WRONG_KERNEL}[name]
    assert planted.process() == before


def test_memory_taken_bit_by_bit_is_seen_where_the_system_refuses_none(
    isolate: Isolate, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(PLANTED), "device", "cuda")  # there only the watcher guards memory
    (outcome,) = judged(isolate(gib=0.2).variants()["hoard"], problem)
    assert outcome.status is Status.OOM
    assert re.search(
        r"took 0\.\d+ GiB of memory, its limit is 0.2 GiB \(--memory-limit\); in hoard",
        outcome.message,
    ), outcome.message


def test_a_process_that_dies_after_its_answer_blames_the_call_before(
    planted: Isolated, problem: Problem
) -> None:
    assert {
        outcome.status for outcome in judged(planted.variants()["abort after the answer"], problem)
    } == {Status.PASS}
    time.sleep(0.5)
    (outcome,) = judged(planted, problem)
    assert outcome.status is Status.CRASH
    assert re.search(
        "died of SIGABRT in abort .*after its last answer, so the call before this one is to blame",
        outcome.message,
    )


def test_a_crash_ends_the_conventions_probe_at_once(
    planted: Isolated, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = create_autospec(Isolated.forward, side_effect=Isolated.forward)
    monkeypatch.setattr(Isolated, "forward", forward)
    outcome = conventions(planted.variants()["segfault"])
    assert outcome.status is Status.CRASH
    assert outcome.message.startswith("conventions: the kernel's process died of SIGSEGV")
    assert forward.call_count == 1


def test_without_a_process_of_its_own_memory_and_devices_are_reported_alike(
    problem: Problem,
) -> None:
    variants = PLANTED.variants()
    (outcome,) = judged(variants["poisoned"], problem)
    assert outcome.status is Status.CRASH


def place_of(call: Callable[[], object]) -> str:
    """What an exception of `call` is reported as, without line numbers."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 # whatever it raises
        return re.sub(r":\d+", "", reported(error))
    raise AssertionError("it raised nothing")


def test_an_exception_of_a_library_names_the_line_that_called_it() -> None:
    """jax and the standard library raise in files of theirs, which nobody is to change."""
    said = place_of(lambda: json.loads("{"))
    assert said.endswith("called at test_faults.py in <lambda>)"), said
    np = pytest.importorskip("numpy")
    said = place_of(lambda: np.linalg.cholesky(-np.eye(2)))
    assert said.endswith("called at test_faults.py in <lambda>)"), said


def test_an_exception_of_torchs_backward_names_no_file_of_the_harness() -> None:
    def edited() -> None:
        leaf = torch.ones(3, requires_grad=True)
        kept = leaf.exp()
        squared = kept * kept
        with torch.no_grad():
            kept.zero_()
        gradients_of({"o": squared}, {"leaf": leaf}, {"o": torch.ones(3)})

    said = place_of(edited)
    assert said.endswith("called at test_faults.py in edited)"), said


def test_a_backward_without_a_line_of_the_kernel_is_called_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frames = [
        traceback.FrameSummary(
            f"{Path(kdaverify.__file__).parent}/checks/execute.py", 1, "watched"
        ),
        traceback.FrameSummary(f"{Path(oracles.__file__).parent}/autograd.py", 1, "gradients_of"),
        traceback.FrameSummary(f"{Path(torch.__file__).parent}/autograd/graph.py", 1, "engine"),
    ]

    def extracted(_: object) -> list[traceback.FrameSummary]:
        return frames

    monkeypatch.setattr(traceback, "extract_tb", extracted)
    said = reported(RuntimeError("an edit"))
    assert said == "RuntimeError: an edit (graph.py:1 in engine, in the backward of its outputs)"
