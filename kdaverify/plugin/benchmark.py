"""The implementation that `--benchmark` names: others' standards compare errors with its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kdaverify.plugin.options import limits_of

if TYPE_CHECKING:
    from kdaverify.verdicts.published import NamedBenchmark

_NAMED = pytest.StashKey["NamedBenchmark | None"]()


def benchmark_of(config: pytest.Config) -> NamedBenchmark | None:
    """The one of this session, found once; None for the baseline reference kernel.

    Raises:
        pytest.UsageError: it cannot be found, or cannot run here.
    """
    if _NAMED not in config.stash:
        config.stash[_NAMED] = None if config.option.benchmark is None else _found(config)
    return config.stash[_NAMED]


def end_benchmark(config: pytest.Config) -> None:
    """Ends its worker process."""
    named = config.stash.get(_NAMED, None)
    if named is not None:
        named.adapter.end()


def _found(config: pytest.Config) -> NamedBenchmark:
    from kdaverify.adapters.base import AdapterError
    from kdaverify.verdicts.published import benchmark_named

    try:
        return benchmark_named(
            config.option.benchmark, isolate=config.option.isolate, limits=limits_of(config)
        )
    except AdapterError as error:
        raise pytest.UsageError(f"--benchmark: {error}") from None
