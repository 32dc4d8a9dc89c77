"""Rows made in parallel, each in a process of its own that is forked with everything imported."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context

from kdaverify.kills.ladder import Unfinished, descend, whole
from kdaverify.kills.rows import EVERY, ConformingRow, FaultRow
from kdaverify.process import follow_parent

PRELOADED = ("torch", "kdaverify.kills.ladder", "kdaverify.cli.run")


@dataclass(frozen=True, order=True)
class Job:
    """What one process does.

    Args:
        conforming: whether `name` is a conforming kernel as `--impl` names it, or a fault's id.
        weaker: whether a fault is tested at its weaker strengths too.
        suite: the suite that a conforming kernel runs, by property.
        impl: an implementation of the operator that a fault is one of; "" for KDA.
    """

    name: str
    profile: str
    conforming: bool = False
    weaker: bool = False
    suite: str = EVERY
    impl: str = ""

    def run(self, until: float) -> FaultRow | ConformingRow | None:
        """None where the time was up."""
        try:
            if self.conforming:
                return whole(self.name, self.profile, until, self.suite)
            return descend(self.name, self.profile, until, weaker=self.weaker, impl=self.impl)
        except Unfinished:
            return None


def processes(workers: int) -> ProcessPoolExecutor:
    """A pool whose processes take one job each, with everything imported, and end with this one."""
    context = get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return ProcessPoolExecutor(
        workers, mp_context=context, max_tasks_per_child=1, initializer=follow_parent
    )


def rows(
    jobs: list[Job],
    workers: int,
    until: float,
    follow: Callable[[FaultRow | ConformingRow], list[Job]],
) -> Iterator[FaultRow | ConformingRow]:
    """The rows as they come.

    Args:
        jobs: in the order they are begun.
        workers: processes.
        until: by time.time(); nothing is begun later, and what is under way gives up.
        follow: what is to be done once a row is there.
    """
    waiting, running = list(jobs), set[Future[FaultRow | ConformingRow | None]]()
    with processes(workers) as pool:
        try:
            while running or (waiting and time.time() < until):
                while waiting and len(running) < workers and time.time() < until:
                    running.add(pool.submit(waiting.pop(0).run, until))
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for row in (future.result() for future in done):
                    if row is not None:
                        waiting += follow(row)
                        yield row
        except BaseException:
            for future in running:
                future.cancel()
            raise
