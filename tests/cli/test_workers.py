"""How many processes a session has: those that it begins for less than they cost are left out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kdaverify.cli import preflight
from kdaverify.cli.request import Request


def workers(folder: Path, *impls: str, **given: Any) -> str:
    """Of the session that is run for a request."""
    request: dict[str, Any] = {"profile": "smoke", "seed": None, "record": None, "workers": "auto"}
    about: dict[str, Any] = {"json_file": None, "require_impl": False, "crash_folder": folder}
    return preflight.after_preflight(Request(impls=impls, **{**request, **about, **given})).workers


@pytest.mark.parametrize("impl", ["torch-short-conv", "torch-gated-norm", "eager-merge"])
def test_a_smoke_that_is_short_begins_no_worker(tmp_path: Path, impl: str) -> None:
    assert workers(tmp_path, impl) == "0"


def test_long_sessions_and_a_number_of_workers_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert workers(tmp_path, "eager-merge", workers="2") == "2"
    assert workers(tmp_path, "eager-merge", profile="acceptance") == "auto"
    assert workers(tmp_path, "eager-merge", "eager") == "auto"
    # A first call that takes long: each shape may be compiled.
    monkeypatch.setattr(preflight, "PROMPT", 0.0)
    assert workers(tmp_path, "eager-merge") == "auto"


@pytest.mark.parametrize(
    ("impl", "called"),
    [("eager", False), ("fla:autotune=0", False), ("{port}", True)],
)
def test_what_ships_is_not_called_before_the_workers_also_under_an_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impl: str, *, called: bool
) -> None:
    """Of FLA's kernels the first calls took 26 s of a GPU's session, beside 15 idle cores."""
    port = tmp_path / "port.py"
    port.write_text(
        "import kdaverify\n@kdaverify.kernel\n"
        "def port(q, k, v, g, beta, *, scale, initial_state): raise ValueError\n"
    )
    seen = list[str]()

    def called_first(_adapter: object, spec: str, _files: object) -> bool:
        seen.append(spec)
        return False

    monkeypatch.setattr(preflight, "_misfit", called_first)
    workers(tmp_path, impl.format(port=port), workers="2")
    assert bool(seen) is called


def test_first_calls_that_do_not_return_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(preflight, "LATE", 0.0)
    (tmp_path / "port.py").write_text(
        "import time, kdaverify\n@kdaverify.kernel\n"
        "def port(q, k, v, g, beta, *, scale, initial_state): time.sleep(0.2)\n"
    )
    workers(tmp_path, str(tmp_path / "port.py"), workers="2")
    assert "with --isolate each ends after --time-limit" in capsys.readouterr().out


@pytest.mark.whole_run
def test_a_port_called_as_a_package_that_torch_looks_for_is_not_taken_for_it(
    tmp_path: Path,
) -> None:
    """Workers of pytest-xdist imported torch with the port's folder on their path: torch looks for
    `cuda.bindings`, and a cuda.py that imports kdaverify ended the session in 60 lines.
    """
    (tmp_path / "cuda.py").write_text(
        "import kdaverify\n@kdaverify.kernel(dtypes=('bf16',))\n"
        "def port(q, k, v, g, beta, *, scale, initial_state):\n"
        "    state = v.new_zeros(v.shape[0], v.shape[2], k.shape[3], v.shape[3]).float()\n"
        "    return v + 0, state\n"
    )
    command = [sys.executable, "-m", "kdaverify", "verify", "--impl", "cuda.py", "--workers", "1"]
    done = subprocess.run(
        [*command, "--only", "forward", "-x", "--diagnosis", "0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "INTERNALERROR" not in done.stdout + done.stderr
