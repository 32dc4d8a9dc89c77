"""One session of the suites that ends once something is proven: plugin and call."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

import kdaverify
from kdaverify.canonical import Canonical
from kdaverify.checks.property_table import PROPERTIES
from kdaverify.cli.request import Request
from kdaverify.internals import parameters_of
from kdaverify.kills.rows import EVERY
from kdaverify.operator import operator_of
from kdaverify.plugin.suite_files import property_of
from kdaverify.problems.profiles import cost_of
from kdaverify.verdicts.verdict import Verdict

LONG: Final = cost_of("acceptance")
ENDS: Final = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
SETTINGS: Final = Path(kdaverify.__file__).parent / "cli" / "suites.ini"


@dataclass
class Hunt:
    """Watches a session.

    Args:
        objection: why a rejection is no kill; "" if it is, which ends it. None: run all.
        until: when the session is to end, by time.time().
    """

    objection: Callable[[Verdict], str] | None
    until: float
    killer: Verdict | None = None
    rejected: list[Verdict] = field(default_factory=list[Verdict])
    dismissed: list[str] = field(default_factory=list[str])
    trouble: list[str] = field(default_factory=list[str])
    tested: set[tuple[str, ...]] = field(default_factory=set[tuple[str, ...]])
    out_of_time: bool = False
    _session: pytest.Session | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, items: list[pytest.Item]
    ) -> None:
        """Every suite gets equal time: what only one detects is met early; long runs last."""
        self._session = session
        spent = defaultdict[str, float](float)
        places: dict[pytest.Item, tuple[bool, float]] = {}
        for item in items:
            name = property_of(item.path)
            places[item] = (_is_long(item), spent[name])
            spent[name] += PROPERTIES[name].seconds
        items.sort(key=places.__getitem__)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.trouble.append(f"{report.nodeid}: {report.longreprtext.splitlines()[-1]}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        part = getattr(report, "kdaverify", None)
        verdicts = (
            [] if part is None else [Verdict.model_validate_json(row) for row in part["verdicts"]]
        )
        self.tested |= {verdict.case_key() for verdict in verdicts if verdict.status.judged}
        self._weigh([verdict for verdict in verdicts if verdict.status.rejects])
        if report.failed and (part is None or part["broken"]):
            self.trouble.append(
                f"{report.nodeid}:"
                f" {part['broken'] if part else report.longreprtext.splitlines()[-1]}"
            )
        self.out_of_time = self.killer is None and time.time() > self.until
        assert self._session is not None
        if self.killer is not None or self.out_of_time:
            self._session.shouldstop = "enough is known"

    def _weigh(self, wrong: list[Verdict]) -> None:
        self.rejected += wrong
        if self.objection is None:
            return
        for verdict in wrong:
            why = self.objection(verdict)
            if not why:
                self.killer = verdict
                return
            self.dismissed.append(why)


def _is_long(item: pytest.Item) -> bool:
    """Whether a test names a problem that costs more than a random one may."""
    given = (parameters_of(item) or {}).values()
    parts = [part for value in given for part in (value if isinstance(value, tuple) else (value,))]
    return any(operator_of(part).cost(part) > LONG for part in parts if isinstance(part, Canonical))


def hunt(
    spec: str,
    profile: str,
    objection: Callable[[Verdict], str] | None,
    until: float,
    *,
    only: str = EVERY,
) -> Hunt:
    """Runs the suites on what `spec` names.

    Args:
        only: suites to run, by property; a glob. A suite may have nothing to test.
    Raises:
        RuntimeError: pytest itself broke.
        KeyboardInterrupt: someone ended it; nothing is known then.
    """
    found = Hunt(objection, until)
    request = Request(
        impls=(spec,),
        profile=profile,
        seed=None,
        record=None,
        json_file=None,
        workers="0",
        require_impl=True,
        isolate=False,
    )
    folder, *arguments = request.pytest_arguments(kdaverify.suites_folder(), SETTINGS)
    files = [str(file) for file in sorted(Path(folder).rglob(f"test_{only}.py"))]
    ended = pytest.main([*files, *arguments, "--bare"], plugins=[found])
    if ended not in ENDS and not (ended == pytest.ExitCode.NO_TESTS_COLLECTED and only != EVERY):
        raise RuntimeError(f"the suites on {spec} ended with {ended!r}")
    if ended == pytest.ExitCode.INTERRUPTED and found.killer is None and not found.out_of_time:
        raise KeyboardInterrupt
    return found
