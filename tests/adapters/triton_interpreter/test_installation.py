"""Which Triton the interpreter takes, found without importing it."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata, util
from unittest.mock import Mock

import pytest

from kdaverify.adapters.triton_interpreter import installation, missing
from tests.adapters.triton_interpreter.processes import ROOT


@pytest.mark.parametrize("version", ["3.7.0", "3.7.1", "3.8.0", "3.8.0+git1234"])
def test_fit_versions(version: str) -> None:
    assert installation.unfit(version) is None


@pytest.mark.parametrize("version", ["2.1.0", "3.6.0", "3.9.0", "3.10.1", "4.0"])
def test_unfit_versions_are_named_with_the_wanted_and_the_command(version: str) -> None:
    reason = installation.unfit(version)
    assert reason is not None
    assert version in reason and "wanted Triton 3.7 or 3.8" in reason and "pip install" in reason


def test_an_absent_triton_is_said_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "find_spec", Mock(return_value=None))
    assert missing() == f"triton not installed: {installation.COMMAND}"


def test_a_fork_under_the_name_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "find_spec", Mock())
    monkeypatch.setattr(
        metadata, "version", Mock(side_effect=metadata.PackageNotFoundError("triton"))
    )
    assert "fork" in str(missing())


def test_listing_imports_no_triton() -> None:
    code = (
        "import sys; from kdaverify.adapters.triton_interpreter import missing; missing();"
        " sys.exit('triton' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
