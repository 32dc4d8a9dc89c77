"""Diagnoses of a session: one case of every call that fails, in the time there is."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from functools import partial
from itertools import groupby
from typing import Final

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.isolation.fault import reported
from kdaverify.canonical import ProblemError
from kdaverify.checks.property_table import PROPERTIES, plain_call
from kdaverify.checks.status import Status
from kdaverify.diagnosis.beside import Beside
from kdaverify.diagnosis.contrast import experiments
from kdaverify.diagnosis.diagnose import diagnose
from kdaverify.diagnosis.diagnosis import Diagnosis
from kdaverify.diagnosis.question import PropertyCase, shrinks
from kdaverify.diagnosis.remainder import remainder
from kdaverify.diagnosis.reproduced import Row, reproduced, row_of
from kdaverify.diagnosis.second_bug import second_bug
from kdaverify.diagnosis.words import DIFFERS, FITS, PERHAPS, known_bugs
from kdaverify.operator import cost_of, problem_from_json
from kdaverify.process import use_one_core
from kdaverify.verdicts.locate import located
from kdaverify.verdicts.verdict import Verdict

CaseKey = tuple[str, str, str, str]
CONTRASTS: Final = 3 / 8
"""Of the time: for cases that differ from a failing one in one thing, some forty of 0.1 s."""
SHARE: Final = 1 / 2
"""Of the rest: to find which failures are the same. What is collapsed needs no diagnosis."""
FIRST: Final = 3
"""Kinds of failure that share the time left: of twelve kinds with equal shares, none had the time
for the catalogue, and an engineer reads the first."""
OUTPUTS: Final = "outputs"
"""Of what is found of a second bug: the outputs that it is in, the others of the case being wrong
by the first one too."""
NO_TIME: Final = "not minimised: no time was left for it (--diagnosis gives more)"
FIXED: Final = "not minimised: its calls have sizes of their own"
SMALLEST: Final = (
    "not made smaller: in its share of the time no smaller case was found that fails in the same"
    " way (--diagnosis gives more)"
)


def explained(
    verdicts: Sequence[Verdict], adapter: Adapter, *, seconds: float, second: Adapter | None = None
) -> dict[Row, dict[str, str]]:
    """What changes in failing verdicts: the plain call that they are the same as, or what is wrong.

    Args:
        verdicts: of `adapter`.
        seconds: in all.
        second: the same kernel in another process, for experiments beside; None: after it.
    """
    with nullcontext() if second is None else closing(Beside(second)) as beside:
        return _explained(verdicts, adapter, seconds, beside)


def _explained(
    verdicts: Sequence[Verdict], adapter: Adapter, seconds: float, beside: Beside | None
) -> dict[Row, dict[str, str]]:
    end = time.monotonic() + seconds
    until = end if beside is not None else end - seconds * CONTRASTS
    same = _shown(verdicts, _reproduced(verdicts, adapter, (until - time.monotonic()) * SHARE))
    left = [verdict for verdict in verdicts if row_of(verdict) not in same]
    contrasted = partial(_contrasts, left, until=end)
    begun = None if beside is None else beside.begin(contrasted)
    reported = findings(left, adapter, seconds=until - time.monotonic())
    shown = [verdict for verdict in left if verdict.case_key() in reported]
    named = {
        row_of(row): {**fields, **_stage(row)}
        for row in _localised(shown, adapter, until)
        if (fields := _of_output(reported[row.case_key()], row.output))
    }
    found = contrasted(adapter) if beside is None or begun is None else beside.result(begun, {})
    for row, said in found.items():
        named[row] = {**named.get(row, {}), "contrast": said}
    return named | {row: {"same_as": call} for row, call in same.items()}


def _of_output(fields: Mapping[str, str], output: str) -> dict[str, str]:
    """What is said of an output of a case; nothing where a second bug is not in it."""
    own = {name: value for name, value in fields.items() if name != OUTPUTS}
    return own if output in fields.get(OUTPUTS, output).split() else {}


def _contrasts(rows: Sequence[Verdict], adapter: Adapter, *, until: float) -> dict[Row, str]:
    """What failures depend on, by the row from whose case it was found; small cases first."""
    use_one_core()
    failing = [row for row in rows if row.status.localised and row.problem and not row.left_open()]
    if not adapter.open_ended or any(row.status.takes_process for row in rows):
        return {}
    failing.sort(key=lambda row: (not row.is_clear(), _place(row), _size(row)))
    cases = dict[str, tuple[PropertyCase, Row]]()
    for row in failing:
        case = question_of(row)
        cases.setdefault(
            f"{case.property} {case.problem.to_json()} {case.detail}", (case, row_of(row))
        )
    try:
        found = experiments(
            [case for case, _ in cases.values()], adapter, seconds=until - time.monotonic()
        )
    except Exception:  # noqa: BLE001 # the verdicts must not be lost
        return {}
    said = dict[Row, list[str]]()
    for one in found:
        own = next(row for case, row in cases.values() if case is one.case)
        said.setdefault(own, []).append(str(one))
    return {row: "\n".join(lines) for row, lines in said.items()}


def _localised(shown: Sequence[Verdict], adapter: Adapter, until: float) -> list[Verdict]:
    """Those shown with their first wrong stage, which suites find of the first of a kind."""
    found = list[Verdict]()
    for _, rows in groupby(shown, key=lambda row: row.case_key()):
        case = [*rows]
        late = time.monotonic() > until or all(
            row.stage is not None for row in case if row.status.rejects
        )
        found += case if late else located(case, adapter)
    return found


def _stage(row: Verdict) -> dict[str, str]:
    return {} if row.stage is None else {"stage": row.stage, "located": row.located}


def _shown(verdicts: Sequence[Verdict], same: Mapping[Row, str]) -> dict[Row, str]:
    """Those whose plain call is among the failures: one suite alone may not test it."""
    plain = {
        plain_call(row.property, row.detail)
        for row in verdicts
        if row.status.rejects and row_of(row) not in same
    }
    return {row: call for row, call in same.items() if call in plain}


def _reproduced(verdicts: Sequence[Verdict], adapter: Adapter, seconds: float) -> dict[Row, str]:
    try:
        return reproduced(verdicts, adapter, seconds=seconds)
    # the verdicts must not be lost: without it, each kind is reported by itself
    except Exception:  # noqa: BLE001
        return {}


def diagnosed(
    verdicts: Sequence[Verdict], adapter: Adapter, *, seconds: float
) -> dict[CaseKey, str]:
    """What is wrong, by test: of every failing call the smallest clear case, which is shown."""
    return {
        tested: found["diagnosis"]
        for tested, found in findings(verdicts, adapter, seconds=seconds).items()
    }


def findings(
    verdicts: Sequence[Verdict], adapter: Adapter, *, seconds: float
) -> dict[CaseKey, dict[str, str]]:
    """The fields of a verdict that name the error and the smallest failing case, by test.

    Math: every kind of call gets a third of the time that is left, the last three equal shares;
    what is begun is ended. A kernel that took its process once is not run again: every smaller case
    could cost a time limit.

    Args:
        verdicts: of `adapter`.
        seconds: in all.
    """
    if any(verdict.status.takes_process for verdict in verdicts):
        return {}
    smallest_of = (row for own in _by_call(verdicts).values() for row in _of_each_bug(own))
    # A plain forward first: gradients of a wrong one were diagnosed, and itself was not.
    cases = sorted(smallest_of, key=_place)
    until, found = time.monotonic() + seconds, dict[CaseKey, dict[str, str]]()
    compared = set[str]()
    for number, verdict in enumerate(cases):
        tested, left = verdict.case_key(), until - time.monotonic()
        if left <= 0:
            found[tested] = {"minimised": NO_TIME}
            continue
        share = left / min(len(cases) - number, FIRST)
        # Once a call: it takes up to a second, and the result holds for its other outputs too.
        others = [] if _called(verdict) in compared else _of_the_same_call(verdict, verdicts)
        found |= {**_found(verdict, others, adapter, share), **found}
        compared |= {_called(verdict)} if known_bugs(found[tested]["diagnosis"]) else set()
    whole = {tested: {"diagnosis": "", **reported} for tested, reported in found.items()}
    return _with_races(whole, cases)


def _with_races(
    found: Mapping[CaseKey, dict[str, str]], cases: Sequence[Verdict]
) -> dict[CaseKey, dict[str, str]]:
    """A race seen in one kind of failure, in the diagnosis of others without a known bug.

    A race strikes at random: of four kinds of failure of one, the calls of a single kind showed it,
    and the others had no cause.
    """
    seen = [row for row in cases if found[row.case_key()]["diagnosis"].startswith(DIFFERS)]
    if not seen:
        return dict(found)
    head = f"{PERHAPS}{DIFFERS} in {_called(seen[0])} {seen[0].output}"
    return {
        tested: (
            one
            if one["diagnosis"].startswith((DIFFERS, FITS))
            else {**one, "diagnosis": "; ".join(filter(None, (head, one["diagnosis"])))}
        )
        for tested, one in found.items()
    }


def _called(row: Verdict) -> str:
    return plain_call(row.property, row.detail) or row.property


def question_of(verdict: Verdict) -> PropertyCase:
    """What the kernel was tested on.

    Raises:
        ProblemError: the verdict's problem is none of this version.
    """
    return PropertyCase(verdict.property, problem_from_json(verdict.problem), verdict.detail)


def _found(
    verdict: Verdict, others: Sequence[Verdict], adapter: Adapter, seconds: float
) -> dict[CaseKey, dict[str, str]]:
    """What is found of a failure, and of one of the same call that it does not explain."""
    tested, until = verdict.case_key(), time.monotonic() + seconds
    try:
        question = question_of(verdict)
        found = diagnose(adapter, question, seconds=seconds)
        left = remainder(adapter, found, [question_of(row) for row in others])
        said = "; ".join(filter(None, (str(found), left.said)))
        reported_of = {tested: {"diagnosis": said, **_fields(verdict, found)}}
        if left.smallest is not None:
            # The comparison with the others was in no share: neither is this one.
            rest = max(until - time.monotonic(), seconds / 2)
            row = next(row for row in others if question_of(row) == left.smallest)
            second = second_bug(adapter, found, left.smallest, seconds=rest)
            if second is not None:
                reported_of[row.case_key()] = {
                    "diagnosis": str(second.diagnosis),
                    **_fields(row, second.diagnosis),
                    OUTPUTS: " ".join(second.outputs),
                }
    except Exception as error:  # noqa: BLE001 # the verdicts must not be lost
        return {tested: {"diagnosis": f"not diagnosed: {reported(error)}"}}
    return reported_of


def _fields(verdict: Verdict, found: Diagnosis) -> dict[str, str]:
    there = {} if found.stage is None else found.stage.fields
    return {"minimised": minimised_line(verdict, found.smallest), **there}


def _of_the_same_call(verdict: Verdict, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The other failures of the same plain call, whose results can be compared; none of another."""
    call = plain_call(verdict.property, verdict.detail)
    if not call:
        return []
    return [
        row
        for row in verdicts
        if row.status.localised
        and row.problem
        and not row.left_open()
        and row.case_key() != verdict.case_key()
        and plain_call(row.property, row.detail) == call
    ]


def _by_call(verdicts: Sequence[Verdict]) -> dict[tuple[str, Status], list[Verdict]]:
    """Failures by the call made and how it failed, suites with the same call together."""
    found = dict[tuple[str, Status], list[Verdict]]()
    for verdict in verdicts:
        if verdict.status.localised and verdict.problem and not verdict.left_open():
            found.setdefault((_called(verdict), verdict.status), []).append(verdict)
    return found


def _of_each_bug(rows: Sequence[Verdict]) -> list[Verdict]:
    """The smallest clear failure of a call, and of a plain one the smallest clear failure in which
    no output of the first fails: with one bug in o and another in final_state, o had no diagnosis.
    """
    first = _smallest(rows)
    wrong = dict[CaseKey, set[str]]()
    for row in rows:
        wrong.setdefault(row.case_key(), set()).add(row.output)
    apart = [row for row in rows if not wrong[row.case_key()] & wrong[first.case_key()]]
    plain = plain_call(first.property, first.detail)
    return [first, _smallest(apart)] if apart and plain else [first]


def _smallest(rows: Sequence[Verdict]) -> Verdict:
    return min(rows, key=lambda row: (not row.is_clear(), _size(row)))


def _place(verdict: Verdict) -> int:
    """In the order of evidence, of the plain call where it is one."""
    return [*PROPERTIES].index(_called(verdict))


def _size(verdict: Verdict) -> float:
    try:
        return cost_of(verdict.problem)
    except ProblemError:
        return float("inf")


def minimised_line(verdict: Verdict, smallest: PropertyCase) -> str:
    """The line that replays the smallest case, or why there is none.

    Args:
        verdict: of the case as it was tested.
        smallest: what was found.
    """
    if not shrinks(smallest):
        return FIXED
    if smallest.problem.to_json() == verdict.problem:
        return SMALLEST
    return (
        "smallest case that fails in the same way,"
        f" {smallest.problem.describe()}:\n{replay_line(verdict.replay, smallest)}"
    )


def replay_line(line: str, case: PropertyCase) -> str:
    """The line that replays a verdict, for another problem of its property."""
    words = shlex.split(line)
    if "--detail" in words:
        words[words.index("--detail") + 1] = json.dumps(dict(case.detail), sort_keys=True)
    return shlex.join([*words[:-1], case.problem.to_json()])
