"""A kernel that ends the process of its test is isolated from then on: the case is a CRASH, the run
goes on and rejects.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from kdaverify.checks.status import Status
from kdaverify.cli import apart
from kdaverify.cli.request import Request
from kdaverify.verdicts.record import read
from kdaverify.verdicts.verdict import Verdict
from tests.rows import PORT, SUITE

pytestmark = pytest.mark.whole_run

Pytest = Callable[..., pytest.RunResult]
Suite = Callable[..., None]
Rows = Callable[..., list[Verdict]]

JUDGING: Final = """
from kdaverify.problems import Problem
FIELDS = dict(
    B=1, H=1, HV=1, K=4, V=6, gate="mild", key="random", beta="uniform", state="absent",
    value="normal", dtype="fp32", seed=1,
)
@pytest.mark.parametrize("T", [64, 65, 9, 1, 128])
def test_forward(judge, T): judge(Problem(T=T, **FIELDS))
"""
AT_ODD_TAIL: Final = "if q.shape[1] % 64 == 1: {}"
SEGFAULT: Final = "import ctypes; ctypes.string_at(0)"
# Ends the process of the tests alone: a worker process of the kernel has another parent than
# pytest-xdist's.
IN_TESTS_ONLY: Final = "import sys; 'execnet' in sys.modules and __import__('ctypes').string_at(0)"
START: Final = """
import sys, kdaverify
from pathlib import Path
kdaverify.suites_folder = lambda: Path("suites").resolve()
from rich.console import Console
from kdaverify.cli.request import Request
from kdaverify.cli.run import run
sys.exit(run(Request.model_validate_json(sys.argv[1]), Console(width=100)))
"""


def planted(what: str) -> str:
    """The port, which does something for a T of 64 n + 1."""
    return PORT.replace('dtypes=("fp32", "bf16")', 'dtypes=("fp32",)').replace(
        "    o, final =", f"    {AT_ODD_TAIL.format(what)}\n    o, final ="
    )


def statuses(verdicts: list[Verdict]) -> dict[int | None, set[Status]]:
    found: dict[int | None, set[Status]] = {}
    for verdict in verdicts:
        found.setdefault(verdict.T, set()).add(verdict.status)
    return found


def test_a_lost_worker_is_replaced_its_case_is_a_crash_and_the_session_rejects(
    suite: Suite, run: Pytest, pytester: pytest.Pytester
) -> None:
    suite(forward=JUDGING)
    (pytester.path / "port.py").write_text(planted(SEGFAULT))
    record = pytester.path / "record.jsonl"
    run("--numprocesses=2", "--record", record).stdout.fnmatch_lines(
        ["port: REJECT*", "*forward fp32 CRASH: 2 verdicts*"]
    )
    found = read(record).verdicts
    assert statuses([*found]) == {
        T: {Status.CRASH if T % 64 == 1 else Status.PASS} for T in (64, 65, 9, 1, 128)
    }
    crashed = [verdict for verdict in found if verdict.status is Status.CRASH]
    assert all(
        "SIGSEGV in string_at" in verdict.message and "--isolate" in verdict.replay
        for verdict in crashed
    )


def test_a_lost_worker_is_a_harness_error_where_isolation_is_refused(
    suite: Suite, run: Pytest, pytester: pytest.Pytester
) -> None:
    suite(forward=JUDGING.replace("[64, 65, 9, 1, 128]", "[64, 65]"))
    (pytester.path / "port.py").write_text(planted(SEGFAULT))
    result = run("--numprocesses=1", "--no-isolate")
    result.stdout.fnmatch_lines(["port: HARNESS ERROR*"])


def test_a_crash_that_is_not_repeated_rejects_all_the_same(
    suite: Suite, rows: Rows, pytester: pytest.Pytester
) -> None:
    suite(forward=JUDGING)
    (pytester.path / "port.py").write_text(planted(IN_TESTS_ONLY))
    found = rows("--numprocesses=1")
    (crash,) = (verdict for verdict in found if verdict.status is Status.CRASH)
    assert "Segmentation fault in string_at" in crash.message
    assert "the crash depends on what ran before" in crash.message
    assert {64, 9, 1, 65, 128} <= {verdict.T for verdict in found if verdict.status is Status.PASS}


def test_a_healthy_kernel_stays_where_it_is(
    suite: Suite, rows: Rows, pytester: pytest.Pytester
) -> None:
    suite(forward=JUDGING)
    (pytester.path / "port.py").write_text(planted("pass"))
    found = rows("--numprocesses=1")
    assert {verdict.status for verdict in found} == {Status.PASS}
    assert not any("--isolate" in verdict.replay for verdict in found)


@pytest.mark.rotates
@pytest.mark.parametrize("isolate", [None, False])
@pytest.mark.parametrize("what", [SEGFAULT, "import os; os._exit(0)"])
def test_a_lost_session_runs_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    what: str,
    *,
    isolate: bool | None,
) -> None:
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "test_forward.py").write_text(SUITE + JUDGING)
    (tmp_path / "port.py").write_text(planted(what))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(apart, "SESSION", ("-c", START))
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    record = Path("r.jsonl")
    request = Request(
        impls=("port.py",),
        profile="smoke",
        seed=None,
        record=record,
        json_file=None,
        workers="0",
        require_impl=False,
        diagnosis=0,
        isolate=isolate,
    )
    code = apart.judge_apart(request)
    out, err = capfd.readouterr()
    if isolate is None:
        assert code == 1, err
        assert "judging again, port.py in a worker process" in out
        assert statuses([*read(record).verdicts]) == {
            T: {Status.CRASH if T % 64 == 1 else Status.PASS} for T in (64, 65, 9, 1, 128)
        }
        assert not read(record).open_rows
    else:
        assert code == 2
        assert "without --no-isolate the session goes on" in err
