"""A kernel that a stand-in for a compiler builds at its first call: for a while, for ever, or with
the wait in the kernel itself.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from kdaverify.adapters.base import Adapter, Output
from kdaverify.adapters.eager import EAGER, Eager
from oracles.inputs import Inputs

TUNER = "import time\n\n\ndef run(seconds):\n    time.sleep(seconds)\n"


def _tuner() -> Callable[[float], None]:
    """`run` of a module that lies where Triton's tuner does."""
    path = Path(tempfile.mkdtemp()) / "triton" / "runtime" / "autotuner.py"
    path.parent.mkdir(parents=True)
    path.write_text(TUNER)
    spec = importlib.util.spec_from_file_location("stand_in_tuner", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["stand_in_tuner"] = module
    spec.loader.exec_module(module)
    return module.run


class Compiled(Eager):
    """The embedded kernel behind a wait."""

    def __init__(self, wait: Callable[[], object]) -> None:
        super().__init__("compiled", {"fp32": EAGER.contract("fp32").name})
        self._wait = wait

    def forward(self, inputs: Inputs) -> Output:
        self._wait()
        return super().forward(inputs)

    def variants(self) -> Mapping[str, Adapter]:
        return {
            "compiles": Compiled(lambda: _tuner()(2.5)),
            "compiles for ever": Compiled(lambda: _tuner()(600)),
            "waits": Compiled(lambda: time.sleep(2.5)),
        }


COMPILED = Compiled(lambda: None)
