"""The gate on the record of a session decides as the session did, for the same reasons."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from kdaverify.plugin.session import decisions_of
from kdaverify.verdicts.decision import Decision
from kdaverify.verdicts.gate import GateCriteria, gate

PASSES = "def test_it(judge): report(judge, case='kda-1', versions={'torch': '2'})\n"
BODIES = {
    "passes": {"forward": PASSES},
    "fails": {
        "forward": PASSES,
        "resume": "def test_it(judge): report(judge, Status.FAIL, case='kda-2', dtype='bf16')\n",
    },
    "skips": {"forward": "def test_it(judge): report(judge, Status.SKIP, message='no device')\n"},
    "breaks": {"forward": PASSES, "resume": "def test_it(judge): raise KeyError('ours')\n"},
    "uncertified": {
        "forward": PASSES,
        "state": "def test_it(judge): report(judge, Status.ORACLE_UNCERTIFIED)\n",
    },
    "raises": {
        "forward": (
            "def test_it(judge): report(judge, Status.ERROR, case='kda-1', message='the kernel"
            " raised NameError: x (p.py:1 in p)')\n"
        )
    },
    "hollow": {"forward": "def test_it(judge): report(judge, vacuous=('zeros',))\n"},
}


class Listener:
    """Keeps what the session decides."""

    decisions: tuple[Decision, ...] = ()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.decisions = tuple(decisions_of(session.config))


@pytest.mark.parametrize(("name", "ending"), [*zip(BODIES, itertools.cycle(("jsonl", "parquet")))])
def test_the_gate_decides_as_the_session(
    pytester: pytest.Pytester, suite: Callable[..., None], name: str, ending: str
) -> None:
    suite(**BODIES[name])
    record, heard = Path(pytester.path) / f"r.{ending}", Listener()
    words = (
        "-p",
        "kdaverify.plugin",
        "--impl",
        "port.py",
        "-p",
        "no:cacheprovider",
        "--record",
        str(record),
    )
    pytester.runpytest_inprocess(*words, plugins=[heard])
    (decision,) = heard.decisions
    (found,) = gate([record], GateCriteria(date(2026, 3, 1)))
    assert (found.ruling, found.reasons) == (decision.ruling, decision.reasons)
    assert (found.tally.judged, found.rules) == (decision.cases, "session")
