"""`kdaverify report`: a page and a summary from records, and a sentence where there can be none."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from markupsafe import escape

from kdaverify.checks.status import Status
from kdaverify.cli.report import page_of
from kdaverify.verdicts.decision import COVERAGE, NOT_TESTED, Decision, Ruling
from kdaverify.verdicts.seal import Account
from kdaverify.verdicts.verdict import Verdict
from tests.report.html.pages import a_run, account_of, wrong
from tests.rows import row
from tests.verdicts.gated import ACCOUNT, GOOD, closed

Call = Callable[..., tuple[int, str, str]]


def recorded(path: Path, verdicts: Sequence[Verdict]) -> Path:
    return closed(path, verdicts, account_of(verdicts))


def test_a_page_and_a_summary_are_written(cli: Call, tmp_path: Path) -> None:
    recorded(tmp_path / "old.jsonl", [row for row in a_run() if not row.status.rejects])
    recorded(tmp_path / "new.parquet", [*a_run(), wrong(T=4, dtype="fp16", regime="mild")])
    code, out, err = cli(
        "report",
        "new.parquet",
        "--against",
        "old.jsonl",
        "--html",
        "out/new.html",
        "--markdown",
        "-",
    )
    assert (code, out.partition("\n")[0]) == (0, "## kdaverify: port rejected")
    assert "page: out/new.html" in err
    assert "Against old.jsonl" in (tmp_path / "out/new.html").read_text()


def test_several_records_are_one_page(cli: Call, tmp_path: Path) -> None:
    recorded(tmp_path / "a.jsonl", a_run("a"))
    recorded(tmp_path / "b.jsonl", a_run("b"))
    assert cli("report", "a.jsonl", "b.jsonl", "--markdown", "s.md")[0] == 0
    assert (tmp_path / "s.md").read_text().startswith("## kdaverify: a and b rejected\n")


WAIVER = (
    '[[waiver]]\nid = "forward/fp32/*"\nimpl = "port"\nstatistic = "ERROR"\ncap = 1\nreason ='
    ' "known"\nowner = "me"\nexpires = {day}\n'
)
BROKEN = row(Status.ERROR, case="kda-9", message="it raised")
RULED = {0: "passes smoke (not a release approval)", 1: "rejected", 2: "not judged", 3: "undecided"}


@pytest.mark.parametrize(
    ("rows", "account", "options", "code"),
    [
        (GOOD, ACCOUNT, (), 0),
        (GOOD, ACCOUNT, ("--rules", "acceptance"), 3),
        (GOOD, ACCOUNT.model_copy(update={"profile": "nightly"}), (), 3),
        (GOOD[1:], ACCOUNT, ("--rules", "strict.toml"), 3),
        (GOOD, None, (), 3),
        (GOOD, ACCOUNT.model_copy(update={"trouble": {"port": ("a fixture failed",)}}), (), 2),
        ([*GOOD, BROKEN], ACCOUNT, (), 1),
        ([*GOOD, BROKEN], ACCOUNT, ("--waivers", "known.toml"), 0),
        (GOOD, ACCOUNT, ("--waivers", "known.toml"), 1),
        (GOOD, ACCOUNT, ("--ledger", "ledger"), 3),
    ],
)
def test_the_page_decides_as_the_gate_does(  # noqa: PLR0917 # a row of the table each
    cli: Call,
    tmp_path: Path,
    rows: list[Verdict],
    account: Account | None,
    options: tuple[str, ...],
    code: int,
) -> None:
    day = datetime.now(UTC).date() + timedelta(days=7)
    (tmp_path / "known.toml").write_text(WAIVER.format(day=day))
    (tmp_path / "strict.toml").write_text('about = "many"\n[at_least]\ntotal = 24\n')
    (tmp_path / "ledger").mkdir()
    closed(tmp_path / "r.parquet", rows, account)
    assert cli("gate", "r.parquet", *options, "--json", "d.json")[0] == code
    assert cli("report", "r.parquet", *options, "--html", "p.html")[0] == 0
    page = (tmp_path / "p.html").read_text()
    assert f"<h1>port {RULED[code]}</h1>" in page
    (found,) = json.loads((tmp_path / "d.json").read_text())["implementations"]
    listed = [
        reason for reason in found["reasons"] if not reason.startswith((NOT_TESTED, COVERAGE))
    ]
    assert all(f"<li>{escape(reason)}</li>" in page for reason in listed)
    assert all(
        escape(reason.partition(": ")[2]) in page
        for reason in found["reasons"]
        if reason not in listed
    )
    assert ("None was given" in page) is ("--waivers" not in options)
    assert (f'<td data-label="Until"><time>{day}</time></td>' in page) is ("--waivers" in options)


LATER = {"B", "T", "N", "H", "HV", "K", "V", "oracle_bits", "number"}
"""What version 1 did not have."""


def test_records_of_the_first_version_still_report(cli: Call, tmp_path: Path) -> None:
    pl = pytest.importorskip("polars")
    lines = [
        verdict.model_copy(update={"schema_version": 1}).model_dump_json(exclude=LATER)
        for verdict in a_run()
    ]
    (tmp_path / "old.jsonl").write_text("".join(f"{line}\n" for line in lines))
    pl.DataFrame({"row": lines}).write_parquet(tmp_path / "old.parquet")
    for name in ("old.jsonl", "old.parquet"):
        code, out, _ = cli("report", name, "--markdown", "-", "--html", "p.html")
        assert (code, out.partition("\n")[0]) == (0, "## kdaverify: port rejected")
        assert "half-run" in out.replace("\\", "")
        assert 'id="lengths"' in (tmp_path / "p.html").read_text()


def test_without_options_the_summary_is_printed(cli: Call, tmp_path: Path) -> None:
    recorded(tmp_path / "r.jsonl", a_run())
    code, out, _ = cli("report", "r.jsonl")
    assert code == 0 and out == cli("report", "r.jsonl", "--markdown", "-")[1]
    assert out.startswith("## kdaverify: port rejected")


def test_a_record_cut_off_by_a_crash_says_so(cli: Call, tmp_path: Path) -> None:
    path = recorded(tmp_path / "r.jsonl", a_run())
    path.write_bytes(path.read_bytes()[:-9])
    code, out, _ = cli("report", "r.jsonl", "--markdown", "-")
    assert code == 0
    assert "was cut off" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("none.jsonl", "--markdown", "-"), "no file none.jsonl"),
        (("r.jsonl", "--against", "none.jsonl", "--markdown", "-"), "no file none.jsonl"),
        (("broken.jsonl", "--markdown", "-"), "row 1 is no verdict"),
        (("r.jsonl", "--html", "page.pdf"), "wanted a file ending in .html, got page.pdf"),
        (("r.jsonl", "--html", "r.jsonl/page.html"), "--html: "),
        (("r.jsonl", "--markdown", "none/s.md"), "--markdown: "),
    ],
)
def test_what_cannot_be_reported_is_a_sentence(
    cli: Call, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    recorded(tmp_path / "r.jsonl", a_run())
    (tmp_path / "broken.jsonl").write_text('{"no": "verdict"}\n\n')
    code, _, err = cli("report", *words)
    assert code == 2
    assert said in err
    assert err.rstrip().splitlines()[-1].startswith("kdaverify: ")


def test_verify_refuses_a_page_that_is_none_before_anything_is_judged(cli: Call) -> None:
    code, _, err = cli("verify", "--impl", "port.py", "--html", "page.txt")
    assert (code, err) == (2, "kdaverify: --html: wanted a file ending in .html, got page.txt\n")


def test_of_a_session_cut_short_nothing_is_accepted(tmp_path: Path) -> None:
    verdicts = tuple(row for row in a_run() if not row.status.rejects)
    page_of(
        Ruling.ERROR,
        [Decision("port", Ruling.ACCEPT, (), verdicts)],
        tmp_path / "p.html",
        record=None,
        account=None,
    )
    assert "<h1>port not judged</h1>" in (tmp_path / "p.html").read_text()
