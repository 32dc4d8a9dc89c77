"""What a killed matrix was doing ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes import alive

pytestmark = pytest.mark.whole_run

SCRIPT = """
import os, time
from kdaverify.kills.pool import processes

if __name__ == "__main__":
    with processes(1) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        waiting = pool.submit(time.sleep, 600)
        while not waiting.running():
            time.sleep(0.01)
        print(*pool._processes, flush=True)
        waiting.result()
"""
PATIENCE = 30.0


def test_a_busy_process_ends_with_a_matrix_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "busy.py"
    script.write_text(SCRIPT)
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=env
    ) as run:
        assert run.stdout is not None
        run.stdout.readline()
        busy = [int(pid) for pid in run.stdout.readline().split()]
        assert busy and all(alive(pid) for pid in busy)
        run.send_signal(signal.SIGKILL)
    ends = time.monotonic() + PATIENCE
    while any(alive(pid) for pid in busy) and time.monotonic() < ends:
        time.sleep(0.1)
    assert not [pid for pid in busy if alive(pid)]
