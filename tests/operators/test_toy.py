"""A toy operator goes through the same door as KDA: suites, tolerances, laws, stages,
worker process, record, gate, page, campaign, smaller cases, kill matrix.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kdaverify.checks.gradients import gradients
from kdaverify.checks.localise import localise
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.cli.gate import gate
from kdaverify.cli.report import report
from kdaverify.operator import BOTH, OPERATORS, operator_named, problem_from_json
from kdaverify.operators.pipeline_kernel import PipelineKernel
from kdaverify.verdicts.record import read
from tests.operators.toy import FAULTS, TOY, ToyProblem, kernel_with
from tests.operators.toy import kernel as right

pytestmark = pytest.mark.whole_run

ROOT = Path(__file__).parents[2]
FILE = "tests/operators/toy.py"
LARGE = ToyProblem(M=40, K=40, N=40)


def session(folder: Path, *arguments: str, code: int) -> str:
    record = folder / "record.jsonl"
    command = [sys.executable, "-m", *arguments, "--record", str(record)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def kdaverify(*arguments: str) -> int:
    command = [sys.executable, "-m", "kdaverify", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, timeout=300, check=False, stdin=subprocess.DEVNULL
    ).returncode


def test_a_session_accepts_the_right_kernel_and_rejects_every_fault(tmp_path: Path) -> None:
    named = ("kernel", "last_column", "narrow_sums", "first_tile")
    specs = [part for name in named for part in ("--impl", f"{FILE}:{name}")]
    out = session(tmp_path, "pytest", "suites", "-q", "-p", "no:cacheprovider", *specs, code=1)
    assert "toy: ACCEPT" in out and all(f"toy-{fault}: REJECT" in out for fault in FAULTS)
    rows = read(tmp_path / "record.jsonl").verdicts
    compared = [row for row in rows if row.property not in ("calls", "laws")]
    assert {row.op for row in rows} == {"toy"} and {row.oracle for row in compared} == {
        "float64 sums"
    }
    assert {row.output for row in compared if row.implementation == "toy"} == {
        "y",
        "da",
        "db",
        "dbias",
    }
    assert gate([tmp_path / "record.jsonl"]) == 1
    assert report([tmp_path / "record.jsonl"], html=tmp_path / "page.html") == 0
    assert "toy-first-tile" in (tmp_path / "page.html").read_text()


def test_a_worker_process_gives_the_same_decision(tmp_path: Path) -> None:
    assert "toy: ACCEPT" in session(
        tmp_path, "kdaverify", "verify", "--impl", f"{FILE}:kernel", "--isolate", code=0
    )


def test_a_campaign_makes_a_failure_as_small_as_it_gets(tmp_path: Path) -> None:
    out = session(
        tmp_path, "kdaverify", "campaign", "--impl", f"{FILE}:first_tile", "--cases", "40", code=1
    )
    assert '"K":1,"M":17,"N":1' in out, "rows past the sixteenth are wrong, whatever the widths"


def test_a_hundred_calls_of_a_right_kernel_pass_there_and_back() -> None:
    for seed in range(100):
        problem = ToyProblem(
            M=seed % 37 + 1,
            K=seed % 23 + 1,
            N=seed % 11 + 1,
            seed=seed,
            bias=bool(seed % 3),
            dtype=("fp32", "bf16")[seed % 2],
        )
        found = [*check("forward", right, problem, {}), *gradients(right, problem, of=BOTH)]
        assert {outcome.status for outcome in found} == {Status.PASS}, [
            str(outcome.comparison) for outcome in found
        ]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_wrong_forward_and_right_where_it_does_nothing(fault: str) -> None:
    (found,) = check("forward", kernel_with(fault), LARGE, {})
    assert found.status is Status.FAIL and found.comparison is not None
    assert str(found.comparison.worst).startswith("M ") and "alpha 0.5" in str(
        found.comparison.worst
    )
    assert {outcome.status for outcome in gradients(kernel_with(fault), LARGE, of=BOTH)} == {
        Status.PASS
    }


def test_a_problem_is_read_back_as_one_of_its_operator() -> None:
    assert operator_named("toy") is OPERATORS["toy"] is TOY
    assert problem_from_json(LARGE.to_json()) == LARGE
    assert problem_from_json(LARGE.to_json()).inputs().signature is TOY.signature


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failure_is_localised_in_the_stage_that_holds_the_fault(fault: str) -> None:
    found = localise(kernel_with(fault), LARGE, "forward", {})
    assert found.stage == "product" and found.reported.startswith("on exact inputs; product: ")


def test_every_stage_of_the_right_kernel_is_within_its_tolerance_forward_and_backward() -> None:
    steps = list(TOY.stage_steps(right, LARGE, both_passes=True))
    assert [step.name for step in steps] == ["product", "y", "scaled", "da", "db", "dbias"]
    assert {step.outcome.status for step in steps} == {Status.PASS}


def test_a_stage_of_the_backward_that_is_wrong_is_found_and_no_other() -> None:
    changes = {"db": lambda _, db: 1.02 * db}  # pyright: ignore[reportUnknownLambdaType]
    wrong = PipelineKernel(TOY, "wrong", ("bf16",), changes)
    found = TOY.stage_steps(wrong, LARGE.replace(dtype="bf16"), both_passes=True)
    assert [step.name for step in found if step.outcome.status.rejects] == ["db"]


def test_the_law_holds_of_the_right_kernel_and_not_of_one_that_adds_a_constant() -> None:
    (found,) = check("laws", right, LARGE, {"law": "doubled"})
    assert found.status is Status.PASS
    shifted = PipelineKernel(TOY, "shifted", ("fp32",), {"y": lambda _, y: y + 1})
    (found,) = check("laws", shifted, LARGE, {"law": "doubled"})
    assert found.status is Status.FAIL


def test_the_kill_matrix_kills_three_faults_of_three_with_no_false_alarm(tmp_path: Path) -> None:
    out = tmp_path / "matrix.json"
    options = ["--impl", "tests.operators.toy:kernel", "--workers", "2", "--out", str(out)]
    assert kdaverify("kill-matrix", *options) == 0
    found = json.loads(out.read_text())
    assert (found["killed"], found["total"], found["false_alarms"]) == (3, 3, 0)
    assert {fault["id"] for fault in found["faults"]} == {*FAULTS} and found["legal_runs"] > 40


def test_it_takes_at_most_150_lines() -> None:
    assert len((ROOT / FILE).read_text().splitlines()) <= 150
