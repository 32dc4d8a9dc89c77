"""Kinds of questions, by the verdicts that answer them: what is missed without each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from kdaverify.checks.calls import (
    after_many,
    autograd,
    behind,
    callers,
    chained,
    chunk_counts,
    copies,
    earlier,
    frozen,
    heads,
    interleaved,
    late,
    long_rows,
    prefixes,
    short_packs,
    sources,
    steps,
    unlike,
    untracked,
    views,
)
from kdaverify.checks.calls.rule import REAL
from kdaverify.checks.calls.rules import RULES
from kdaverify.checks.outcome import OVERFLOWS
from kdaverify.operators.kda.call_problem import PLAIN_WIDTH
from kdaverify.problems.coincidences import COINCIDENT
from kdaverify.verdicts.verdict import Verdict

AUTOGRAD_RULES: Final = tuple(
    rule.name
    for rule in (
        *autograd.RULES, *untracked.RULES, *frozen.RULES, *untracked.OF_CHUNKS, *earlier.RULES,
        *prefixes.RULES, *earlier.EVALUATED_FIRST, *earlier.MICRO,
        *untracked.OF_PACKED_CHUNKS, *frozen.OF_CHUNKS,
    )
)  # fmt: skip
EQUAL_RULES: Final = tuple(rule.name for rule in (*views.OF_EQUAL_SIZES, *views.EQUAL_STEPS))
LATE_RULES: Final = tuple(rule.name for rule in (*late.RULES, *chunk_counts.RULES))
COPIES_RULES: Final = tuple(
    rule.name
    for rule in (
        *copies.RULES, *copies.TWICE, *copies.IN_A_ROW, *copies.AFTER_MORE, *behind.RULES,
        *unlike.RULES, *heads.RULES, *steps.AFTER_MORE, *short_packs.RULES,
    )
)  # fmt: skip
PLACES_RULES: Final = tuple(
    rule.name
    for rule in (
        *chained.RULES, *sources.RULES, *views.OF_STATES, *views.OF_STEPS, *chained.ZEROS,
        *views.OF_FIRST_ENTRIES,
    )
)  # fmt: skip
ROWS_RULES: Final = tuple(rule.name for rule in long_rows.RULES)
CALLERS_RULES: Final = tuple(
    rule.name
    for rule in (
        *callers.RULES, *views.IN_TABLES, *callers.CANCELLING, *interleaved.OF_PACKS,
        *callers.EDITED, RULES["cotangent-infinite"], *after_many.RULES,
        RULES["alternating-packing"], RULES["cotangent-expanded"], *callers.UNEVEN_ROWS,
    )
)  # fmt: skip
ONE_TILE: Final = 128
IDS_RULES: Final = ("renumbered", "padding-by-ids")


@dataclass(frozen=True)
class QuestionKind:
    """A kind of question.

    Args:
        about: what is tested.
        holds: whether the verdicts of one case answer a question of this kind.
    """

    about: str
    holds: Callable[[Sequence[Verdict]], bool]


def _rule(case: Sequence[Verdict]) -> str:
    return str(case[0].detail.get("rule", "")) if case[0].property == "calls" else ""


def _fields(problem: str) -> dict[str, Any]:
    return json.loads(problem) if problem else {}


def _problem(case: Sequence[Verdict]) -> dict[str, Any]:
    return _fields(case[0].problem)


def _is_of_memory(case: Sequence[Verdict]) -> bool:
    rule, problem = RULES.get(_rule(case)), _problem(case)
    if rule is None or not (rule.memory or rule.size == "long"):
        return False
    return rule.backward or rule.size == "long" or (problem["K"], problem["V"]) != PLAIN_WIDTH


def _is_of_a_process(case: Sequence[Verdict]) -> bool:
    rule = RULES.get(_rule(case))
    return rule is not None and rule.needs_its_process


def past_one_tile(problem: str) -> bool:
    """Whether keys or values of a problem, in JSON, have more than 128 columns."""
    fields = _fields(problem)
    return max(fields.get("K", 0), fields.get("V", 0)) > ONE_TILE


def _is_of_coincidences(case: Sequence[Verdict]) -> bool:
    problem = _problem(case)
    if case[0].property not in ("panel", "gradients"):
        return _rule(case) in EQUAL_RULES
    return any(
        all(_plain(problem.get(name)) == _plain(one.fields.get(name)) for name in one.decided_by)
        for one in COINCIDENT.values()
    )


def _plain(value: Any) -> Any:
    return [*value] if isinstance(value, tuple | list) else value


def _is_of_repeats(case: Sequence[Verdict]) -> bool:
    rule = RULES.get(_rule(case))
    return rule is not None and rule.counted and rule.size in REAL


QUESTIONS: Final[Mapping[str, QuestionKind]] = MappingProxyType(
    {
        "combinations": QuestionKind(
            "pairs and triples of properties of a problem",
            lambda case: case[0].property == "combined",
        ),
        "widths": QuestionKind(
            "keys and values past 128 columns", lambda case: past_one_tile(case[0].problem)
        ),
        "magnitudes": QuestionKind(
            "values and states beyond the range of fp16",
            lambda case: (
                "beyond-fp16" in (_problem(case).get(x) for x in ("value", "state"))
                or _rule(case) == "step"
            ),
        ),
        "memory": QuestionKind(
            "memory around tensors backward, at odd and tail widths, in long calls", _is_of_memory
        ),
        "repeats": QuestionKind(
            "repeated calls of over 1,000 tokens and eight heads", _is_of_repeats
        ),
        "process": QuestionKind(
            "memory, objects and keywords of kernels that run in a process of their own",
            _is_of_a_process,
        ),
        "overflow": QuestionKind(
            "outputs that fit where others of the same call overflow",
            lambda case: any(OVERFLOWS in verdict.message for verdict in case),
        ),
        "depth": QuestionKind(
            "finite gates down to -1e6, gates and writes next to 0",
            lambda case: (
                _problem(case).get("gate") in ("deep-resets", "vanishing")
                or _problem(case).get("beta") == "tiny"
                or _rule(case) == "step"
            ),
        ),
        "entries": QuestionKind(
            "entry points that activate gates, take sigmoids or normalise themselves",
            lambda case: case[0].property == "options" or _rule(case) in ROWS_RULES,
        ),
        "autograd": QuestionKind(
            "calls that a training step or a server makes: recorded or not, with any inputs"
            " frozen, twice backward, from a sum or from some tokens alone, after an evaluation or"
            " a request that begins alike",
            lambda case: _rule(case) in AUTOGRAD_RULES,
        ),
        "coincidences": QuestionKind(
            "sizes that are equal, also with axes exchanged in memory, few tokens, and lengths of a"
            " pack that follow a rule",
            _is_of_coincidences,
        ),
        "late": QuestionKind(
            "what follows 4,096 tokens that write nothing, and every number of chunks",
            lambda case: _rule(case) in LATE_RULES,
        ),
        "copies": QuestionKind(
            "more sequences, heads and tokens than a block, a byte or 16 bits hold, one unlike all"
            " others, any groups of heads, heads in reverse, and wide or fewer decode steps",
            lambda case: _rule(case) in (*COPIES_RULES, "step"),
        ),
        "places": QuestionKind(
            "states of the call before, or of zeros, one state of all sequences, one tensor in two"
            " places",
            lambda case: _rule(case) in PLACES_RULES,
        ),
        "callers": QuestionKind(
            "tensors that are edited and packs that are called before the backward, other losses"
            " and scales, infinite ones among them, lengths and projections as they lie in larger"
            " tensors, calls that differ from many before them",
            lambda case: _rule(case) in CALLERS_RULES,
        ),
        "ids": QuestionKind(
            "segment ids in any order, and padding in front and between",
            lambda case: _rule(case) in IDS_RULES,
        ),
    }
)
"""By name. The diagnosis, which has no question of its own, is tested on named faults
(tests/diagnosis)."""
