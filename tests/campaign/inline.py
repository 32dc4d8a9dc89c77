"""Engines and kernels for tests of campaigns: workers in this process, and kernels that go wrong or
take their worker with them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path

from kdaverify.campaign.engine import Engine, WorkerLostError
from kdaverify.campaign.task import Orders, Task, TaskResult
from kdaverify.campaign.worker import Worker
from kdaverify.verdicts.record import read

# Right, inexpensive, and fatal to the worker that judges it first, if a file says so.
FATAL = """
import os
from pathlib import Path
import kdaverify as kv
from oracles.inputs import Inputs
from oracles.recurrence import recurrence

@kv.kernel(name="port", contract="recurrent-fp32", dtypes=("fp32",))
def port(q, k, v, g, beta, *, scale, initial_state):
    if Path("fatal").exists():
        Path("fatal").unlink()
        os.kill(os.getpid(), 9)
    o, final = recurrence(Inputs(q, k, v, g, beta, scale=scale, initial_state=initial_state))
    return o.to(q.dtype), final.float()
"""


class InlineEngine(Engine):
    """One worker, here.

    Args:
        losses: of these tasks, by their place in the order of tests, the worker dies.
    """

    places = 1

    def __init__(self, orders: Orders, losses: Sequence[int] = ()) -> None:
        self._worker, self._losses = Worker(orders), losses
        self.tested: list[tuple[Task, bool]] = []

    def submit(self, place: int, task: Task, *, apart: bool) -> Hashable:
        del place
        self.tested.append((task, apart))
        return len(self.tested) - 1

    def wait(self, pending: Sequence[Hashable]) -> Sequence[Hashable]:
        return pending

    def answer(self, done: Hashable) -> TaskResult:
        assert isinstance(done, int)
        if done in self._losses:
            raise WorkerLostError("killed")
        return self._worker.answer(self.tested[done][0])

    def close(self) -> None:
        self._worker.end()


def reported(path: Path) -> list[str]:
    """What a record says, whatever the order of its cases and however long each took."""
    return sorted(
        verdict.model_dump_json(exclude={"duration_s"}) for verdict in read(path).verdicts
    )
