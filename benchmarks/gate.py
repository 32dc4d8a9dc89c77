"""How long the gate takes for a million verdicts, and how much memory: python -m benchmarks.gate
RECORD [--rows 1000000].

The rows are those of a real record, again and again under other case ids and with other shares of
the tolerance, as a campaign leaves them.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl

from kdaverify.verdicts import parquet
from kdaverify.verdicts.record import scan

GIB = 2**30


def grown(record: Path, rows: int, to: Path) -> int:
    """Writes the record so often that it has `rows` verdicts; gives the file's bytes."""
    table = scan(record)
    own = table.rows.collect()
    times = -(-rows // own.height)
    draw = (pl.col("case").hash(seed=0) % 1000) / 10_000
    copies = [
        own.with_columns(
            case=pl.col("case") + f"-{i}",
            seed=pl.lit(i, dtype=pl.Int64),
            ratio=pl.col("ratio") * (0.9 + draw),
        )
        for i in range(times)
    ]
    parquet.write(pl.concat(copies).head(rows), to, table.accounts, open_rows=table.open_rows)
    return to.stat().st_size


def measured(*words: str) -> str:
    """What a command of its own process ends with and takes; on a busy machine its processor's
    seconds say more than the clock's.
    """
    started = time.perf_counter()
    ended = subprocess.run(
        [sys.executable, "-m", "kdaverify", *words], check=False, stdout=subprocess.DEVNULL
    )
    seconds, used = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = used.ru_maxrss * 1024 / GIB
    return (
        f"exit code {ended.returncode} in {seconds:.1f} s ({used.ru_utime + used.ru_stime:.1f} s of"
        f" processor), at most {peak:.2f} GiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    tested = parser.parse_args()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "million.parquet"
        size = grown(tested.record, tested.rows, path) / 2**20
        found = measured("gate", str(path), "--junit", str(Path(folder) / "gate.xml"))
    print(f"{tested.rows} verdicts, {size:.0f} MiB of Parquet: {found}")


if __name__ == "__main__":
    main()
