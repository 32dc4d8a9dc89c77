"""Autotuned kernels: the configuration is chosen, not measured."""

from __future__ import annotations

from typing import Any

from kdaverify.adapters.triton_interpreter.settings import Launches, Settings, qualified


def install(settings: Settings, launches: Launches) -> None:
    """Makes every autotuner run the configuration that `settings` names,
    after the kernel's own pruning.
    """
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
