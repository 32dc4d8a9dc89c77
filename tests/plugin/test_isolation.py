"""Isolation from the command line: the same verdicts, a crash that ends one test, no process left,
exit code 3 for what is required.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from kdaverify.checks.status import Status
from kdaverify.verdicts.record import read
from kdaverify.verdicts.verdict import Verdict
from tests.interruptible import interruptible
from tests.rows import PORT, ROOT

pytestmark = pytest.mark.whole_run

Pytest = Callable[..., pytest.RunResult]
Suite = Callable[..., None]
Rows = Callable[..., list[Verdict]]

# Judges in earnest, one inexpensive problem a test.
JUDGING: Final = """
from kdaverify.problems import Problem
FIELDS = dict(
    B=1, T=9, H=1, HV=1, K=4, V=6, gate="mild", key="random", beta="uniform", state="absent",
    value="normal", seed=1,
)
def test_forward(judge, dtype): judge(Problem(dtype=dtype, **FIELDS))
def test_conventions(judge): judge(Problem(dtype="fp32", **FIELDS))
"""
DRAWN: Final = """
from kdaverify.problems import problems
from hypothesis import given
from hypothesis import strategies as st
@given(data=st.data())
def test_forward(judge, data): judge(data.draw(problems(dtype="fp32", max_cost=1e4)))
"""


@pytest.fixture
def crash(pytester: pytest.Pytester) -> Callable[[str], None]:
    """Has port.py do something wherever it would convert an output."""

    def plant(what: str) -> None:
        port = pytester.path / "port.py"
        port.write_text(port.read_text().replace("    o, final =", f"    {what}\n    o, final ="))

    return plant


def workers_of(folder: Path) -> list[str]:
    """Command lines of the running workers that were started in a folder."""
    found: list[str] = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and (process / "cwd").readlink() == folder:
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return [line for line in found if "isolation.worker" in line]


def test_the_record_is_the_same_with_and_without(
    suite: Suite, rows: Rows, pytester: pytest.Pytester
) -> None:
    suite(forward=JUDGING, resume="def test_resume(judge): report(judge)")
    plain = rows("--no-isolate", name="plain.jsonl")
    isolated = rows("--isolate", name="isolated.jsonl")
    assert isolated == plain
    assert {verdict.status for verdict in plain} == {Status.PASS}
    assert not workers_of(pytester.path)


@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_crash_ends_one_test_and_the_rest_is_judged(
    suite: Suite,
    rows: Rows,
    crash: Callable[[str], None],
    pytester: pytest.Pytester,
    processes: str,
) -> None:
    suite(forward=JUDGING)
    crash("import ctypes, torch; q.dtype == torch.bfloat16 and ctypes.string_at(0)")
    found = rows("--isolate", f"--numprocesses={processes}", "--time-limit=60", "--memory-limit=2")
    assert {(verdict.dtype, verdict.status) for verdict in found} == {
        ("fp32", Status.PASS),
        ("bf16", Status.CRASH),
    }
    (crashed,) = (verdict for verdict in found if verdict.status is Status.CRASH)
    assert "SIGSEGV in string_at" in crashed.message
    assert "kdaverify replay --impl port.py --property forward --isolate" in crashed.replay
    assert not workers_of(pytester.path)


def test_no_smaller_crash_is_looked_for(
    suite: Suite, run: Pytest, crash: Callable[[str], None], pytester: pytest.Pytester
) -> None:
    suite(forward=DRAWN)
    crash("import os; os._exit(7)")
    started, record = time.monotonic(), pytester.path / "r.jsonl"
    run("--isolate", "--profile=acceptance", "--record", record).stdout.fnmatch_lines(
        ["CRASH: *the kernel ended its process with exit code 7*", "port: REJECT*"]
    )
    assert time.monotonic() - started < 60
    (verdict,) = read(record).verdicts
    assert (verdict.status, "exit code 7" in verdict.message) == (Status.CRASH, True)


def test_ctrl_c_leaves_a_readable_record_and_no_process(tmp_path: Path) -> None:
    hangs = PORT.replace("    o, final =", "    while q.dtype.itemsize == 2: pass\n    o, final =")
    (tmp_path / "port.py").write_text(hangs)
    words = [
        sys.executable,
        "-m",
        "kdaverify",
        "verify",
        "--impl",
        "port.py",
        "--isolate",
        "--workers",
        "0",
        "--record",
        "r.jsonl",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        interruptible(words),
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as session:
        deadline = time.monotonic() + 60
        while (
            not (workers_of(tmp_path) and (tmp_path / "r.jsonl").exists())
            and time.monotonic() < deadline
        ):
            time.sleep(0.1)
        time.sleep(1.0)
        os.killpg(session.pid, signal.SIGINT)
        out, err = session.communicate(timeout=120)
    assert session.returncode == 2, err
    assert "was interrupted before every case was judged" in out
    assert not workers_of(tmp_path)
    assert not read(tmp_path / "r.jsonl").truncated
