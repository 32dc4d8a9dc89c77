"""From the suite to the record and the terminal summary: the stage of a failing case, once
Hypothesis has done with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import pytest

from kdaverify.checks.location import NoStage
from kdaverify.checks.status import Status
from kdaverify.verdicts import locate
from kdaverify.verdicts.verdict import Verdict

pytestmark = pytest.mark.whole_run

Pytest = Callable[..., pytest.RunResult]
Suite = Callable[..., None]
Rows = Callable[..., list[Verdict]]

STAGED: Final = """
from tests.checks import staged
from tests.checks.staged import Staged, tables

class Port(Staged):
    dtypes = ("bf16",)

port = Port("port", FAULT)
"""
NEUMANN: Final = "tables(solve=staged.truncated_neumann)"
DOUBLED: Final = """
right = port.forward

def doubled(inputs):
    output = right(inputs)
    return type(output)(2 * output.o, output.final_state)

port.forward = doubled
"""
FIELDS: Final = (
    'B=1, H=1, HV=1, K=4, V=6, gate="slow", key="identical", beta="one", state="absent",'
    ' value="normal", seed=1'
)
JUDGING: Final = f"""
from kdaverify.problems import Problem
def test_forward(judge): judge(Problem(T=40, dtype="bf16", {FIELDS}))
"""
DRAWN: Final = f"""
from kdaverify.problems import Problem
from hypothesis import given
from hypothesis import strategies as st
@given(T=st.integers(1, 60))
def test_forward(judge, T): judge(Problem(T=T, dtype="bf16", {FIELDS}))
"""


@pytest.fixture
def plant(pytester: pytest.Pytester, suite: Suite) -> Callable[..., None]:
    """Has port.py expose stages, with a fault in one of them, beside a suite of one test."""

    def write(fault: str, body: str = JUDGING) -> None:
        suite(forward=body)
        (pytester.path / "port.py").write_text(STAGED.replace("FAULT", fault))

    return write


@pytest.fixture
def tested(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """T of every case that is localised."""
    seen: list[int] = []
    real = locate.localise

    def noting(adapter: Any, problem: Any, *rest: Any) -> Any:
        seen.append(problem.T)
        return real(adapter, problem, *rest)

    monkeypatch.setattr(locate, "localise", noting)
    return seen


def test_a_planted_stage_fault_is_named_in_the_failure_the_table_and_the_last_page(
    plant: Callable[..., None], run: Pytest
) -> None:
    plant(NEUMANN)
    reported = run()
    reported.stdout.fnmatch_lines(
        [
            "FAIL: o: *",
            "  first wrong stage: solve, on exact inputs; R: *",
            "*kda*bf16*forward*solve*",
        ]
    )
    reported.stdout.fnmatch_lines(
        [
            "port: forward o FAIL in bf16, once",
            "  first wrong stage: solve, on exact inputs; R: *",
            "port: REJECT*",
        ]
    )


@pytest.mark.parametrize("isolation", ["--no-isolate", "--isolate"])
def test_the_record_names_it_whatever_process_the_kernel_runs_in(
    plant: Callable[..., None], rows: Rows, isolation: str
) -> None:
    plant(NEUMANN)
    found = rows(isolation)
    assert [(verdict.output, verdict.status, verdict.stage) for verdict in found] == [
        ("o", Status.FAIL, "solve"),
        ("final_state", Status.FAIL, "solve"),
    ]
    assert all(
        json.loads(verdict.model_dump_json())["located"].startswith("on exact inputs; R: ")
        for verdict in found
    )


def test_of_a_shrunk_failure_the_first_and_the_smallest_case_are_localised(
    plant: Callable[..., None], rows: Rows, tested: list[int]
) -> None:
    plant(NEUMANN, DRAWN)
    found = rows("--profile=acceptance")
    failing = [verdict for verdict in found if verdict.status.rejects]
    sizes = list(dict.fromkeys(json.loads(verdict.problem)["T"] for verdict in failing))
    assert tested == sizes and 1 <= len(sizes) <= 2
    assert {verdict.stage for verdict in failing} == {"solve"}
    assert {verdict.stage for verdict in found if not verdict.status.rejects} <= {None}


def test_nothing_is_localised_of_a_conforming_kernel(
    plant: Callable[..., None], rows: Rows, tested: list[int]
) -> None:
    plant("tables()")
    assert {(verdict.status, verdict.stage) for verdict in rows()} == {(Status.PASS, None)}
    assert not tested


def test_a_kernel_without_stages_says_so(
    suite: Suite, run: Pytest, rows: Rows, pytester: pytest.Pytester
) -> None:
    suite(forward=JUDGING)
    port = pytester.path / "port.py"
    port.write_text(port.read_text() + DOUBLED)
    assert {verdict.stage for verdict in rows() if verdict.status.rejects} == {NoStage.NONE_EXPOSED}
    run().stdout.fnmatch_lines(
        ["  stages: none exposed", "*kda*bf16*", "  stages: none exposed", "port: REJECT*"]
    )


def test_nothing_is_localised_of_a_kernel_that_took_its_process(
    plant: Callable[..., None], rows: Rows, tested: list[int]
) -> None:
    plant(NEUMANN + ")\nport.forward = lambda inputs: __import__('os')._exit(3")
    assert [(verdict.status, verdict.stage) for verdict in rows("--isolate")] == [
        (Status.CRASH, None)
    ]
    assert not tested


def test_a_harness_that_breaks_keeps_its_traceback(
    plant: Callable[..., None], run: Pytest, tested: list[int]
) -> None:
    plant(NEUMANN, "def test_forward(judge):\n    report(judge)\n    raise KeyError('ours')")
    run().stdout.fnmatch_lines(["*KeyError: 'ours'*", "port: HARNESS ERROR*"])
    assert not tested


def test_two_cases_of_a_kind_are_localised_and_no_more(
    plant: Callable[..., None], rows: Rows, tested: list[int]
) -> None:
    plant(
        NEUMANN,
        JUDGING.replace(
            "def test", "import pytest\n@pytest.mark.parametrize('T', (40, 41, 42, 43))\ndef test"
        )
        .replace("(judge)", "(judge, T)")
        .replace("T=40", "T=T"),
    )
    found = rows()
    assert len({verdict.case for verdict in found if verdict.status.rejects}) == 4
    assert tested == [40, 41]
    assert [verdict.stage for verdict in found if verdict.output == "o"] == [
        "solve",
        "solve",
        None,
        None,
    ]
