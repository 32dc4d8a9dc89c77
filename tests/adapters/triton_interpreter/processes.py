"""Processes that interpret, run for what they print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from kdaverify.adapters.triton_interpreter import missing

ROOT = Path(__file__).parents[3]
LIMIT = 120

interpreting = pytest.mark.skipif(missing() is not None, reason=str(missing()))
with_fla = pytest.mark.skipif(
    missing() is not None or util.find_spec("fla") is None,
    reason=missing() or "fla not installed: pip install 'fla-core==0.6.0'",
)


def printed(module: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """What `python -m tests.adapters.triton_interpreter.MODULE ARGUMENTS` prints, with warnings of
    kernels and harness as errors.
    """
    command = [
        sys.executable,
        "-W",
        "error::UserWarning",
        "-m",
        f"tests.adapters.triton_interpreter.{module}",
        *arguments,
    ]
    surroundings = {
        name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"
    } | environment
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=surroundings,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
