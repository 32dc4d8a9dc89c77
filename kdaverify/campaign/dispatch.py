"""Tasks to workers and answers back, whichever engine carries them; what a lost worker was doing is done again."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterator
from typing import Final

from kdaverify.campaign.engine import Engine, WorkerLostError
from kdaverify.campaign.task import Answer, Key, Task

APART: Final = 2
"""Workers that a task may cost before its kernel is given a process of its own, so that a crash becomes a verdict."""
MOST_LOST: Final = 3
"""Workers that a task may cost before it is given up."""


def dispatch(engine: Engine, tasks: Iterator[Task]) -> Iterator[tuple[Task, Answer]]:
    """Every task with its answer, as they come.

    Args:
        tasks: taken from one at a time, when a worker is idle: what ends it ends the campaign, once the running ones are done.
    """
    idle, again, lost = deque(range(engine.places)), deque[Task](), Counter[Key]()
    running: dict[Hashable, tuple[int, Task]] = {}
    while True:
        while idle:
            task = again.popleft() if again else next(tasks, None)
            if task is None:
                break
            place = idle.popleft()
            running[engine.submit(place, task, apart=lost[task.key] >= APART)] = place, task
        if not running:
            return
        for done in engine.wait(list(running)):
            place, task = running.pop(done)
            idle.append(place)
            try:
                yield task, engine.answer(done)
            except WorkerLostError as reason:
                lost[task.key] += 1
                if lost[task.key] < MOST_LOST:
                    again.append(task)
                else:
                    yield task, Answer(trouble=f"{MOST_LOST} workers were lost over {task}: {reason}")
