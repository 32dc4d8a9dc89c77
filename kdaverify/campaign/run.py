"""Tasks from anywhere, judged by an engine into a record that survives interruptions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Final

from kdaverify.campaign.dispatch import dispatch
from kdaverify.campaign.engine import Engine
from kdaverify.campaign.kinds import FailureKind
from kdaverify.campaign.resume import resumed
from kdaverify.campaign.suite_tests import CONVENTIONS
from kdaverify.campaign.tally import CampaignCounts
from kdaverify.campaign.task import Fixed, Named, Orders, Random, Smaller, Task, key_of
from kdaverify.campaign.worker import CampaignSubject
from kdaverify.verdicts.lines import seal
from kdaverify.verdicts.record import RecordError, RecordWriter
from kdaverify.verdicts.seal import Account
from kdaverify.verdicts.verdict import Verdict

MOST_SHOWN: Final = 8
"""Kinds of failure whose representatives are made smaller, and diagnosed."""


class CampaignRun:
    """A campaign under way.

    Args:
        orders: what every worker gets.
        fixed: cases tested before the random ones.
        cases: how many random ones.
        record: .jsonl file; what lies there is not tested again.
    Raises:
        RecordError: the record is that of another campaign.
    """

    def __init__(
        self, orders: Orders, *, fixed: Iterable[Fixed] = (), cases: int, record: Path
    ) -> None:
        self._orders, self._cases, self._record = orders, cases, record
        self._conventions = [Fixed(name, CONVENTIONS) for name in orders.specs]
        self._fixed = [task for task in fixed if task.test != CONVENTIONS]
        self.tally = CampaignCounts(len(orders.specs) * (cases + 1) + len(self._fixed))
        self._misfits = set[str]()
        self._tested_all = False
        resumed(record, orders.seed, self._known())

    def run(
        self,
        engine: Engine,
        see: Callable[[CampaignCounts], None],
        *,
        more: Callable[[], bool] = lambda: True,
    ) -> None:
        """Runs what is not recorded yet.

        Args:
            see: called after every case.
            more: whether another case may be begun.
        """
        self._tested_all = False
        with RecordWriter(self._record) as writer:
            # Under a wrongly declared convention nothing else is scored.
            for tasks in (iter(self._conventions), self._others(more)):
                for task, answer in dispatch(
                    engine, (task for task in tasks if task.key not in self.tally.done)
                ):
                    self._take(task, answer.verdicts(), answer.trouble, writer)
                    see(self.tally)
        self._tested_all = not any(
            self.untested(name) and not self.tally.trouble.get(name) for name in self._orders.specs
        )

    def seal(self, account: Callable[[Orders, CampaignCounts], Account]) -> bool:
        """Closes the record, unless fixed cases were left out or Ctrl-C ended the run.

        Args:
            account: makes what is said beside the verdicts.
        """
        if self._tested_all:
            seal(self._record, account(self._orders, self.tally))
        return self._tested_all

    def shrink(self, engine: Engine, see: Callable[[int], None]) -> None:
        """Makes the representatives of the most frequent kinds of failure smaller.

        Args:
            see: called with how many are left.
        """
        waiting = {
            task.key: (kind, task)
            for kind, task in ((kind, _smaller(kind)) for kind in self.tally.ranked()[:MOST_SHOWN])
            if task
        }
        see(len(waiting))
        for done, answer in dispatch(engine, iter([task for _, task in waiting.values()])):
            kind, _ = waiting.pop(done.key)
            kind.smaller = next(
                (
                    v
                    for v in answer.verdicts()
                    if v.output == kind.representative.output and v.status.rejects
                ),
                None,
            )
            see(len(waiting))

    def diagnose(self, engine: Engine, see: Callable[[int], None], *, seconds: float) -> None:
        """Names what is wrong in the most frequent kinds of failure; equal names become one.

        Args:
            see: called with how many are left.
            seconds: for each implementation.
        """
        waiting = {
            task.key: (kind, task)
            for kind, task in _unnamed(self.tally.ranked()[:MOST_SHOWN], seconds)
        }
        see(len(waiting))
        for done, answer in dispatch(engine, iter([task for _, task in waiting.values()])):
            kind, _ = waiting.pop(done.key)
            kind.diagnosis = next((verdict.diagnosis for verdict in answer.verdicts()), "")
            see(len(waiting))
        self.tally.join()

    def untested(self, implementation: str) -> int:
        """Fixed cases without an answer; none where a wrong declaration left nothing to test."""
        own = [
            task
            for task in self._fixed
            if task.implementation == implementation and implementation not in self._misfits
        ]
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
                yield Random(name, number)

    def _take(
        self, task: Task, verdicts: list[Verdict], trouble: str, writer: RecordWriter
    ) -> None:
        if trouble:
            self.tally.trouble[task.implementation].append(trouble)
        for verdict in verdicts:
            writer.append(verdict)
        self._count(verdicts)

    def _count(self, verdicts: Sequence[Verdict]) -> None:
        self._misfits |= {verdict.implementation for verdict in verdicts if _is_misfit(verdict)}
        self.tally.take(verdicts)

    def _known(self) -> Callable[[Sequence[Verdict]], None]:
        """Counts recorded cases; refuses those of other campaigns, whose numbers differ.

        Generated again are the first, second, fourth, eighth of them and so on.
        """
        from kdaverify.adapters.registry import find

        mine = {task.key for task in (*self._conventions, *self._fixed)}
        benches = {
            name: CampaignSubject(find(spec), spec, self._orders)
            for name, spec in self._orders.specs.items()
        }
        places = count(1)

        def take(case: Sequence[Verdict]) -> None:
            first, place = case[0], next(places)
            if first.implementation not in benches or (
                first.number is None and key_of(first) not in mine
            ):
                raise RecordError(
                    _foreign(self._record, "it holds cases that this run does not have")
                )
            if first.number is not None and place.bit_count() == 1:
                tests = {
                    (test.property, test.problem)
                    for test in benches[first.implementation].case(first.number).tests
                }
                if (first.property, first.problem) not in tests:
                    raise RecordError(
                        _foreign(
                            self._record,
                            f"case {first.number} of {first.implementation} is another one there",
                        )
                    )
            self._count(case)

        return take


def _smaller(kind: FailureKind) -> Smaller | None:
    found = kind.representative
    if found.number is None or found.recheck is not None or found.status.takes_process:
        return None
    return Smaller(found.implementation, found.number, found.output, found.status.value)


def _unnamed(kinds: Sequence[FailureKind], seconds: float) -> Iterator[tuple[FailureKind, Named]]:
    """What can be diagnosed, with an equal share of the time of its implementation."""
    struck = {
        kind.representative.implementation
        for kind in kinds
        if kind.representative.status.takes_process
    }
    able = [
        kind
        for kind in kinds
        if kind.representative.status.localised
        and kind.representative.problem
        and kind.representative.implementation not in struck
    ]
    shares = Counter(kind.representative.implementation for kind in able)
    for kind in able if seconds else ():
        name = kind.representative.implementation
        yield kind, Named(name, kind.representative.model_dump_json(), seconds / shares[name])


def _foreign(path: Path, reason: str) -> str:
    return (
        f"record: {path} is of another run: {reason}; name another file, or give the"
        " implementations, profile and seed that wrote it"
    )


def _is_misfit(verdict: Verdict) -> bool:
    """Whether nothing else is scored: a declaration is wrong, or no call is answered."""
    return (
        verdict.property == CONVENTIONS.property
        and verdict.status.rejects
        and not verdict.status.takes_process
    )
