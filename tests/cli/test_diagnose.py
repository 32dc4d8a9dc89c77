"""`kdaverify diagnose` takes a case of a record, and says what is wrong with the kernel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kdaverify.limits import diagnosis_seconds
from kdaverify.problems import Problem
from kdaverify.verdicts.judge import Judge, Rejected
from kdaverify.verdicts.record import RecordWriter
from tests.faults.kernels import key_decay_applied_twice as wrong

Cli = Callable[..., tuple[int, str, str]]
SPEC = "tests.faults.kernels:key_decay_applied_twice"


@pytest.fixture
def record(tmp_path: Path, problem: Problem) -> Path:
    path = tmp_path / "r.jsonl"
    with RecordWriter(path) as writer, pytest.raises(Rejected):
        Judge(wrong, writer.append, "forward", spec=SPEC)(
            problem.replace(dtype="bf16", gate="log-sigmoid")
        )
    return path


@pytest.mark.parametrize("case", ["kda-bf16", "2"])
def test_a_case_is_named_by_the_beginning_of_its_id_or_its_row(
    cli: Cli, record: Path, case: str
) -> None:
    code, out, _ = cli("diagnose", record, case, "--seconds", "1")
    assert code == 1
    assert "diagnosis: matches known bug H1: key decay applied twice" in " ".join(out.split())
    assert f"kdaverify replay --impl {SPEC} --property forward" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "got 'nothing', which is none; failing cases: kda-bf16-"),
        (["17"], ", 1 to 2, got 17; failing rows: 2"),
        (["kda", "--property", "resume"], "does not fail in 'resume'; it fails in forward"),
        (["kda", "--impl", "other"], f"has no failure of 'other'; failures are of {SPEC}"),
    ],
)
def test_what_is_no_failing_case_is_reported(
    cli: Cli, record: Path, words: list[str], said: str
) -> None:
    code, _, complaint = cli("diagnose", record, *words)
    assert code == 2
    assert said in complaint


def test_a_row_that_passes_is_reported_with_those_that_fail(cli: Cli, record: Path) -> None:
    passing = record.read_text().splitlines(keepends=True)[0]
    code, _, complaint = cli("diagnose", record, "1")
    assert code == 2
    assert "is PASS, there is nothing to diagnose; failing rows: 2" in complaint
    record.write_text(passing)
    assert "in which none of 1 rows does; `kdaverify report " in cli("diagnose", record, "1")[2]


def test_a_record_that_is_not_there_is_reported(cli: Cli, tmp_path: Path) -> None:
    code, _, complaint = cli("diagnose", tmp_path / "none.jsonl", "1")
    assert (code, "no file" in complaint) == (2, True)


@pytest.mark.parametrize(("testing", "seconds"), [(1.0, 5.0), (40.0, 10.0), (600.0, 15.0)])
def test_the_diagnosis_of_a_session_takes_a_share_of_what_its_tests_took(
    testing: float, seconds: float
) -> None:
    assert diagnosis_seconds(testing) == pytest.approx(seconds)
