"""The first call gives what later ones give."""

from __future__ import annotations

from dataclasses import replace

from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome

# More tokens than any other rule requests.
TOKENS = 13


def _of_a_shape(case: CallRuleCase) -> list[Outcome]:
    return _twice(
        replace(case, problem=case.beside(T=case.problem.T + TOKENS)),
        "after the first call of this shape",
    )


def _after_start(case: CallRuleCase) -> list[Outcome]:
    if not case.adapter.isolated:
        raise Unreachable("it runs in this process, which has called it before; say --isolate")
    case.adapter.end()
    return _twice(case, "after the first call of its process")


def _twice(case: CallRuleCase, said: str) -> list[Outcome]:
    first = {name: tensor.clone() for name, tensor in case.run().items()}
    return case.repeats(first, case.run(), said)


_EXPOSES = "tuning runs that update what they are given, caches filled wrongly (S28)"
RULES = (
    CallRule("first-of-shape", "the first call of a shape gives the bits of the next", _EXPOSES,
             _of_a_shape, sequences=True),
    # Another process for every case: on a GPU that takes a quarter of a minute.
    CallRule("first-after-start", "the first call of a process gives the bits of the next",
             _EXPOSES, _after_start, once=True, profile="acceptance"),
)  # fmt: skip
