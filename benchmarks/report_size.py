"""Seconds, memory and size of the page of a long record: python -m benchmarks.report_size [--rows 1000000] RECORD..."""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

import polars as pl

from kdaverify.report.html.page import Page, write_html
from kdaverify.report.html.rows import Rows, read_rows
from kdaverify.report.html.rulings import as_asked, ruled_from_rows

GROUP = 100_000
"""Rows of one file."""


def tiled(records: list[Path], folder: Path, rows: int) -> int:
    """Repeats the rows of records, each time as other cases, into Parquet files of a folder; returns how many there are."""
    once = read_rows(records)[0].full.collect()
    copies, done = max(1, GROUP // once.height), 0
    while done < rows:
        seed = pl.lit(f'"seed":{done}')
        parts = [once.with_columns(case=pl.col("case") + f"-{done}-{copy}", problem=_with(seed, "problem")) for copy in range(copies)]
        pl.concat(parts).with_columns(replay=_with(seed, "replay")).write_parquet(folder / f"{done}.parquet")
        done += copies * once.height
    return done


def _with(seed: pl.Expr, column: str) -> pl.Expr:
    return pl.col(column).str.replace('"seed":', seed, literal=True)


def measure(folder: Path) -> None:
    """Writes the page and says what it cost."""
    started = time.perf_counter()
    rows = Rows(pl.scan_parquet(folder / "*.parquet"))
    page, path = Page(rows, tuple(ruled_from_rows(rows, as_asked(rows, ())))), folder / "page.html"
    write_html(page, path)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    took, size = time.perf_counter() - started, path.stat().st_size / 2**20
    print(f"{took:.1f} s ({time.process_time():.1f} s of CPU), {used:.2f} GiB, page {size:.2f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("--rows", type=int, default=1_000_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        print(f"{tiled(given.records, Path(name), given.rows):,} rows", flush=True)
        # Apart, so that the memory is the page's own.
        process = multiprocessing.get_context("spawn").Process(target=measure, args=(Path(name),))
        process.start()
        process.join()


if __name__ == "__main__":
    main()
