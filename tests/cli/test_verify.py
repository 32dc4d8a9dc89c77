"""`kdaverify verify`: four exit codes, one JSON object, a record, from anywhere, whatever the
kernel does to its process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kdaverify.cli.gate import gate
from kdaverify.cli.report import report
from kdaverify.cli.request import Request
from kdaverify.problems import Problem
from tests.rows import PORT, ROOT, SUITE

pytestmark = pytest.mark.whole_run

JUDGING = """
@pytest.mark.parametrize("output", ["o", "final_state"])
def test_forward(judge, dtype, output):
    report(judge, output=output, dtype=dtype, case="kda-0", problem="{}", regime="mild")
"""
BODIES = {
    0: "",
    1: (
        "def test_wrong(judge): report(judge, Status.FAIL, ratio=float('inf'), dtype='fp32',"
        " case='kda-1', regime='mixed')"
    ),
    2: "def test_broken(judge): raise KeyError('ours')",
    3: "def test_uncertified(judge): report(judge, Status.ORACLE_UNCERTIFIED)",
}
FAILURE_KEYS = {
    "case",
    "op",
    "output",
    "dtype",
    "regime",
    "property",
    "status",
    "ratio",
    "stage",
    "diagnosis",
    "contrast",
    "same_as",
    "replay",
}
Done = subprocess.CompletedProcess[str]

START = """
import sys, kdaverify
from pathlib import Path
from rich.console import Console
kdaverify.suites_folder = lambda: Path(sys.argv[1])
from kdaverify.cli.request import Request
from kdaverify.problems import Problem
from kdaverify.cli.run import run
sys.exit(run(Request.model_validate_json(sys.argv[2]), Console(width=100)))
"""


def session(folder: Path, body: str, workers: str = "0") -> Done:
    """Runs one session on suites of our own, as the command line would."""
    suites = folder / "suites"
    suites.mkdir()
    (folder / "port.py").write_text(PORT)
    (suites / "test_forward.py").write_text(SUITE + JUDGING + body)
    request = Request(
        impls=("port.py",),
        profile="smoke",
        seed=None,
        record=Path("records/r.jsonl"),
        json_file=Path("out/d.json"),
        html=Path("out/page.html"),
        workers=workers,
        require_impl=False,
    )
    return python(folder, "-c", START, str(suites), request.model_dump_json())


def python(folder: Path, *words: str) -> Done:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Done, dict[str, Any]]]:
    """A session that should end with each exit code, and the JSON it wrote."""
    done: dict[int, tuple[Done, dict[str, Any]]] = {}
    for code, body in BODIES.items():
        folder = tmp_path_factory.mktemp("session")
        ended = session(folder, body)
        text = (folder / "out/d.json").read_text()
        done[code] = (
            ended,
            json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON")),
        )
    return done


@pytest.mark.parametrize(
    ("code", "title"),
    [
        (0, "passes smoke (not a release approval)"),
        (1, "rejected"),
        (2, "not judged"),
        (3, "undecided"),
    ],
)
def test_the_page_and_the_gate_say_what_the_exit_code_says(
    sessions: dict[int, tuple[Done, dict[str, Any]]], code: int, title: str
) -> None:
    done, _ = sessions[code]
    assert "page: out/page.html" in done.stdout
    folder = Path(done.args[3]).parent
    assert f"<h1>port {title}</h1>" in (folder / "out/page.html").read_text()
    report([folder / "records/r.jsonl"], html=folder / "later.html")
    assert f"<h1>port {title}</h1>" in (folder / "later.html").read_text()
    assert gate([folder / "records/r.jsonl"]) == code


@pytest.mark.parametrize("code", BODIES)
def test_the_exit_code_is_the_decision(
    sessions: dict[int, tuple[Done, dict[str, Any]]], code: int
) -> None:
    done, found = sessions[code]
    assert done.returncode == code, done.stdout + done.stderr
    assert (found["exit_code"], found["decision"]) == (
        code,
        ["accept", "reject", "harness error", "not enough evidence"][code],
    )
    assert f"decision: {found['decision'].upper()} (exit code {code})" in done.stdout
    assert "record: records/r.jsonl" in done.stdout


def test_the_json_has_the_promised_keys(sessions: dict[int, tuple[Done, dict[str, Any]]]) -> None:
    found = sessions[1][1]
    assert {"decision", "exit_code", "implementations"} <= set(found)
    (impl,) = found["implementations"]
    assert (impl["name"], impl["cases"], impl["skipped"]) == ("port", 3, 0)
    assert (found["profile"], found["seed"], impl["common_factors"]) == ("smoke", 0, [])
    assert impl["bugs"] == []
    assert (impl["judged"]["folder"], [*impl["judged"]["files"]]) == (".", ["port.py"])
    (failure,) = impl["failures"]
    assert set(failure) == FAILURE_KEYS
    assert (failure["case"], failure["status"], failure["ratio"], failure["regime"]) == (
        "kda-1",
        "FAIL",
        None,
        "mixed",
    )


def test_a_harness_exception_shows_its_traceback(
    sessions: dict[int, tuple[Done, dict[str, Any]]],
) -> None:
    done = sessions[2][0]
    assert "raise KeyError('ours')" in done.stdout
    assert "KeyError: 'ours', in test_forward.py::test_broken[port]" in done.stdout


def test_a_port_that_is_edited_while_it_is_judged_leaves_nothing_to_conclude(
    tmp_path: Path,
) -> None:
    edit = (
        "def test_edit(judge):\n    with open('port.py', 'a') as port: port.write('# later')\n   "
        " report(judge)"
    )
    done = session(tmp_path, edit)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "port.py changed while it was judged; judge it again" in done.stdout


def test_a_suite_that_cannot_be_imported_is_a_harness_error(tmp_path: Path) -> None:
    done = session(tmp_path, "import nonesuch")
    assert done.returncode == 2, done.stdout
    assert "nonesuch" in done.stdout


def test_a_kernel_that_kills_a_worker_ends_in_a_decision(tmp_path: Path) -> None:
    done = session(tmp_path, "import os\ndef test_crash(judge): os.abort()", workers="1")
    assert done.returncode == 2, done.stdout
    assert "crashed while running" in done.stdout


def test_a_harness_that_breaks_never_ends_with_the_code_of_a_decision(
    tmp_path: Path, problem: Problem
) -> None:
    (tmp_path / "file").touch()
    done = python(tmp_path, "-m", "kdaverify", "oracle", '{"op":"kda"}', "-o", "file/x.safetensors")
    assert done.returncode == 2
    (tmp_path / "folder.safetensors").mkdir()
    done = python(
        tmp_path, "-m", "kdaverify", "oracle", problem.to_json(), "-o", "folder.safetensors"
    )
    assert (done.returncode, "Traceback" in done.stderr) == (2, True)


def test_an_unknown_implementation_is_one_helpful_line(tmp_path: Path) -> None:
    done = python(tmp_path, "-m", "kdaverify", "verify", "--impl", "eagre")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        "kdaverify: --impl: no implementation named 'eagre'; did you mean eager"
    )
    assert done.stderr.count("\n") == 1


def test_an_unknown_profile_and_a_bad_record_are_one_helpful_line(tmp_path: Path) -> None:
    done = python(tmp_path, "-m", "kdaverify", "verify", "--profile", "huge")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "known ones are smoke, acceptance, nightly" in done.stderr
    done = python(tmp_path, "-m", "kdaverify", "verify", "--record", "r.csv")
    assert (done.returncode, done.stderr) == (
        2,
        "kdaverify: --record: wanted a file ending in .jsonl or .parquet, got r.csv; rename it\n",
    )


def test_a_kernel_that_kills_the_session_is_named(tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text(
        PORT + "\nimport os, signal; os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    done = python(tmp_path, "-m", "kdaverify", "verify", "--impl", "deadly.py", "--workers", "0")
    assert done.returncode == 2
    assert "the session judging deadly.py died of SIGSEGV" in done.stderr
