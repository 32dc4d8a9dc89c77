"""What surrounds a kernel is no property of it:
warnings, and errors that do not depend on the problem.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Final

import pytest

from kdaverify.checks.status import Status
from kdaverify.verdicts.decision import Ruling
from kdaverify.verdicts.gate import GateCriteria, gate
from kdaverify.verdicts.verdict import Verdict
from tests.rows import PORT, ROOT

Pytest = Callable[..., pytest.RunResult]
Suite = Callable[..., None]
Rows = Callable[..., list[Verdict]]

JUDGING: Final = """
from kdaverify.problems import Problem
FIELDS = dict(
    B=1, H=1, HV=1, K=4, V=6, gate="mild", key="random", beta="uniform", state="absent",
    value="normal", dtype="fp32", seed=1,
)
@pytest.mark.parametrize("T", [64, 65, 9])
def test_forward(judge, T): judge(Problem(T=T, **FIELDS))
"""


def planted(what: str) -> str:
    """The port, which does something at every call."""
    return PORT.replace('dtypes=("fp32", "bf16")', 'dtypes=("fp32",)').replace(
        "    o, final =", f"    {what}\n    o, final ="
    )


def test_a_warning_of_a_kernel_is_no_error(
    suite: Suite, rows: Rows, pytester: pytest.Pytester
) -> None:
    suite(forward=JUDGING)
    warns = (
        "import warnings\nwarnings.warn('old API', DeprecationWarning, stacklevel=1)\n"
        + planted("warnings.warn('slow path', DeprecationWarning)")
    )
    (pytester.path / "port.py").write_text(warns)
    assert {verdict.status for verdict in rows("-Werror::DeprecationWarning")} == {Status.PASS}


@pytest.mark.parametrize(
    "case",
    [
        (
            "torch.no_such_function(q)",
            Ruling.INSUFFICIENT,
            "cannot run here: *AttributeError: module 'torch'*called at port.py:*",
        ),
        (
            "no_such_name",
            Ruling.INSUFFICIENT,
            "cannot run here: *NameError: name 'no_such_name'*port.py:*",
        ),
        (
            "q.shape[1] > 64 and torch.no_such_function(q)",
            Ruling.REJECT,
            "forward fp32 ERROR: 1 verdict",
        ),
        ("raise ValueError(q.shape[1])", Ruling.REJECT, "conventions fp32 ERROR: 2 verdicts"),
    ],
)
def test_an_error_that_does_not_depend_on_the_problem(
    suite: Suite, run: Pytest, pytester: pytest.Pytester, case: tuple[str, Ruling, str]
) -> None:
    what, ruling, reason = case
    suite(forward=JUDGING)
    (pytester.path / "port.py").write_text("import torch\n" + planted(what))
    record = pytester.path / "r.jsonl"
    run("--record", record).stdout.fnmatch_lines([f"port: {ruling.upper()}*"])
    (found,) = gate([record], GateCriteria(date(2026, 3, 1)))
    assert found.ruling is ruling
    pytest.LineMatcher([*found.reasons]).fnmatch_lines([f"{reason}*"])


def test_a_session_that_tests_no_kernel_imports_no_torch(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest(
        "import sys\ndef pytest_unconfigure(): print('torch imported:', 'torch' in sys.modules)"
    )
    pytester.makepyfile("def test_nothing(): pass")
    result = pytester.runpytest_subprocess("-p", "kdaverify.plugin", "-s")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["torch imported: False"])
