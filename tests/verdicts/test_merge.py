"""Records of many workers become one: every row once, in one order,
and what does not fit together is reported.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kdaverify.verdicts.merge import merge, write
from kdaverify.verdicts.record import RecordWriter, read
from kdaverify.verdicts.seal import Account
from kdaverify.verdicts.verdict import SCHEMA, Verdict
from tests.rows import row

ROWS = [
    row(
        case=f"kda-{i}",
        ratio=i / 100,
        T=i,
        versions={"torch": "2.8", "kernel": f"k{i}"},
        peers=(1.0, 2.0),
        vacuous=("zeros",) * (i % 2),
    )
    for i in range(20)
]


def written(path: Path, rows: list[Verdict], account: Account | None = None) -> Path:
    with RecordWriter(path) as writer:
        writer.settle(rows, account)
    return path


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_any_split_over_workers_merges_to_the_same_file(tmp_path: Path, ending: str) -> None:
    found: list[bytes] = []
    for i, parts in enumerate(([ROWS], [ROWS[::2], ROWS[1::2]], [ROWS[10:], ROWS[:12], ROWS[5:6]])):
        folder = tmp_path / str(i)
        again = [row.model_copy(update={"duration_s": 1.0 + i}) for row in ROWS] if i == 0 else []
        paths = [
            written(folder / f"{j}.jsonl", [*rows], Account(seed=1)) for j, rows in enumerate(parts)
        ]
        merged = merge(
            paths if i else [*paths, written(folder / "again.jsonl", again, Account(seed=1))]
        )
        write(merged, folder / f"all.{ending}")
        assert (merged.open_rows, merged.accounts, merged.reported) == (0, (Account(seed=1),), ())
        assert merged.duplicates == (20, 0, 3)[i]
        found.append((folder / f"all.{ending}").read_bytes() if ending == "jsonl" else b"")
        assert sorted(v.case for v in read(folder / f"all.{ending}").verdicts) == sorted(
            v.case for v in ROWS
        )
        assert (
            read(folder / f"all.{ending}").verdicts
            == read(tmp_path / "0" / f"all.{ending}").verdicts
        )
    assert len({*found}) == 1


def test_mixed_versions_and_unfinished_runs_are_reported(tmp_path: Path) -> None:
    newer = [
        verdict.model_copy(update={"versions": {"torch": "2.9"}, "case": "kda-new"})
        for verdict in ROWS[:1]
    ]
    older = tmp_path / "v1.jsonl"
    older.write_text(ROWS[3].model_copy(update={"schema_version": 1}).model_dump_json() + "\n")
    merged = merge(
        [written(tmp_path / "a.jsonl", ROWS), written(tmp_path / "b.parquet", newer), older]
    )
    assert merged.reported == ("port: torch in versions 2.8, 2.9", f"rows of versions 1, {SCHEMA}")
    assert merged.open_rows == 1
    write(merged, tmp_path / "all.parquet")
    assert read(tmp_path / "all.parquet").open_rows == 1
