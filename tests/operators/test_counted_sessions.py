"""Sessions on functions of the counted operators: worker process, record, gate, campaign, and one
message for what is always wrong.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kdaverify.cli.gate import gate
from kdaverify.cli.report import report

pytestmark = pytest.mark.whole_run

ROOT = Path(__file__).parents[2]
CONV, NORM = "tests/operators/convolutions.py", "tests/operators/norms.py"


def run(*arguments: str, code: int) -> str:
    command = [sys.executable, "-m", "kdaverify", *arguments]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.mark.rotates
@pytest.mark.parametrize("spec", [f"{CONV}:plain", f"{NORM}:fixed"])
def test_a_right_function_is_accepted_from_a_worker_process_and_by_the_gate(
    spec: str, tmp_path: Path
) -> None:
    record = tmp_path / "record.jsonl"
    assert "ACCEPT" in run("verify", "--impl", spec, "--isolate", "--record", str(record), code=0)
    assert gate([record]) == 0
    assert report([record], html=tmp_path / "page.html") == 0


def test_a_campaign_accepts_a_right_function(tmp_path: Path) -> None:
    out = run(
        "campaign",
        "--impl",
        f"{CONV}:w_minus_one",
        "--cases",
        "12",
        "--record",
        str(tmp_path / "record.jsonl"),
        code=0,
    )
    assert "ACCEPT" in out and "op kda" not in out


def test_a_wrong_option_is_the_one_message_of_a_session(tmp_path: Path) -> None:
    port = tmp_path / "port.py"
    port.write_text(
        "import kdaverify as kv\n@kv.kernel(op='gated_rms_norm')\ndef norm(x, gate, weight):\n   "
        " return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight * gate.sigmoid()\n"
    )
    out = " ".join(run("verify", "--impl", str(port), code=1).split())
    assert (
        "declared activation='silu', but behaves as activation='sigmoid'; correct the declaration"
        in out
    ), out
