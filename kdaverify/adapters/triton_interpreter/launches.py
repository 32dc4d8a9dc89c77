"""Every launch of an interpreted kernel: written down,
and free of numpy's warnings about what floats do.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from kdaverify.adapters.triton_interpreter.settings import Launches, qualified


def install(module: Any, launches: Launches) -> None:
    """Wraps what a launch of a kernel comes down to.
    Device functions that kernels call are no launches.
    """
    original = module.InterpretedFunction.run

    def run(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if not warmup:
            launches.kernels[qualified(function.fn)] = None
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r".*make_block_ptr is deprecated")
            return original(function, *args, grid=grid, warmup=warmup, **kwargs)

    module.InterpretedFunction.run = run
