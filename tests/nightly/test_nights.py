"""What a night concludes beside the nights before: worse, better, flaky, or nothing new."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from kdaverify.checks.status import Status
from kdaverify.nightly.history import MOST_PROMOTED, History, HistoryError, promoted, table
from kdaverify.nightly.night import Night, conclude
from kdaverify.verdicts.decision import Ruling
from kdaverify.verdicts.verdict import Verdict
from tests.rows import row

pl = pytest.importorskip("polars")

CASES = 16
TONIGHT = "2026-01-20"


def panel(scale: float = 1.0, *, wrong: Iterable[int] = ()) -> list[Verdict]:
    """A night's fixed cases, their errors `scale` times the usual ones."""
    return [
        row(
            Status.FAIL if number in wrong else Status.PASS,
            problem=f'{{"n":{number}}}',
            ratio=scale * (0.1 + number / 50),
        )
        for number in range(CASES)
    ]


def night(
    *before: list[Verdict], tonight: list[Verdict], untested: int = 0, trouble: Iterable[str] = ()
) -> Night:
    earlier = [table(f"2026-01-{day:02}", rows) for day, rows in enumerate(before, start=1)]
    nights = pl.concat([table("2025-12-31", []), *earlier])
    return conclude(
        "port", table(TONIGHT, tonight), nights, TONIGHT, untested=untested, trouble=trouble
    )


def test_the_same_figures_every_night_are_accepted() -> None:
    found = night(panel(), panel(), tonight=panel())
    assert (found.ruling, found.reasons, found.nights) == (Ruling.ACCEPT, (), 2)
    assert [(change.ratio, change.worse, change.better) for change in found.changes] == [
        (1.0, False, False)
    ]


@pytest.mark.parametrize(
    ("scale", "ruling"), [(1.05, Ruling.REJECT), (1.01, Ruling.ACCEPT), (0.9, Ruling.ACCEPT)]
)
def test_a_small_rise_over_all_cases_is_a_change_for_the_worse(
    scale: float, ruling: Ruling
) -> None:
    found = night(panel(), panel(), tonight=panel(scale))
    assert found.ruling is ruling
    assert [change.worse for change in found.changes] == [ruling is Ruling.REJECT]
    assert [change.better for change in found.changes] == [scale == 0.9]


def test_one_case_that_moves_is_no_change_of_the_median() -> None:
    moved = [*panel()[:-1], panel(1.5)[-1]]
    assert night(panel(), tonight=moved).ruling is Ruling.ACCEPT


def test_one_odd_night_does_not_move_what_tonight_is_compared_with() -> None:
    assert night(panel(), panel(3.0), panel(), tonight=panel()).ruling is Ruling.ACCEPT


def test_a_case_that_fails_for_the_first_time_rejects() -> None:
    found = night(panel(), panel(), tonight=panel(wrong=[3]))
    assert found.ruling is Ruling.REJECT and found.reasons[0] == "forward fp32 FAIL: 1 verdicts"
    assert found.flaky.is_empty()


def test_a_case_that_goes_back_and_forth_is_flaky_and_no_pass() -> None:
    found = night(panel(), panel(wrong=[3]), tonight=panel())
    assert found.ruling is Ruling.INSUFFICIENT and "1 figures are flaky" in found.reasons[0]
    assert found.flaky.select("tested", "failed", "last").rows() == [(3, 1, "2026-01-02")]
    again = night(panel(), panel(wrong=[3]), panel(), tonight=panel(wrong=[3]))
    assert again.ruling is Ruling.INSUFFICIENT and again.failing.is_empty()


def test_a_mended_kernel_is_accepted() -> None:
    assert (
        night(panel(wrong=range(9)), panel(wrong=range(9)), tonight=panel()).ruling is Ruling.ACCEPT
    )


def test_what_was_not_tested_is_no_pass_and_what_broke_is_an_error() -> None:
    assert night(panel(), tonight=panel(), untested=2).ruling is Ruling.INSUFFICIENT
    assert night(panel(), tonight=[]).ruling is Ruling.INSUFFICIENT
    assert night(tonight=[row(Status.ORACLE_UNCERTIFIED), *panel()]).ruling is Ruling.INSUFFICIENT
    assert night(tonight=panel(wrong=[1]), trouble=["port: KeyError"]).ruling is Ruling.ERROR


def test_failures_are_promoted_before_what_is_merely_worst() -> None:
    drawn = [
        row(problem=f'{{"n":{number}}}', ratio=number / 10, number=number) for number in range(10)
    ]
    failed = row(Status.ERROR, problem='{"n":99}', number=99)
    found = promoted(table(TONIGHT, [*panel(), *drawn, failed]))
    assert found["number"].to_list() == [99, 9, 8, 7, 6] and len(found) == MOST_PROMOTED


@pytest.mark.parametrize("address", ["{}", "file://{}"])
def test_a_history_keeps_nights_and_tests_their_promoted_cases_again(
    tmp_path: Path, address: str
) -> None:
    history = History(address.format(tmp_path / "nights"))
    assert history.nights().is_empty() and history.regressions("port") == ()
    for folder in ("nights", "regressions"):
        (tmp_path / "nights" / folder).mkdir(parents=True, exist_ok=True)
    tonight = table(
        TONIGHT, [*panel(), row(Status.FAIL, problem='{"n":7}', detail={"cut": 2}, number=7)]
    )
    for _ in range(2):
        history.write(TONIGHT, "port", tonight, promoted(tonight))
    assert history.nights().equals(tonight)
    assert [(test.property, test.problem, test.detail) for test in history.regressions("port")] == [
        ("forward", '{"n":7}', '{"cut": 2}')
    ]
    assert history.regressions("other") == ()


def test_a_history_of_another_version_is_read_and_a_damaged_one_named(tmp_path: Path) -> None:
    history = History(str(tmp_path))
    (tmp_path / "nights").mkdir()
    table("2026-01-01", panel()).drop("diagnosis").with_columns(other=1).write_parquet(
        tmp_path / "nights" / "2026-01-01-port.parquet"
    )
    assert len(history.nights()) == CASES
    (tmp_path / "nights" / "2026-01-02-port.parquet").write_bytes(b"no parquet")
    with pytest.raises(HistoryError, match="cannot be read"):
        history.nights()


def test_without_polars_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(HistoryError, match=r"kdaverify\[parquet\]"):
        History("nights")
