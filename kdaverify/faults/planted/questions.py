"""Kinds of questions: what is missed without each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from kdaverify.campaign.suite_tests import PropertyTest
from kdaverify.checks.calls import (
    after_many,
    autograd,
    behind,
    callers,
    chained,
    chunk_counts,
    copies,
    earlier,
    fed_back,
    frozen,
    head_counts,
    heads,
    interleaved,
    late,
    lifetimes,
    long_rows,
    multiples,
    neutral,
    prefixes,
    short_packs,
    sizes_in_turn,
    sources,
    steps,
    surroundings,
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
        *untracked.OF_PACKED_CHUNKS, *frozen.OF_CHUNKS, *earlier.ONE_LOSS,
    )
)  # fmt: skip
EQUAL_RULES: Final = tuple(rule.name for rule in (*views.OF_EQUAL_SIZES, *views.EQUAL_STEPS))
LATE_RULES: Final = tuple(
    rule.name for rule in (*late.RULES, *chunk_counts.RULES, *late.OF_PACKS, *late.OF_EARLY)
)
WIDTHS_RULES: Final = tuple(rule.name for rule in sizes_in_turn.RULES)
COPIES_RULES: Final = tuple(
    rule.name
    for rule in (
        *copies.RULES, *copies.TWICE, *copies.IN_A_ROW, *copies.AFTER_MORE, *behind.RULES,
        *unlike.RULES, *heads.RULES, *steps.AFTER_MORE, *short_packs.RULES, *head_counts.RULES,
        *neutral.RULES, *fed_back.RULES, *heads.OF_GRADIENTS, *head_counts.OF_LONG,
        *copies.OF_LARGE_STATES, *lifetimes.OF_STEPS, *multiples.RULES, *unlike.OF_STRETCHES,
        *fed_back.WHOLE, *lifetimes.OF_MANY_STEPS,
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
        *interleaved.OF_LAYERS,
    )
)  # fmt: skip
TYPES_RULES: Final = tuple(rule.name for rule in surroundings.OF_TYPES)
WITHOUT_GRADIENTS: Final = ("after-many-step", "fed-back-state")
"""Decode steps under no_grad, where a kernel may take a path of its own."""
ONE_TILE: Final = 128
SCALED_LOSSES: Final = ("gradients", "cotangent_linearity")
BELOW_FP16: Final = -24
"""The power of 2 by which a loss of fp16's range falls out of it."""


@dataclass(frozen=True)
class Question:
    """What one case is about.

    Args:
        property: what is tested.
        detail: what the property chose beside the problem.
        problem: its fields.
        rule: the rule of calls, "" of other properties.
    """

    property: str
    detail: Mapping[str, Any]
    problem: Mapping[str, Any]
    rule: str

    @classmethod
    def of(cls, test: PropertyTest) -> Question:
        """That of a suite's test."""
        detail = json.loads(test.detail)
        return cls(
            test.property,
            detail,
            json.loads(test.problem) if test.problem else {},
            str(detail.get("rule", "")) if test.property == "calls" else "",
        )


@dataclass(frozen=True)
class QuestionKind:
    """A kind of question.

    Args:
        about: what is tested.
        includes: whether a question is of this kind.
        shown: whether its verdicts are too, where they alone say it.
    """

    about: str
    includes: Callable[[Question], bool]
    shown: Callable[[Sequence[Verdict]], bool] = lambda _: True


def _of_rules(*rules: str) -> Callable[[Question], bool]:
    return lambda question: question.rule in rules


def _is_of_memory(question: Question) -> bool:
    rule, problem = RULES.get(question.rule), question.problem
    if rule is None or not (rule.memory or rule.size == "long"):
        return False
    return rule.backward or rule.size == "long" or (problem["K"], problem["V"]) != PLAIN_WIDTH


def _is_of_a_process(question: Question) -> bool:
    rule = RULES.get(question.rule)
    return rule is not None and rule.needs_its_process


def _is_past_one_tile(question: Question) -> bool:
    widths = [question.problem.get(width, 0) for width in ("K", "V")]
    return max(widths) > ONE_TILE or question.rule in WIDTHS_RULES


def _is_of_magnitudes(question: Question) -> bool:
    values = [question.problem.get(name) for name in ("value", "state")]
    return (
        "beyond-fp16" in values or question.problem.get("key") == "long" or question.rule == "step"
    )


def _is_of_depth(question: Question) -> bool:
    problem = question.problem
    deep = problem.get("gate") in ("deep-resets", "vanishing") or problem.get("beta") == "tiny"
    return deep or question.rule == "step"


def _is_of_coincidences(question: Question) -> bool:
    if question.property not in ("panel", "gradients"):
        return question.rule in EQUAL_RULES
    return any(
        all(_plain(question.problem.get(n)) == _plain(one.fields.get(n)) for n in one.decided_by)
        for one in COINCIDENT.values()
    )


def _plain(value: Any) -> Any:
    return [*value] if isinstance(value, tuple | list) else value


def _is_of_repeats(question: Question) -> bool:
    rule = RULES.get(question.rule)
    return rule is not None and rule.counted and rule.size in REAL


def _is_of_callers(question: Question) -> bool:
    small = question.detail.get("exponent", 0) <= BELOW_FP16
    scaled = question.property in SCALED_LOSSES and small
    return scaled or question.rule in (*CALLERS_RULES, *TYPES_RULES)


QUESTIONS: Final[Mapping[str, QuestionKind]] = MappingProxyType(
    {
        "combinations": QuestionKind(
            "pairs and triples of properties of a problem",
            lambda question: question.property == "combined",
        ),
        "widths": QuestionKind(
            "keys and values past 128 columns, and widths that no panel has", _is_past_one_tile
        ),
        "magnitudes": QuestionKind(
            "values and states beyond the range of fp16, long keys", _is_of_magnitudes
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
            lambda question: (
                "exponent" in question.detail and question.problem.get("dtype") == "fp16"
            ),
            lambda case: any(OVERFLOWS in verdict.message for verdict in case),
        ),
        "depth": QuestionKind(
            "finite gates down to -1e6, gates and writes next to 0", _is_of_depth
        ),
        "entries": QuestionKind(
            "entry points that activate gates, take sigmoids or normalise themselves",
            lambda question: question.property == "options" or question.rule in ROWS_RULES,
        ),
        "autograd": QuestionKind(
            "calls that a training step or a server makes: recorded or not, with any inputs"
            " frozen, twice backward, from a sum or from some tokens alone, after an evaluation or"
            " a request that begins alike, and those of parameters of the gate",
            _of_rules(
                *AUTOGRAD_RULES,
                *WITHOUT_GRADIENTS,
                "copies-backward-twice",
                "gate-parameters-backward",
            ),
        ),
        "coincidences": QuestionKind(
            "sizes that are equal, also with axes exchanged in memory, few tokens, and lengths of a"
            " pack that follow a rule",
            _is_of_coincidences,
        ),
        "late": QuestionKind(
            "what follows 4,096 tokens that write nothing, and every number of chunks",
            _of_rules(*LATE_RULES),
        ),
        "copies": QuestionKind(
            "more sequences, heads and tokens than a block, a byte or 16 bits hold, one unlike all"
            " others, any groups of heads, heads in reverse, and wide or fewer decode steps",
            _of_rules(*COPIES_RULES, "step", "after-many-step"),
        ),
        "places": QuestionKind(
            "states of the call before, or of zeros, one state of all sequences, one tensor in two"
            " places",
            _of_rules(*PLACES_RULES),
        ),
        "callers": QuestionKind(
            "tensors that are edited and packs that are called before the backward, other losses"
            " and scales, infinite ones among them, lengths and projections as they lie in larger"
            " tensors, calls that differ from many before them",
            _is_of_callers,
        ),
        "ids": QuestionKind(
            "segment ids in any order, and padding in front and between",
            _of_rules("renumbered", "padding-by-ids"),
        ),
    }
)
"""By name. The diagnosis, which has no question of its own, is tested on named faults
(tests/diagnosis)."""
