"""The reproductions of the findings, each run as a stranger runs it: alone, without kdaverify."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata, util
from pathlib import Path

import pytest
import torch

from kdaverify.survey.finding import Finding, read_findings

pytestmark = pytest.mark.whole_run
FOLDER = Path(__file__).parents[2] / "reports" / "findings"
SECONDS = 240
CLOSE = 0.5
"""Relative: another processor sums in another order, and rounds otherwise."""
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]\d+)?")
COMMENT = re.compile(r"#.*")
IMPORTS = re.compile(r"^(?:from|import) ([a-zA-Z_]\w*)", re.MULTILINE)
VERSION = re.compile(r"([a-z][a-z-]+) (\d+\.\d+\.\d+)")


def parted(text: str) -> tuple[list[str], list[float]]:
    """What is printed without its numbers, and these."""
    return NUMBER.sub("#", text).splitlines(), [float(found) for found in NUMBER.findall(text)]


def lacking(finding: Finding) -> str:
    """What is not here that the reproduction needs; "" where it can run."""
    code = COMMENT.sub("", finding.reproduction)
    if re.search(r"\bcuda\b", code) and not torch.cuda.is_available():
        return "no CUDA device"
    if "npu" in code:
        return "no Ascend NPU"
    absent = [name for name in IMPORTS.findall(code) if util.find_spec(name) is None]
    return f"{absent[0]} is not installed" if absent else ""


def other_release(finding: Finding) -> str:
    """A package of the finding that is not installed, or in another version; "" where none is."""
    for package, version in VERSION.findall(finding.fields["package"]):
        try:
            here = metadata.version(package)
        except metadata.PackageNotFoundError:
            return f"{package} is not installed"
        if here.partition("+")[0] != version:
            return f"{package} {here}"
    return ""


@pytest.mark.rotates(12)
@pytest.mark.parametrize("finding", read_findings(FOLDER), ids=lambda finding: finding.name)
def test_it_prints_what_the_finding_says(finding: Finding, tmp_path: Path) -> None:
    if why := lacking(finding) or other_release(finding):
        pytest.skip(why)
    path = tmp_path / "reproduction.py"
    path.write_text(finding.reproduction)
    ran = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert finding.prints
    if "CPU" in finding.fields["package"]:
        # Which instructions a processor has decides by how much such a kernel is wrong.
        assert len(ran.stdout.splitlines()) == len(finding.prints.splitlines())
        return
    (words, numbers), (said, values) = map(parted, (ran.stdout, finding.prints))
    assert words == said
    assert numbers == pytest.approx(values, rel=CLOSE, nan_ok=True)
