"""A session judges every output by others' standards too,
against an emulated kernel or the one that --benchmark names.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kdaverify.cli.request import Request
from kdaverify.problems import Problem
from kdaverify.verdicts.verdict import Verdict
from tests.rows import ROOT

Pytest = Callable[..., pytest.RunResult]
Suite = Callable[..., None]
Rows = Callable[..., list[Verdict]]

REGIMES = {"gate": "mild", "key": "random", "beta": "uniform", "state": "random", "value": "normal"}
SMALL = Problem.model_validate(
    {"B": 1, "T": 7, "H": 1, "HV": 2, "K": 4, "V": 3, "dtype": "fp32", "seed": 5, **REGIMES}
)
JUDGED = f"""
from kdaverify.problems import Problem
def test_forward(judge): judge(Problem.from_json('{SMALL.to_json()}'))
"""


@pytest.mark.parametrize(
    ("words", "name"), [((), "the baseline reference kernel"), (("--benchmark", "eager"), "eager")]
)
def test_the_record_and_the_terminal_summary_list_published_rules(
    suite: Suite, rows: Rows, words: tuple[str, ...], name: str
) -> None:
    suite(forward=JUDGED)
    o, final = rows(*words)
    assert o.benchmark == final.benchmark == name
    assert o.published["fla"].says == "pass"
    assert ("--benchmark eager" in o.replay) == bool(words)


def test_the_last_page_counts_them(suite: Suite, run: Pytest) -> None:
    suite(forward=JUDGED)
    run().stdout.fnmatch_lines(
        ["other published standards: of * pass an output that is rejected here*"]
    )
    run("--standards").stdout.fnmatch_lines(
        [
            "what other published standards would have said*",
            "*ours*2*0*",
            "*ascend-single*",
            "*tt-metal-pcc*",
        ]
    )


def test_a_benchmark_that_is_not_known_is_misuse(suite: Suite, run: Pytest) -> None:
    suite(forward=JUDGED)
    result = run("--benchmark", "nonesuch")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--benchmark: no implementation named 'nonesuch'*"])


def test_the_command_line_hands_it_on() -> None:
    tested = Request(
        impls=("eager",),
        profile="smoke",
        seed=None,
        record=None,
        json_file=None,
        workers="0",
        require_impl=False,
        benchmark="eager-recurrent",
    )
    assert "--benchmark=eager-recurrent" in tested.pytest_arguments(ROOT, ROOT / "suites.ini")
