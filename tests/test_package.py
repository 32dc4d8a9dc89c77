"""What importing the package costs, and what it offers."""

from __future__ import annotations

import subprocess
import sys

import pytest

import kdaverify
from tests.rows import ROOT

VENDORS = ("transformers", "jax", "onnxruntime", "onnx", "deltanet_tpu")


def imported_by(statement: str) -> set[str]:
    code = f"{statement}; import sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["kdaverify", "kdaverify.plugin", "kdaverify.cli.app"])
def test_what_every_pytest_session_loads_is_light(module: str) -> None:
    assert not imported_by(f"import {module}") & {*VENDORS, "torch"}


def test_the_command_line_loads_neither_pytest_nor_hypothesis_nor_numpy() -> None:
    """They took half of the time of every command that judges nothing."""
    heavy = {"pytest", "hypothesis", "numpy"}
    assert not imported_by("import kdaverify.cli.app") & heavy


def test_the_whole_interface_imports_no_vendor() -> None:
    names = ", ".join(kdaverify.__all__)
    assert not imported_by(f"from kdaverify import {names}; import kdaverify.verdicts.judge") & set(
        VENDORS
    )


@pytest.mark.parametrize("name", kdaverify.__all__)
def test_every_public_name_exists(name: str) -> None:
    assert getattr(kdaverify, name) is not None


def test_a_wrong_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'kernal'"):
        getattr(kdaverify, "kernal")  # noqa: B009 # a name that does not exist
