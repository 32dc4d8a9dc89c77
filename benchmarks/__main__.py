"""Runs every benchmark that the README quotes, one after the other: python -m benchmarks."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

for name in ("certified_chunk", "float64_oracle", "false_alarms", "isolation"):
    print(f"== {name}", flush=True)
    sys.argv = [name]
    runpy.run_path(str(Path(__file__).with_name(f"{name}.py")), run_name="__main__")
