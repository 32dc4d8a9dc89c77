"""Tasks, from wherever they come, judged by an engine into a record that survives whatever ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from kdaverify.campaign.dispatch import dispatch
from kdaverify.campaign.engine import Engine
from kdaverify.campaign.kinds import Kind
from kdaverify.campaign.questions import CONVENTIONS
from kdaverify.campaign.resume import resumed
from kdaverify.campaign.tally import Tally
from kdaverify.campaign.task import Drawn, Fixed, Orders, Smaller, Task, key_of
from kdaverify.campaign.worker import Bench
from kdaverify.checks.status import Status
from kdaverify.verdicts.record import RecordError, RecordWriter
from kdaverify.verdicts.verdict import Verdict

MOST_SMALLER: Final = 8
"""Kinds of failure whose representatives are made smaller."""
SAMPLE: Final = 3
"""Recorded cases that are drawn again, to see whether this campaign draws them."""


class Run:
    """A campaign under way.

    Args:
        orders: what every worker is told.
        fixed: cases asked before the drawn ones.
        cases: how many are drawn.
        record: .jsonl file; what lies there is not asked again.
    Raises:
        RecordError: the record is that of another campaign.
    """

    def __init__(self, orders: Orders, *, fixed: Iterable[Fixed] = (), cases: int, record: Path) -> None:
        self._orders, self._cases, self._record = orders, cases, record
        self._conventions = [Fixed(name, CONVENTIONS) for name in orders.specs]
        self._fixed = [task for task in fixed if task.ask != CONVENTIONS]
        self.tally = Tally(len(orders.specs) * (cases + 1) + len(self._fixed))
        known = resumed(record, orders.seed)
        self._check(known)
        self._misfits = {verdict.implementation for verdict in known if verdict.status is Status.CONVENTION}
        self.tally.take(known)

    def ask(self, engine: Engine, see: Callable[[Tally], None], *, more: Callable[[], bool] = lambda: True) -> None:
        """Asks what is not recorded yet.

        Args:
            see: called after every case.
            more: whether another case may be begun.
        """
        with RecordWriter(self._record) as writer:
            # Under a wrongly declared convention nothing else is scored.
            for tasks in (iter(self._conventions), self._others(more)):
                for task, answer in dispatch(engine, (task for task in tasks if task.key not in self.tally.done)):
                    self._take(task, answer.verdicts(), answer.trouble, writer)
                    see(self.tally)

    def shrink(self, engine: Engine, see: Callable[[int], None]) -> None:
        """Makes the representatives of the most frequent kinds of failure smaller.

        Args:
            see: called with how many are left.
        """
        waiting = {task.key: (kind, task) for kind, task in ((kind, _smaller(kind)) for kind in self.tally.ranked()[:MOST_SMALLER]) if task}
        see(len(waiting))
        for done, answer in dispatch(engine, iter([task for _, task in waiting.values()])):
            kind, _ = waiting.pop(done.key)
            kind.smaller = next((v for v in answer.verdicts() if v.output == kind.representative.output and v.status.rejects), None)
            see(len(waiting))

    def unasked(self, implementation: str) -> int:
        """Fixed cases of an implementation that were not answered; none where a wrongly declared convention left nothing to ask."""
        own = [task for task in self._fixed if task.implementation == implementation and implementation not in self._misfits]
        return sum(task.key not in self.tally.done for task in own)

    def _others(self, more: Callable[[], bool]) -> Iterator[Task]:
        for task in self._fixed:
            if not more():
                return
            if task.implementation not in self._misfits:
                yield task
        for number in range(self._cases):
            for name in self._orders.specs:
                if name in self._misfits:
                    continue
                if not more():
                    return
                yield Drawn(name, number)

    def _take(self, task: Task, verdicts: list[Verdict], trouble: str, writer: RecordWriter) -> None:
        if trouble:
            self.tally.trouble.append(f"{task.implementation}: {trouble}")
        for verdict in verdicts:
            writer.append(verdict)
        self._misfits |= {verdict.implementation for verdict in verdicts if verdict.status is Status.CONVENTION}
        self.tally.take(verdicts)

    def _check(self, known: list[Verdict]) -> None:
        """Refuses the record of another campaign: its numbers would stand for other cases."""
        from kdaverify.adapters.registry import find

        mine = {task.key for task in (*self._conventions, *self._fixed)}
        tasks = [verdict for verdict in known if verdict.number is not None]
        benches = {name: Bench(find(spec), spec, self._orders) for name, spec in self._orders.specs.items()}
        for verdict in tasks[:: max(1, len(tasks) // SAMPLE)]:
            bench = benches.get(verdict.implementation)
            assert verdict.number is not None
            asks = () if bench is None else bench.case(verdict.number).asks
            if (verdict.property, verdict.problem) not in {(ask.property, ask.problem) for ask in asks}:
                raise RecordError(_foreign(self._record, f"case {verdict.number} of {verdict.implementation} is another one there"))
        if any(verdict.number is None and key_of(verdict) not in mine for verdict in known):
            raise RecordError(_foreign(self._record, "it holds cases that this run does not ask"))


def _smaller(kind: Kind) -> Smaller | None:
    found = kind.representative
    if found.number is None or found.recheck is not None or found.status.takes_process:
        return None
    return Smaller(found.implementation, found.number, found.output, found.status.value)


def _foreign(path: Path, reason: str) -> str:
    return f"record: {path} is of another run: {reason}; name another file, or give the implementations, profile and seed that wrote it"
