"""A closed record shows that it is whole, and no change of it goes unnoticed;
its schema is published.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import polars as pl
import pytest

from kdaverify.checks.borderline import Recheck, RetestFinding
from kdaverify.checks.status import RuleOutcome, Status
from kdaverify.verdicts import lines
from kdaverify.verdicts.record import RecordError, RecordWriter, read, scan
from kdaverify.verdicts.seal import Account, Expected, Seal, schema_text
from kdaverify.verdicts.verdict import Opinion, Verdict
from tests.rows import ROOT, row

ACCOUNT = Account(
    profile="smoke",
    seed=3,
    expected=(Expected("port", ("fp32",), ("o",), ("forward",), {"drift": "no long run"}),),
)
ROWS = [
    row(
        case="kda-1",
        ratio=0.5,
        value=1e-9,
        grade="A",
        detail={"cut": 17},
        peers=(0.9, 1.1),
        recheck=Recheck(RetestFinding.PASSED_ON_RETEST, seeds=3, median=float("inf")),
        published={"fla": Opinion(says=RuleOutcome.PASS, statistic="rms", value=float("inf"))},
        versions={"torch": "2"},
        T=64,
        oracle_bits=94,
    ),
    row(
        Status.FAIL,
        case="kda-2",
        ratio=float("inf"),
        vacuous=("zeros",),
        stage="solve",
        diagnosis="H1",
    ),
    row(Status.SKIP, case='"digest":"', message='{"seal":'),
]


def written(path: Path, rows: list[Verdict] = ROWS) -> Path:
    with RecordWriter(path) as writer:
        for verdict in rows:
            writer.append(verdict)
        writer.settle(rows, ACCOUNT)
    return path


@pytest.mark.parametrize("name", ["r.jsonl", "r.parquet"])
def test_what_the_session_says_comes_back_with_every_field(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name)
    found, table = read(path), scan(path)
    assert (list(found.verdicts), found.accounts, found.open_rows) == (ROWS, (ACCOUNT,), 0)
    assert (table.rows.collect().height, table.accounts, table.open_rows) == (3, (ACCOUNT,), 0)


@pytest.mark.parametrize("name", ["r.jsonl", "r.parquet"])
def test_no_changed_byte_goes_unnoticed(tmp_path: Path, name: str) -> None:
    content = written(tmp_path / name).read_bytes()
    draw = random.Random(7)
    for place in draw.sample(range(len(content)), 150):
        changed = bytearray(content)
        changed[place] ^= 1 << draw.randrange(8)
        (tmp_path / name).write_bytes(changed)
        assert noticed(tmp_path / name), place


@pytest.mark.parametrize("name", ["r.jsonl", "r.parquet"])
def test_no_cut_goes_unnoticed(tmp_path: Path, name: str) -> None:
    content = written(tmp_path / name).read_bytes()
    draw = random.Random(8)
    for kept in draw.sample(range(len(content)), 60):
        (tmp_path / name).write_bytes(content[:kept])
        assert noticed(tmp_path / name), kept


def noticed(path: Path) -> bool:
    """Whether the file is refused, or says itself that it is not whole."""
    try:
        found = read(path)
    except RecordError:
        return True
    return bool(found.truncated or found.open_rows or not found.verdicts)


def test_rows_of_a_session_that_never_closed_stay_open_whoever_closes_after_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "r.jsonl"
    with RecordWriter(path) as writer:
        writer.append(ROWS[0])
    written(path, ROWS[1:])
    assert read(path).open_rows == 1
    beside = tmp_path / "p.jsonl.part"
    beside.write_text(ROWS[0].model_dump_json() + "\n")
    assert read(written(tmp_path / "p.parquet", ROWS[1:])).open_rows == 1


def test_rows_that_are_sealed_as_they_lie_are_closed_each_time(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    for rows in (ROWS[:2], ROWS[2:]):
        with RecordWriter(path) as writer:
            for verdict in rows:
                writer.append(verdict)
        assert read(path).open_rows == len(rows)
        lines.seal(path, ACCOUNT)
        assert read(path).open_rows == 0
    assert read(path).accounts == (ACCOUNT,) * 2 and len(read(path).verdicts) == len(ROWS)


def test_a_row_taken_out_of_a_closed_record_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path / "r.jsonl")
    kept = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([kept[0], *kept[2:]]))
    with pytest.raises(RecordError, match="changed or damaged"):
        read(path)


def test_a_table_whose_digest_is_written_otherwise_is_refused(tmp_path: Path) -> None:
    """As JSON with one of its characters escaped: the same text, in no place of the file."""
    digest = "a" * 64
    seal = Seal(rows=3, digest=digest, accounts=(ACCOUNT,)).model_dump_json()
    path = tmp_path / "r.parquet"
    pl.read_parquet(written(path)).write_parquet(
        path, metadata={"kdaverify": seal.replace(digest, "\\u0061" + digest[1:])}
    )
    with pytest.raises(RecordError, match="its seal is not in one place"):
        read(path)


def test_columns_are_typed_and_nested_fields_are_json(tmp_path: Path) -> None:
    found = pl.read_parquet(written(tmp_path / "r.parquet"))
    kinds = {
        name: found.schema[name]
        for name in ("T", "ratio", "status", "grade", "peers", "vacuous", "published")
    }
    assert kinds == {
        "T": pl.Int64(),
        "ratio": pl.Float64(),
        "status": pl.String(),
        "grade": pl.String(),
        "peers": pl.List(pl.Float64),
        "vacuous": pl.List(pl.String),
        "published": pl.String(),
    }
    assert json.loads(found["published"][0])["fla"]["says"] == "pass"


@pytest.mark.parametrize("name", ["cudnn", "fla", "flash_kda", "fla_recurrent"])
def test_records_of_version_1_are_read_and_known_to_be_open(name: str) -> None:
    path = ROOT / "reports" / "examples" / f"{name}_h200.parquet"
    table = scan(path)
    rows = table.rows.collect()
    assert table.open_rows == rows.height
    assert rows["T"].null_count() < rows.height / 10
    assert rows["schema_version"].unique().to_list() == [1]


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (pl.DataFrame({"a": [1]}), "no record of verdicts"),
        (pl.DataFrame({"row": ["nonsense"]}), "row 1 is no verdict"),
        (pl.DataFrame({"row": [1]}), "row 1 is no verdict"),
    ],
)
def test_a_parquet_file_of_something_else_says_so(
    tmp_path: Path, frame: pl.DataFrame, said: str
) -> None:
    frame.write_parquet(tmp_path / "r.parquet")
    with pytest.raises(RecordError, match=said):
        read(tmp_path / "r.parquet")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"status": pl.lit("GREAT")}, "a status there is not"),
        ({"schema_version": pl.lit(99, dtype=pl.Int64)}, "version 99"),
        ({"implementation": pl.lit(None, dtype=pl.String)}, "lack a value"),
        (
            {
                "ratio": pl.lit(3.0),
                "status": pl.lit("PASS"),
                "recheck": pl.lit(None, dtype=pl.String),
            },
            "PASS above their tolerance",
        ),
        (
            {
                "ratio": pl.lit(float("nan")),
                "status": pl.lit("PASS"),
                "recheck": pl.lit(None, dtype=pl.String),
            },
            "PASS above their tolerance",
        ),
        ({"ratio": pl.lit("much")}, "ratio is String, wanted Float64"),
        ({"surprise": pl.lit(1)}, "unknown columns surprise"),
    ],
)
def test_a_sealed_table_of_nonsense_is_refused(
    tmp_path: Path, change: dict[str, pl.Expr], said: str
) -> None:
    from kdaverify.verdicts import parquet

    frame = pl.read_parquet(written(tmp_path / "r.parquet")).with_columns(**change)
    parquet.write(frame, tmp_path / "r.parquet", (ACCOUNT,))
    with pytest.raises(RecordError, match=said):
        scan(tmp_path / "r.parquet")


def test_the_published_schema_is_that_of_the_model() -> None:
    # Written by the line that reports/README.md names.
    assert (ROOT / "reports" / "schema.json").read_text() == schema_text()
