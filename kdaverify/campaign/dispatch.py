"""Tasks to workers and answers back, by any engine; a lost worker's task is repeated."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterator
from typing import Final

from kdaverify.campaign.engine import Engine, EngineError, WorkerLostError
from kdaverify.campaign.task import Key, Task, TaskResult

APART: Final = 2
"""Workers that a task may cost before its kernel is given a process of its own, so that a crash
becomes a verdict."""
MOST_LOST: Final = 3
"""Workers that a task may cost before it is given up."""
MOST_IN_A_ROW: Final = 12
"""Workers that may be lost without one answer: more, and it is no case's fault."""


def dispatch(engine: Engine, tasks: Iterator[Task]) -> Iterator[tuple[Task, TaskResult]]:
    """Every task with its answer, as they come.

    Args:
        tasks: taken from one at a time, when a worker is idle: what ends it ends the campaign, once
            the running ones are done.
    Raises:
        EngineError: worker after worker is lost.
    """
    idle, again, lost = deque(range(engine.places)), deque[Task](), Counter[Key]()
    running: dict[Hashable, tuple[int, Task]] = {}
    in_a_row = 0
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
                answer = engine.answer(done)
            except WorkerLostError as reason:
                lost[task.key] += 1
                in_a_row += 1
                if in_a_row == MOST_IN_A_ROW:
                    raise EngineError(
                        f"--engine: {MOST_IN_A_ROW} workers were lost in a row, the last one over"
                        f" {task}: {reason}"
                    ) from None
                if lost[task.key] < MOST_LOST:
                    again.append(task)
                else:
                    yield (
                        task,
                        TaskResult(trouble=f"{MOST_LOST} workers were lost over {task}: {reason}"),
                    )
            else:
                in_a_row = 0
                yield task, answer
