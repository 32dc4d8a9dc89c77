"""A wheel carries everything a port needs, and works far from any checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kdaverify.report.html.credential import NAME
from tests.rows import PORT, ROOT
from tests.verdicts.gated import closed

pytestmark = pytest.mark.whole_run

BUILD = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
DATA = (
    "kdaverify/budgets/presets/*.toml",
    "kdaverify/verdicts/rules/*.toml",
    "kdaverify/report/html/templates/*.*",
)
WHERE = "import kdaverify, oracles; print(kdaverify.suites_folder()); print(oracles.__file__)"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, unpacked as an installer does."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def far_away(site: Path, tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "port.py").write_text(PORT)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_wheel_holds_code_types_suites_and_licence(site: Path) -> None:
    held = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}
    suites = {f"kdaverify/{path.relative_to(ROOT)}" for path in (ROOT / "suites").rglob("*.py")}
    assert suites
    data = {str(path.relative_to(ROOT)) for pattern in DATA for path in ROOT.glob(pattern)}
    assert {name.rpartition(".")[2] for name in data} == {"toml", "html", "css", "js", "md"}
    assert (
        suites | data | {"kdaverify/py.typed", "oracles/py.typed", "kdaverify/cli/suites.ini"}
        <= held
    )
    assert any(name.endswith("licenses/LICENSE") for name in held)
    assert not [name for name in held if name.startswith(("tests", "conftest", "benchmarks"))]


def test_packages_and_suites_are_found_in_the_wheel(site: Path, tmp_path: Path) -> None:
    done = far_away(site, tmp_path, "-c", WHERE)
    assert done.stdout.split() == [
        str(site / "kdaverify" / "suites"),
        str(site / "oracles" / "__init__.py"),
    ], done.stderr


def test_the_suites_judge_a_port_from_the_wheel(site: Path, tmp_path: Path) -> None:
    suites = str(site / "kdaverify" / "suites")
    done = far_away(
        site,
        tmp_path,
        "-m",
        "pytest",
        suites,
        "--impl=port.py",
        "-k",
        "conventions",
        "--record=r.jsonl",
        "-pno:cacheprovider",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert (tmp_path / "r.jsonl").read_text().count('"status":"PASS"') == 1


def test_the_page_of_the_wheel_quotes_its_kill_matrix(site: Path, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    assert (site / "kdaverify" / NAME).read_bytes() == (ROOT / "reports" / NAME).read_bytes()
    closed(tmp_path / "r.jsonl")
    done = far_away(
        site,
        tmp_path,
        "-m",
        "kdaverify",
        "report",
        "r.jsonl",
        "--html",
        "page.html",
        "--rules",
        "session",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text = (tmp_path / "page.html").read_text()
    assert "<h1>port passes smoke (not a release approval)</h1>" in text
    assert 'id="credential"' in text
