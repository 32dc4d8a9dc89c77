"""Seconds, memory and size of the page of a long record:
python -m benchmarks.report_size RECORD [--rows 1000000].
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.gate import grown, measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    tested = parser.parse_args()
    with TemporaryDirectory() as folder:
        path, page = Path(folder) / "million.parquet", Path(folder) / "page.html"
        grown(tested.record, tested.rows, path)
        found = measured("report", str(path), "--html", str(page))
        size = page.stat().st_size / 2**20
    print(f"{tested.rows} verdicts: {found}; page {size:.2f} MiB")


if __name__ == "__main__":
    main()
