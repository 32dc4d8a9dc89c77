"""How much faster two workers of a campaign are than one,
on the same cases with nothing kept, for both engines.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from kdaverify.campaign.dispatch import dispatch
from kdaverify.campaign.engine import Engine
from kdaverify.campaign.engine_local import LocalEngine
from kdaverify.campaign.engine_ray import RayEngine
from kdaverify.campaign.suite_tests import CONVENTIONS
from kdaverify.campaign.task import Fixed, Orders, Random

IMPLEMENTATION: Final = "eager"
WANTED: Final = 1.7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engines", nargs="+", choices=("local", "ray"), default=("local", "ray"))
    given = parser.parse_args()
    orders = Orders({IMPLEMENTATION: IMPLEMENTATION}, "acceptance", given.seed, str(Path.cwd()))
    engines: dict[str, Callable[[int], Engine]] = {
        "local": lambda places: LocalEngine(orders, places=places),
        "ray": lambda places: RayEngine(orders, places=places),
    }
    print(
        f"{given.cases} cases of {IMPLEMENTATION}, random as for acceptance, {os.cpu_count()}"
        " cores; workers started before the clock"
    )
    print(f"{'engine':<8}{'workers':>8}{'seconds':>10}{'a second':>10}{'to one':>8}")
    for name in given.engines:
        alone = 0.0
        for places in (1, 2):
            rate = given.cases / _seconds(engines[name], places, given.cases)
            alone = alone or rate
            print(
                f"{name:<8}{places:>8}{given.cases / rate:>10.1f}{rate:>10.2f}{rate / alone:>8.2f}"
            )
            if places > 1:
                print(
                    f"{name}: {rate / alone:.2f} times one worker,"
                    f" {'as' if rate / alone >= WANTED else 'NOT as'} wanted ({WANTED:g})"
                )


def _seconds(start: Callable[[int], Engine], places: int, cases: int) -> float:
    """Wall time of the cases, once every worker has answered something."""
    with TemporaryDirectory() as kept:
        os.environ["KDAVERIFY_CACHE"] = kept
        with closing(start(places)) as engine:
            for _ in dispatch(engine, iter([Fixed(IMPLEMENTATION, CONVENTIONS)] * places)):
                pass
            started = time.perf_counter()
            for task, answer in dispatch(
                engine, iter([Random(IMPLEMENTATION, number) for number in range(cases)])
            ):
                if answer.trouble:
                    raise RuntimeError(f"{task}: {answer.trouble}")
            return time.perf_counter() - started


if __name__ == "__main__":
    main()
