"""Findings: one form, read with clear errors, and the shipped ones are in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kdaverify.survey.finding import FIELDS, FindingError, index, read_finding, read_findings
from kdaverify.survey.pages import timeline

FOLDER = Path(__file__).parents[2] / "reports" / "findings"
ROWS = {name: f"some {name}" for name in FIELDS} | {
    "implementation": "`port`, `port-recurrent`",
    "severity": "high: wrong for any input",
}
CODE = "```python\nprint(1)\n```"


def written(folder: Path, rows: dict[str, str] = ROWS, code: str = CODE) -> Path:
    table = "\n".join(f"| {name} | {text} |" for name, text in rows.items())
    path = folder / "port_wrong.md"
    path.write_text(f"# The port is wrong\n\n| | |\n|---|---|\n{table}\n\n{code}\n")
    return path


def test_a_finding_is_read_whole(tmp_path: Path) -> None:
    found = read_finding(written(tmp_path))
    assert found.title == "The port is wrong"
    assert found.severity == "high"
    assert found.implementations == ("port", "port-recurrent")
    assert found.reproduction == "print(1)\n"
    assert found.fields["exact"] == "some exact"


def test_releases_are_read_where_they_are_stated(tmp_path: Path) -> None:
    assert read_finding(written(tmp_path)).releases == ()
    rows = ROWS | {"releases": "1.0, on a CPU: NaN; 1.1: right"}
    found = read_finding(written(tmp_path, rows))
    assert found.releases == (("1.0, on a CPU", "NaN"), ("1.1", "right"))
    assert "| [port wrong](../findings/port_wrong.md) | 1.1 | right |" in timeline([found])


@pytest.mark.parametrize("name", FIELDS)
def test_a_missing_field_is_named(tmp_path: Path, name: str) -> None:
    rows = {field: text for field, text in ROWS.items() if field != name}
    with pytest.raises(FindingError, match=re.escape(f"wanted a row | {name} |")):
        read_finding(written(tmp_path, rows))


def test_an_unknown_severity_and_a_long_reproduction_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FindingError, match="severity: wanted high, medium, low, got 'dire'"):
        read_finding(written(tmp_path, ROWS | {"severity": "dire: very"}))
    long = "```python\n" + "print(1)\n" * 16 + "```"
    with pytest.raises(FindingError, match="1 to 15 lines of Python, got 16"):
        read_finding(written(tmp_path, code=long))
    with pytest.raises(FindingError, match="got 0"):
        read_finding(written(tmp_path, code=""))


def test_every_shipped_finding_is_in_the_form_and_in_the_index() -> None:
    found = read_findings(FOLDER)
    assert len(found) >= 19
    assert (FOLDER / "README.md").read_text() == index(found)
    assert all("kdaverify" not in one.reproduction for one in found)
