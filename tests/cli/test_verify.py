"""`kdaverify verify`: four exit codes, one JSON object, a record, from anywhere, whatever the kernel does to its process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kdaverify.cli.request import Request
from tests.rows import PORT, ROOT, SUITE

JUDGING = """
@pytest.mark.parametrize("output", ["o", "final_state"])
def test_forward(judge, dtype, output): tell(judge, output=output, dtype=dtype, case="kda-0", problem="{}", regime="mild")
"""
BODIES = {
    0: "",
    1: "def test_wrong(judge): tell(judge, Status.FAIL, ratio=float('inf'), dtype='fp32', case='kda-1', regime='mixed')",
    2: "def test_broken(judge): raise KeyError('ours')",
    3: "def test_unasked(judge): tell(judge, Status.ORACLE_UNCERTIFIED)",
}
FAILURE_KEYS = {"case", "op", "output", "dtype", "regime", "property", "status", "ratio", "stage", "replay"}
Session = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """Runs one session on suites of our own, in a folder of its own, as the command line would."""
    (tmp_path / "port.py").write_text(PORT)
    suites = tmp_path / "suites"
    suites.mkdir()
    start = "import sys, kdaverify; from pathlib import Path; kdaverify.suites_folder = lambda: Path(sys.argv[1]);"
    start += "from rich.console import Console; from kdaverify.cli.request import Request; from kdaverify.cli.run import run;"
    start += "sys.exit(run(Request.model_validate_json(sys.argv[2]), Console(width=100)))"

    def call(body: str, **changes: Any) -> subprocess.CompletedProcess[str]:
        (suites / "test_forward.py").write_text(SUITE + JUDGING + body)
        given: dict[str, Any] = {
            "impls": ("port.py",),
            "profile": "smoke",
            "seed": None,
            "record": Path("records/r.jsonl"),
            "json_file": Path("out/d.json"),
            "workers": "0",
        }
        request = Request(**{**given, "require_impl": False, **changes})
        command = [sys.executable, "-c", start, str(suites), request.model_dump_json()]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False)

    return call


@pytest.mark.parametrize("code", BODIES)
def test_the_exit_code_is_the_decision(session: Session, tmp_path: Path, code: int) -> None:
    done = session(BODIES[code])
    assert done.returncode == code, done.stdout + done.stderr
    found = json.loads((tmp_path / "out/d.json").read_text())
    assert (found["exit_code"], found["decision"]) == (code, ["accept", "reject", "harness error", "not enough evidence"][code])
    assert f"decision: {found['decision'].upper()} (exit code {code})" in done.stdout
    assert "record: records/r.jsonl" in done.stdout


def test_the_json_has_the_promised_keys_and_is_strict_json(session: Session, tmp_path: Path) -> None:
    session(BODIES[1])
    text = (tmp_path / "out/d.json").read_text()
    found = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert {"decision", "exit_code", "implementations"} <= set(found)
    (impl,) = found["implementations"]
    assert (impl["name"], impl["cases"], impl["skipped"]) == ("port", 3, 0)
    (failure,) = impl["failures"]
    assert set(failure) == FAILURE_KEYS
    assert (failure["case"], failure["status"], failure["ratio"], failure["regime"]) == ("kda-1", "FAIL", None, "mixed")


def test_a_harness_exception_shows_its_traceback(session: Session) -> None:
    done = session(BODIES[2])
    assert "KeyError: 'ours'" in done.stdout
    assert "test_broken" in done.stdout


def test_a_suite_that_cannot_be_imported_is_a_harness_error(session: Session) -> None:
    done = session("import nonesuch")
    assert done.returncode == 2, done.stdout
    assert "nonesuch" in done.stdout


def test_a_kernel_that_kills_a_worker_ends_in_a_decision(session: Session) -> None:
    done = session("import os\ndef test_crash(judge): os.abort()", workers="1")
    assert done.returncode == 2, done.stdout
    assert "crashed while running" in done.stdout


def test_an_unknown_implementation_is_one_helpful_line(tmp_path: Path) -> None:
    done = command("verify", "--impl", "eagre", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("kdaverify: --impl: no implementation named 'eagre'; did you mean eager")
    assert done.stderr.count("\n") == 1


def test_an_unknown_profile_and_a_bad_record_are_one_helpful_line(tmp_path: Path) -> None:
    done = command("verify", "--profile", "huge", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "known ones are smoke, acceptance, nightly" in done.stderr
    done = command("verify", "--record", "r.csv", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "kdaverify: --record: wanted a file ending in .jsonl or .parquet, got r.csv; rename it\n")


def test_a_kernel_that_kills_the_session_is_named(tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text(PORT + "\nimport os, signal; os.kill(os.getpid(), signal.SIGSEGV)\n")
    done = command("verify", "--impl", "deadly.py", "--workers", "0", cwd=tmp_path)
    assert done.returncode == 2
    assert "the session judging deadly.py died of SIGSEGV" in done.stderr


def command(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "kdaverify", *words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False)
