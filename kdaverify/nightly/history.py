"""What earlier nights found: Parquet files in folders, here or in object storage."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kdaverify.campaign.suite_tests import PropertyTest
from kdaverify.checks.status import Status
from kdaverify.verdicts.columns import schema, to_frame
from kdaverify.verdicts.verdict import Verdict

if TYPE_CHECKING:
    import polars as pl


CASE: Final = ("implementation", "property", "problem", "detail")
"""What makes two rows of different nights the same case; with `output`, the same figure."""
MOST_REGRESSIONS: Final = 200
"""Cases of the regression set that an implementation runs, those that failed before those that were
merely worst."""


class HistoryError(RuntimeError):
    """A history that cannot be read or written; the message names the place and what to do."""


class History:
    """The nights and the regression set of one place.

    Args:
        root: a folder, or an address that polars reads (s3://, gs://, az://).
    Raises:
        HistoryError: polars is not installed.
    """

    def __init__(self, root: str) -> None:
        try:
            import polars as pl
        except ImportError:
            raise HistoryError(
                "--history: needs polars; pip install 'kdaverify[parquet]'"
            ) from None
        self._polars, self._root = pl, root.rstrip("/")

    def nights(self) -> pl.DataFrame:
        """Every row of every night."""
        return self._read("nights")

    def regressions(self, implementation: str) -> tuple[PropertyTest, ...]:
        """What later nights run: the cases promoted so far, failures first, then the latest."""
        pl = self._polars
        own = self._read("regressions").filter(pl.col("implementation") == implementation)
        kept = (
            own.sort(["rejects", "date"], descending=True)
            .unique(CASE, keep="first", maintain_order=True)
            .head(MOST_REGRESSIONS)
        )
        return tuple(
            PropertyTest(row["property"], row["problem"], _reported(row["detail"]))
            for row in kept.iter_rows(named=True)
        )

    def write(
        self, date: str, implementation: str, tonight: pl.DataFrame, promoted: pl.DataFrame
    ) -> None:
        """Keeps a night and its additions to the regression set; replaces the same date's."""
        for kind, rows in (("nights", tonight), ("regressions", promoted)):
            self._write(f"{kind}/{date}-{_safe(implementation)}.parquet", rows)

    def _read(self, kind: str) -> pl.DataFrame:
        pl = self._polars
        # With a schema a history that has not begun is empty; rows of earlier versions lack
        # columns, those of later ones have more.
        files = f"{self._root}/{kind}/*.parquet"
        try:
            return pl.scan_parquet(
                files, schema=_schema(), missing_columns="insert", extra_columns="ignore"
            ).collect()
        except (pl.exceptions.PolarsError, OSError) as error:
            raise HistoryError(f"--history: {files} cannot be read: {error}") from None

    def _write(self, name: str, rows: pl.DataFrame) -> None:
        remote = "://" in self._root
        target = f"{self._root}/{name}"
        try:
            if remote:
                rows.write_parquet(target)
                return
            # Beside, then renamed: a night that is cut off while it is written is no night.
            beside = Path(target + ".part")
            beside.parent.mkdir(parents=True, exist_ok=True)
            rows.write_parquet(beside)
            beside.replace(target)
        except (self._polars.exceptions.PolarsError, OSError) as error:
            raise HistoryError(f"--history: {target} cannot be written: {error}") from None


def table(date: str, verdicts: Iterable[Verdict]) -> pl.DataFrame:
    """The rows of a night: a record's columns, the date, whether it rejects or was judged."""
    import polars as pl

    status = pl.col("status")
    return to_frame(verdicts).select(
        pl.lit(date).alias("date"),
        pl.all(),
        status.is_in([status for status in Status if status.rejects]).alias("rejects"),
        status.is_in([status for status in Status if status.judged]).alias("judged"),
    )


def _schema() -> pl.Schema:
    import polars as pl

    return pl.Schema({"date": pl.String, **schema(), "rejects": pl.Boolean, "judged": pl.Boolean})


def _reported(detail: str) -> str:
    """The detail as a case gives it."""
    return json.dumps(json.loads(detail), sort_keys=True)


def _safe(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)


TURNS: Final = 2
"""A kernel that was broken, or mended, turns once; one that goes back and forth is flaky."""


def flaky(nights: pl.DataFrame) -> pl.DataFrame:
    """The flaky figures of some nights.

    Returns:
        Their cases and outputs, with `tested`, `failed`, `turns`, the date of the last failure
        in `last`, and a line that replays it.
    """
    import polars as pl

    judged = nights.filter(pl.col("judged")).sort("date")
    # Several rows of one night and figure (a random case that is a regression too) count as one:
    # failed if any did.
    nightly = judged.group_by([*CASE, "output", "date"], maintain_order=True).agg(
        pl.col("rejects").any(), pl.col("replay").last(), pl.col("case").last()
    )
    counted = nightly.group_by([*CASE, "output"], maintain_order=True).agg(
        tested=pl.len(),
        failed=pl.col("rejects").sum(),
        turns=(pl.col("rejects") != pl.col("rejects").shift()).sum(),
        last=pl.col("date").filter(pl.col("rejects")).max(),
        replay=pl.col("replay").last(),
        case=pl.col("case").last(),
    )
    return counted.filter(pl.col("turns") >= TURNS).sort("failed", descending=True)


MOST_PROMOTED: Final = 5
"""Cases that a night may promote for an implementation."""


def promoted(tonight: pl.DataFrame) -> pl.DataFrame:
    """The worst random cases of an implementation: failed, then nearest to the tolerance."""
    import polars as pl

    reported = (pl.col("status") != "ORACLE_UNCERTIFIED") & (
        pl.col("rejects") | pl.col("ratio").is_not_null()
    )
    random = tonight.filter(pl.col("number").is_not_null() & reported)
    worst = random.sort(["rejects", "ratio"], descending=True, nulls_last=True, maintain_order=True)
    return worst.unique(CASE, keep="first", maintain_order=True).head(MOST_PROMOTED)
