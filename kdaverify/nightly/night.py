"""One night of one implementation: what is tested, and its result beside earlier ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kdaverify.campaign.suite_tests import questions
from kdaverify.campaign.task import Fixed
from kdaverify.nightly.history import CASE, flaky
from kdaverify.nightly.trend import NightlyChange, changes, window
from kdaverify.verdicts.decision import Ruling

if TYPE_CHECKING:
    import polars as pl

    from kdaverify.adapters.base import Adapter
    from kdaverify.nightly.history import History


@dataclass(frozen=True)
class Night:
    """What a night comes to.

    Args:
        ruling: of it.
        reasons: heaviest first.
        failing: tonight's rows that reject, but for the flaky ones.
        flaky: figures that went back and forth within the last nights, tonight among them.
        changes: against the nights before, of every group of cases.
        nights: how many there were before.
    """

    implementation: str
    ruling: Ruling
    reasons: tuple[str, ...]
    failing: pl.DataFrame
    flaky: pl.DataFrame
    changes: tuple[NightlyChange, ...]
    nights: int


def fixed_tasks(adapter: Adapter, profile: str, history: History) -> tuple[Fixed, ...]:
    """What every night tests: the fixed tests of the suites, and the regression set."""
    tests = [
        test
        for question in questions(adapter, profile, random=False)
        for test in question.property_tests()
    ]
    return tuple(
        Fixed(adapter.name, test)
        for test in dict.fromkeys((*tests, *history.regressions(adapter.name)))
    )


def conclude(
    implementation: str,
    tonight: pl.DataFrame,
    nights: pl.DataFrame,
    date: str,
    *,
    untested: int = 0,
    trouble: Iterable[str] = (),
) -> Night:
    """The night of one implementation.

    Args:
        tonight: its rows.
        nights: of the history.
        untested: fixed cases that the time did not suffice for.
        trouble: what went wrong in the harness.
    """
    import polars as pl

    own = nights.filter(pl.col("implementation") == implementation)
    earlier = window(own, date)
    unsteady = flaky(pl.concat([earlier, tonight]))
    # Without a sharp enough reference value nothing is wrong with the kernel, and nothing is shown.
    uncertified = tonight.filter(pl.col("status") == "ORACLE_UNCERTIFIED")
    failing = tonight.filter(pl.col("rejects") & (pl.col("status") != "ORACLE_UNCERTIFIED"))
    steady = failing.join(unsteady, on=[*CASE, "output"], how="anti")
    found = changes(earlier, tonight, unsteady)
    passed = tonight.filter(pl.col("status") == "PASS").height
    weighed = {
        Ruling.ERROR: tuple(trouble),
        Ruling.REJECT: (*_counted(steady), *(str(change) for change in found if change.worse)),
        Ruling.INSUFFICIENT: tuple(_gaps(untested, unsteady.height, uncertified.height, passed)),
    }
    ruling = next((ruling for ruling, reasons in weighed.items() if reasons), Ruling.ACCEPT)
    reasons = tuple(reason for reasons in weighed.values() for reason in reasons)
    return Night(
        implementation, ruling, reasons, steady, unsteady, tuple(found), earlier["date"].n_unique()
    )


def _gaps(untested: int, flaky_figures: int, uncertified: int, passed: int) -> Iterator[str]:
    """Why the night is insufficient evidence for the kernel."""
    if untested:
        yield f"{untested} fixed cases were not tested: give more --minutes, or the same line again"
    if flaky_figures:
        yield (
            f"{flaky_figures} figures are flaky: a kernel that depends on no race gives the same"
            " ones every night"
        )
    if uncertified:
        yield f"{uncertified} verdicts without a certified reference value"
    if not passed:
        yield "nothing passed"


def _counted(failing: pl.DataFrame) -> tuple[str, ...]:
    import polars as pl

    counted = (
        failing.group_by(["property", "dtype", "status"])
        .agg(times=pl.len())
        .sort(["times", "property"], descending=[True, False])
    )
    return tuple(
        f"{row['property']} {row['dtype']} {row['status']}: {row['times']} verdicts"
        for row in counted.iter_rows(named=True)
    )
