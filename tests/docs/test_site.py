"""The documentation builds as a site without a warning: every link and anchor leads somewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.blocks import ROOT


# Not --quiet: mkdocs counts the warnings that it prints, and a strict build that prints none never
# fails. Thirty-nine links to reports led nowhere that way.
def test_the_site_builds_strictly_and_needs_no_network(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    built = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    pages = list((tmp_path / "site").glob("*.html"))
    assert {page.stem for page in pages} > {page.stem for page in (ROOT / "docs").glob("*.md")} - {
        "README"
    }
    assert (tmp_path / "site" / "reports" / "findings" / "fla_hard_reset.html").is_file()
    assert (tmp_path / "site" / "reports" / "state" / "state.html").is_file()
    assert [page.name for page in pages if 'src="http' in page.read_text()] == []
