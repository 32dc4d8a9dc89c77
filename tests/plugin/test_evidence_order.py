"""Tests run in the order of evidence, those of no kernel where they are,
on one process or several.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kdaverify
from benchmarks.ported_faults import port
from kdaverify.checks.property_table import PROPERTIES, Tier
from kdaverify.verdicts.record import read

Pytest = Callable[..., pytest.RunResult]
Suite = Callable[..., None]
PLAIN = "def test_it(judge): report(judge)"
NAMES = ("causality", "conventions", "forward", "gradients", "laws", "probes", "resume")
S30, B3 = port("S30"), port("B3")


def collected(run: Pytest) -> list[str]:
    lines = run("--collect-only", "-q").stdout.lines
    return [
        line.partition("::")[0].removeprefix("test_").removesuffix(".py")
        for line in lines
        if "::" in line
    ]


def test_the_order_is_that_of_the_tiers_and_in_each_that_of_the_table(
    suite: Suite, run: Pytest
) -> None:
    suite(**dict.fromkeys(NAMES, PLAIN))
    assert collected(run) == sorted(
        (name for name in PROPERTIES if name in NAMES), key=lambda name: PROPERTIES[name].tier
    )
    assert collected(run) == [
        *("conventions", "forward", "probes", "resume", "causality", "gradients", "laws"),
    ]


def test_rules_of_calls_precede_gradients_and_those_of_a_backward_follow_them(
    suite: Suite, run: Pytest
) -> None:
    suite(
        calls="def test_it(judge, called): report(judge)",
        **dict.fromkeys(("gradients", "state", "resume", "probes"), PLAIN),
    )
    found = collected(run)
    runs = [name for name, before in zip(found, ["", *found], strict=False) if name != before]
    assert runs == ["probes", "calls", "resume", "gradients", "calls", "state"]


def test_gradients_in_which_gates_of_every_kind_meet_precede_the_rules(
    suite: Suite, run: Pytest
) -> None:
    suite(
        calls="def test_it(judge, called): report(judge)",
        gradients="def test_it(judge, named_backward): report(judge)",
        probes=PLAIN,
    )
    lines = [line for line in run("--collect-only", "-q").stdout.lines if "::" in line]
    first = next(place for place, line in enumerate(lines) if "calls" in line)
    before = [line.partition("[port-")[2] for line in lines[1:first]]
    assert before == ["fp32-mixed-gates]", "bf16-mixed-gates]"]
    assert not [line for line in lines[first:] if "mixed-gates" in line]


def test_rules_at_real_sizes_come_last() -> None:
    from kdaverify.checks.calls.rules import RULES

    real = [rule for rule in RULES.values() if rule.is_real]
    assert real and {rule.tier for rule in real} == {Tier.DERIVED}


@pytest.mark.parametrize(("fault", "first"), [("S30", "calls"), ("B3", "gradients")])
def test_a_planted_fault_is_evident_before_the_derived_suites(
    pytester: pytest.Pytester, run: Pytest, fault: str, first: str
) -> None:
    pytester.makepyfile(port=f"from {__name__} import {fault} as port")
    suites, record = kdaverify.suites_folder(), Path(pytester.path) / "r.jsonl"
    run(
        f"--config-file={Path(kdaverify.__file__).parent / 'cli/suites.ini'}",
        f"--rootdir={suites}",
        f"--record={record}",
        "-x",
        *(suites / f"kda/test_{name}.py" for name in ("combined", "gradients", "laws", "probes")),
        suites / "test_calls.py",
    )
    verdicts = read(record).verdicts
    assert {row.property for row in verdicts if row.status.rejects} == {first}
    assert not {row.property for row in verdicts} & {"combined", "laws"}


def test_plain_calls_begin_with_the_smallest_and_what_is_derived_with_the_largest(
    suite: Suite, run: Pytest
) -> None:
    suite(
        panel="def test_it(judge, named): report(judge)",
        causality="def test_it(judge, named): report(judge)",
    )
    from kdaverify.adapters.registry import find
    from kdaverify.operators.kda.operator import KDA

    costs = {name: KDA.cost(problem) for name, problem in KDA.panel(find("port.py"), "smoke")}
    lines = [line for line in run("--collect-only", "-q").stdout.lines if "::" in line]
    found = {
        name: [costs[line.partition("[port-")[2][:-1]] for line in lines if name in line]
        for name in ("panel", "causality")
    }
    assert found["panel"] == sorted(found["panel"]) and found["causality"] == sorted(
        found["causality"], reverse=True
    )


def test_tests_of_no_kernel_stay_where_they_are(
    suite: Suite, run: Pytest, pytester: pytest.Pytester
) -> None:
    suite(forward=PLAIN, causality=PLAIN)
    pytester.makepyfile(
        test_a="def test_it(): pass", test_z="def test_it(): pass", test_d="def test_it(): pass"
    )
    assert collected(run) == ["a", "forward", "d", "causality", "z"]


def test_several_processes_take_the_tests_in_order_and_stop_at_the_first_failure_if_reported_to(
    suite: Suite, run: Pytest, pytester: pytest.Pytester
) -> None:
    suite(
        **dict.fromkeys(
            NAMES, "import time\n\ndef test_it(judge): time.sleep(0.3); report(judge, Status.FAIL)"
        )
    )
    record = Path(pytester.path) / "r.jsonl"
    ended = run("--record", record, "-n2", "-x")
    ended.stdout.fnmatch_lines(["port: REJECT*"])
    assert (
        ended.ret == pytest.ExitCode.TESTS_FAILED
        and not read(record).open_rows
        and not read(record).accounts[0].trouble
    )
    found = {verdict.property for verdict in read(record).verdicts}
    assert found <= {"conventions", "forward", "probes", "resume"}


@pytest.mark.parametrize(("given", "taken"), [((), 1), (("--maxschedchunk=5",), 5)])
def test_a_process_fetches_one_test_at_a_time_unless_a_number_is_given(
    suite: Suite, run: Pytest, pytester: pytest.Pytester, given: tuple[str, ...], taken: int
) -> None:
    suite(forward=PLAIN)
    pytester.makeconftest(
        "def pytest_report_header(config): return f'fetches {config.option.maxschedchunk}'"
    )
    run("--collect-only", *given).stdout.fnmatch_lines([f"fetches {taken}"])


def test_rows_that_share_a_compiled_kernel_come_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from kdaverify.adapters.registry import find
    from kdaverify.operators.kda.coverage import space
    from kdaverify.plugin import evidence_order

    made = replace(space(find("eager"), "smoke"), compiled=True).rows(2)
    given = {
        str(number): {
            "row": row,
            "kernel": SimpleNamespace(spec="x", adapter=SimpleNamespace(compiled=True)),
        }
        for number, row in enumerate(made)
    }
    items: list[Any] = [SimpleNamespace(nodeid=name) for name in given]

    def chosen(item: Any) -> dict[str, Any]:
        return given[item.nodeid]

    monkeypatch.setattr(evidence_order, "parameters_of", chosen)
    turns = evidence_order._turns(items)  # pyright: ignore[reportPrivateUsage]
    first = [row.kernel for name, row in zip(given, made, strict=True) if turns[name] == 0]
    assert len(first) == len({*first}) == len({row.kernel for row in made}) < len(made)
