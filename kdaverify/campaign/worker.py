"""One worker: it keeps its kernels, and answers one task after the other."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from kdaverify.campaign.cases import RandomCase, case
from kdaverify.campaign.shrink import shrunk
from kdaverify.campaign.suite_tests import CONVENTIONS, PropertyTest, SuiteTest, questions
from kdaverify.campaign.task import Fixed, Named, Orders, Smaller, Task, TaskResult
from kdaverify.operator import problem_from_json
from kdaverify.process import use_one_core
from kdaverify.verdicts.judge import FatalRejection, Judge, Rejected
from kdaverify.verdicts.locate import located
from kdaverify.verdicts.verdict import Verdict

if TYPE_CHECKING:
    from kdaverify.adapters.base import Adapter


class Worker:
    """Answers tasks, on one core and one device."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._bench: dict[tuple[str, bool], CampaignSubject] = {}
        use_one_core()
        # a worker on another machine may not have it
        if os.path.isdir(orders.folder):  # noqa: PTH112
            os.chdir(orders.folder)

    def answer(self, task: Task, *, apart: bool = False) -> TaskResult:
        """The verdicts of a task, or what went wrong in the harness.

        Args:
            apart: whether the kernel runs in a process of its own, whatever the orders say.
        """
        try:
            verdicts = self._of(task.implementation, apart=apart).verdicts(task)
        # whatever it is, it is ours, and concerns this task
        except Exception as error:  # noqa: BLE001
            return TaskResult(trouble=f"{type(error).__name__}: {' '.join(str(error).split())}")
        return TaskResult(tuple(verdict.model_dump_json() for verdict in verdicts))

    def end(self) -> None:
        for bench in self._bench.values():
            bench.adapter.end()

    def _of(self, name: str, *, apart: bool) -> CampaignSubject:
        from kdaverify.adapters.isolation import housed
        from kdaverify.adapters.registry import find

        if (name, apart) not in self._bench:
            spec, isolate = self._orders.specs[name], True if apart else self._orders.isolate
            adapter = housed(find(spec), spec, isolate=isolate, limits=self._orders.limits)
            self._bench[name, apart] = CampaignSubject(adapter, spec, self._orders)
        return self._bench[name, apart]


class CampaignSubject:
    """One implementation, and what is tested of it."""

    def __init__(self, adapter: Adapter, spec: str, orders: Orders) -> None:
        self.adapter, self._spec, self._orders = adapter, spec, orders

    @cached_property
    def random(self) -> tuple[SuiteTest, ...]:
        return questions(self.adapter, self._orders.profile, random=True)

    def case(self, number: int) -> RandomCase:
        return case(self.random, self._orders.seed, number)

    def verdicts(self, task: Task) -> list[Verdict]:
        """Of a task, failures with their stage."""
        if isinstance(task, Named):
            return [self.named(Verdict.model_validate_json(task.row), task.seconds)]
        if isinstance(task, Fixed):
            return located(self.judged(task.test), self.adapter)
        found = self.case(task.number)
        if isinstance(task, Smaller):
            least = shrunk(
                found, lambda test: self.judged(test, defers=True), task.output, task.status
            )
        else:
            least = [verdict for test in found.tests for verdict in self.judged(test)]
        return [
            verdict.model_copy(update={"number": task.number})
            for verdict in located(least, self.adapter)
        ]

    def named(self, verdict: Verdict, seconds: float) -> Verdict:
        """The verdict with its diagnosis."""
        from kdaverify.diagnosis.session import diagnosed

        text = diagnosed([verdict], self.adapter, seconds=seconds)
        return verdict.model_copy(update={"diagnosis": text.get(verdict.case_key(), "")})

    def judged(self, test: PropertyTest, *, defers: bool = False) -> list[Verdict]:
        """What the judge reports: the one place where a verdict is made."""
        reported: list[Verdict] = []
        judge = Judge(
            self.adapter,
            reported.append,
            test.property,
            spec=self._spec,
            seed=self._orders.seed,
            defers=defers,
        )
        # A rejection is raised for the sake of tests; its verdicts are reported before.
        with suppress(Rejected, FatalRejection):
            if test == CONVENTIONS:
                judge.conventions()
            else:
                judge(problem_from_json(test.problem), **json.loads(test.detail))
        return reported
