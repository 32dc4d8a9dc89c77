"""Launches of interpreted kernels: what can be chosen about them, and what is remembered."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Settings:
    """Choices that hold from the next launch on.

    Args:
        autotune: which configuration of a kernel runs, counted round, from the end if negative.
        tf32: whether one-pass TF32 products round their fp32 operands.
    """

    autotune: int = 0
    tf32: bool = False


@dataclass
class Launches:
    """What was launched.

    Args:
        kernels: qualified names, in order of the first launch since the last forgetting.
        configurations: those every autotuned kernel offered at its last launch, by name.
        chosen: the one it ran with.
    """

    kernels: dict[str, None] = field(default_factory=dict[str, None])
    configurations: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    chosen: dict[str, str] = field(default_factory=dict[str, str])


def qualified(function: object) -> str:
    """Module and name of a Python function: how kernels are known here."""
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', '?')}"


def record_launches(module: Any, launches: Launches) -> None:
    """Wraps a kernel's launch. Device functions that kernels call are no launches."""
    original = module.InterpretedFunction.run

    def run(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if not warmup:
            launches.kernels[qualified(function.fn)] = None
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r".*make_block_ptr is deprecated")
            return original(function, *args, grid=grid, warmup=warmup, **kwargs)

    module.InterpretedFunction.run = run


def size_grids_by_arguments(module: Any) -> None:
    """Hands grids that are functions what the caller passed, as where kernels are compiled.

    The interpreter hands them its own scalars and pointers: a grid that looks at its tensors, or
    fills them, could not run.
    """
    original = module.GridExecutor.__call__

    def call(executor: Any, *args: Any, **kwargs: Any) -> None:
        if not callable(executor.grid):
            original(executor, *args, **kwargs)
            return
        signature = inspect.signature(executor.fn)
        passed = {name: value for name, value in kwargs.items() if name in signature.parameters}
        bound = signature.bind(*args, **passed)
        bound.apply_defaults()
        executor.grid = executor.grid(bound.arguments)
        original(executor, **bound.arguments)

    module.GridExecutor.__call__ = call


def choose_configurations(settings: Settings, launches: Launches) -> None:
    """Makes every autotuner run the configuration that `settings` names, after pruning."""
    from triton.runtime import autotuner

    def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        offered = tuner.prune_configs(kwargs)
        chosen = offered[settings.autotune % len(offered)]
        name = qualified(tuner.base_fn)
        launches.configurations[name] = tuple(str(configuration) for configuration in offered)
        launches.chosen[name] = str(chosen)
        tuner.best_config = chosen
        if chosen.pre_hook is not None:
            chosen.pre_hook({**tuner.nargs, **kwargs, **chosen.all_kwargs()})
        result = tuner.fn.run(*args, **kwargs, **chosen.all_kwargs())
        tuner.nargs = None
        return result

    replaced: Any = autotuner.Autotuner
    replaced.run = run
