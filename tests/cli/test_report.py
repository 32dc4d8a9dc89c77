"""`kdaverify report`: a page and a summary from records, and a sentence where there can be none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from kdaverify.cli.report import page_of
from kdaverify.verdicts.decision import Decision, Ruling
from kdaverify.verdicts.record import RecordWriter
from kdaverify.verdicts.verdict import Verdict
from tests.report.html.pages import a_run, wrong

Call = Callable[..., tuple[int, str, str]]


def recorded(path: Path, verdicts: Iterable[Verdict]) -> Path:
    with RecordWriter(path) as writer:
        writer.settle(verdicts)
    return path


def test_a_page_and_a_summary_are_written(cli: Call, tmp_path: Path) -> None:
    recorded(tmp_path / "old.jsonl", [row for row in a_run() if not row.status.rejects])
    recorded(tmp_path / "new.parquet", [*a_run(), wrong(T=4, dtype="fp16", regime="mild")])
    code, out, err = cli("report", "new.parquet", "--against", "old.jsonl", "--html", "out/new.html", "--markdown", "-")
    assert (code, out.partition("\n")[0]) == (0, "## kdaverify: port rejected")
    assert "page: out/new.html" in err
    assert "Against old.jsonl" in (tmp_path / "out/new.html").read_text()


def test_several_records_are_one_page(cli: Call, tmp_path: Path) -> None:
    recorded(tmp_path / "a.jsonl", a_run("a"))
    recorded(tmp_path / "b.jsonl", a_run("b"))
    assert cli("report", "a.jsonl", "b.jsonl", "--markdown", "s.md")[0] == 0
    assert (tmp_path / "s.md").read_text().startswith("## kdaverify: a and b rejected\n")


def test_a_record_of_a_part_of_the_suites_is_not_accepted(cli: Call, tmp_path: Path) -> None:
    recorded(tmp_path / "r.jsonl", [row for row in a_run() if not row.status.rejects])
    _, out, _ = cli("report", "r.jsonl", "--markdown", "-")
    assert "port undecided" in out
    assert "no pass for suites: activations" in out.replace("\\", "")


def test_a_record_cut_off_by_a_crash_says_so(cli: Call, tmp_path: Path) -> None:
    path = recorded(tmp_path / "r.jsonl", a_run())
    path.write_bytes(path.read_bytes()[:-9])
    code, out, _ = cli("report", "r.jsonl", "--markdown", "-")
    assert code == 0
    assert "was cut off" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("r.jsonl",), "wanted --html FILE, --markdown FILE or both"),
        (("none.jsonl", "--markdown", "-"), "no file none.jsonl"),
        (("r.jsonl", "--against", "none.jsonl", "--markdown", "-"), "no file none.jsonl"),
        (("broken.jsonl", "--markdown", "-"), "row 1 is no verdict"),
        (("r.jsonl", "--html", "page.pdf"), "wanted a file ending in .html, got page.pdf"),
        (("r.jsonl", "--html", "r.jsonl/page.html"), "--html: "),
        (("r.jsonl", "--markdown", "none/s.md"), "--markdown: "),
    ],
)
def test_what_cannot_be_reported_is_a_sentence(cli: Call, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
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
    page_of(Ruling.ERROR, [Decision("port", Ruling.ACCEPT, (), verdicts)], tmp_path / "p.html", record=None)
    assert "<h1>port not judged</h1>" in (tmp_path / "p.html").read_text()
