"""Which tests there are: one for every implementation, format,
regime and panel problem that a suite takes.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kdaverify.adapters import find
from kdaverify.checks.laws.registry import LAWS
from kdaverify.operators.kda.axes import lawful_dtypes
from kdaverify.problems import panel
from kdaverify.problems.regimes import GATES

Pytest = Callable[..., pytest.RunResult]
Suite = Callable[..., None]


def ids(result: pytest.RunResult) -> list[str]:
    return [line.partition("::")[2] for line in result.outlines if "::" in line]


def test_ids_carry_implementation_format_and_regime(suite: Suite, run: Pytest) -> None:
    suite(forward="def test_forward(judge, dtype, gate): report(judge)")
    found = ids(run("--collect-only", "-q"))
    assert found == [
        f"test_forward[port-{dtype}-{gate}]"
        for dtype in ("fp32", "bf16")
        for gate, regime in GATES.items()
        if regime.weight
    ]


def test_laws_are_tested_in_every_format_but_in_smoke_in_the_usual_ones(
    suite: Suite, run: Pytest
) -> None:
    suite(laws="def test_laws(judge, lawful): report(judge)")
    # The port takes no packs, and a gate for every channel: laws of packs and of shared gates have
    # no case.
    of_shared_gates = ("rotated-channels", "shifted-gates", "permuted-heads")
    takes = [
        law
        for law, chosen in LAWS.items()
        if not chosen.wanted.get("packed") and law not in of_shared_gates
    ]
    assert ids(run("--collect-only", "-q")) == [
        f"test_laws[port-{dtype}-{law}]" for dtype in ("fp32", "bf16") for law in takes
    ]
    assert lawful_dtypes(find("eager"), "smoke") == ("fp32", "bf16")
    assert lawful_dtypes(find("eager"), "acceptance") == find("eager").dtypes


def test_the_panel_is_a_parameter(suite: Suite, run: Pytest) -> None:
    suite(panel="def test_panel(judge, named): report(judge)")
    found = ids(run("--collect-only", "-q"))
    about_sizes, wanted = (
        {
            f"test_panel[port-{dtype}-{entry.name}]"
            for dtype in ("fp32", "bf16")
            for entry in panel(dtype, "smoke")
            if ("smoke" in entry.one_format) is once
        }
        for once in (True, False)
    )
    # In the order of evidence, which has a test of its own; so have problems about sizes, of which
    # a kernel is tested on those that its domain has.
    assert sorted(test for test in found if test not in about_sizes) == sorted(wanted)


def test_implementations_repeat_and_the_default_is_eager(
    suite: Suite, pytester: pytest.Pytester
) -> None:
    suite(forward="def test_forward(judge): report(judge)")
    plain = ("-p", "kdaverify.plugin", "--collect-only", "-q")
    assert ids(pytester.runpytest_inprocess(*plain)) == ["test_forward[eager]"]
    both = pytester.runpytest_inprocess(*plain, "--impl=eager", "--impl=port.py", "--impl=eager")
    assert ids(both) == ["test_forward[eager]", "test_forward[port]"]


def test_the_header_prints_profile_and_seed(suite: Suite, run: Pytest) -> None:
    suite(forward="def test_forward(judge): report(judge)")
    run("--kda-seed=7").stdout.fnmatch_lines(["kdaverify: port.py, profile smoke, --kda-seed 7"])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--impl=eagre"], "*--impl: no implementation named 'eagre'; did you mean eager*"),
        (["--impl=absent.py"], "*--impl: absent.py: no such file*"),
        (
            ["--profile=huge"],
            "*--profile: no profile named 'huge'; known ones are smoke, acceptance, nightly*",
        ),
        (["--device=cuda"], "*--device: port runs on cpu, not on cuda*"),
        (["--impl=port.py:port"], "*--impl: port.py and port.py:port are both named 'port'*"),
        (["--kda-seed=-3"], "*--kda-seed*"),
        (["--record=out.csv"], "*--record: record: wanted a file ending in .jsonl or .parquet*"),
        (["--time-limit=0"], "*--time-limit: wanted a positive number of seconds, got 0*"),
        (["--memory-limit=nan"], "*--memory-limit: wanted a positive number of GiB, got nan*"),
    ],
)
def test_misuse_is_refused_before_anything_runs(
    suite: Suite, run: Pytest, words: list[str], complaint: str
) -> None:
    suite(forward="def test_forward(judge): report(judge)")
    result = run(*words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([complaint])


def test_a_test_that_takes_no_kernel_is_left_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_plain(): pass")
    result = pytester.runpytest_inprocess("-p", "kdaverify.plugin")
    result.assert_outcomes(passed=1)
    assert "decision" not in result.stdout.str()
