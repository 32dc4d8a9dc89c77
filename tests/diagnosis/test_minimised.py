"""The smallest case that fails comes with a line that replays it,
or with the reason why there is none.
"""

from __future__ import annotations

import json
import shlex

from kdaverify.checks.status import Status
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.diagnosis.session import (
    FIXED,
    SMALLEST,
    findings,
    minimised_line,
    replay_line,
)
from kdaverify.problems import Problem
from kdaverify.verdicts.judge import Judge, Rejected
from kdaverify.verdicts.verdict import Verdict
from tests.faults import kernels
from tests.faults.triggers import PLAIN

LARGE = Problem.model_validate({**PLAIN, "T": 70, "dtype": "bf16"})
SMALL = LARGE.replace(T=2, K=1, V=1)
LINE = shlex.join(
    [
        "kdaverify",
        "replay",
        "--impl",
        "my port.py",
        "--property",
        "resume",
        "--detail",
        '{"cut": 9}',
        LARGE.to_json(),
    ]
)


def test_the_line_replays_the_smaller_problem_with_the_detail_that_belongs_to_it() -> None:
    words = shlex.split(
        replay_line(LINE, PropertyCase("resume", SMALL, {"cut": 1, "way": "chunk-step"}))
    )
    assert words[:7] == [
        "kdaverify",
        "replay",
        "--impl",
        "my port.py",
        "--property",
        "resume",
        "--detail",
    ]
    assert json.loads(words[7]) == {"cut": 1, "way": "chunk-step"} and words[8] == SMALL.to_json()


def test_what_is_said_where_nothing_smaller_was_found() -> None:
    verdict = Verdict(
        implementation="port",
        property="forward",
        status=Status.FAIL,
        problem=LARGE.to_json(),
        replay=LINE,
    )
    assert minimised_line(verdict, PropertyCase("forward", LARGE)) == SMALLEST
    assert (
        minimised_line(
            verdict.model_copy(update={"property": "probes"}), PropertyCase("probes", LARGE)
        )
        == FIXED
    )


def test_a_failing_case_of_a_session_is_made_smaller_and_the_line_fails_again() -> None:
    wrong, rows = kernels.key_decay_applied_twice, list[Verdict]()
    try:
        Judge(wrong, rows.append, "forward", published=False)(LARGE)
    except Rejected:
        (found,) = findings(rows, wrong, seconds=20.0).values()
        said, _, line = found["minimised"].partition("\n")
        smallest = Problem.from_json(shlex.split(line)[-1])
        assert (
            said.startswith("smallest case that fails in the same way, ") and smallest.T < LARGE.T
        )
        again = list[Verdict]()
        try:
            Judge(wrong, again.append, "forward", published=False)(smallest)
        except Rejected:
            return
    raise AssertionError("the kernel was not rejected")


def test_no_time_is_said() -> None:
    row = Verdict(
        implementation="port",
        property="forward",
        status=Status.FAIL,
        problem=LARGE.to_json(),
        replay=LINE,
    )
    (found,) = findings([row], kernels.key_decay_applied_twice, seconds=0.0).values()
    assert found["minimised"].startswith("not minimised: ")
