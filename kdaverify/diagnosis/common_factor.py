"""What a run's failures have in common: the shortest separating sentence about a case.

A subgroup search over conjunctions of at most two traits, as exact as it is small: a run has some
thousand cases and a hundred traits. Subgroups are ranked by Youden's J, the share of the failing
cases inside less that of the passing ones (Youden, Cancer 3, 1950).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any, Final

from kdaverify.canonical import ProblemError
from kdaverify.checks.property_table import named
from kdaverify.checks.status import Status
from kdaverify.operator import OPERATORS, operator_named, operator_of, problem_from_json
from kdaverify.verdicts.verdict import Verdict

LEAST: Final = 4
"""Cases inside and outside of a subgroup, at least: fewer are separated by chance."""
LEAST_J: Final = 0.4
"""Faults of tiles, of shared heads and of a given state, and two of FLA's, were separated with 0.79
and more; half of it is still news."""
PAIR: Final = 0.1
"""What a second trait has to add to J: it is one more thing to look for."""
CHANCE: Final = 30.0
"""Least chi-squared (Pearson, one degree of freedom): p = 4e-8, below 0.001 for each of the some
ten thousand sentences that are tried."""
MOST: Final = 2
"""Sentences: what they leave unexplained is too little to describe."""
EVERYWHERE: Final = 0.95
"""Share of the cases that fail where it is news that nothing separates them: tiles that are never
written failed in 164 of 166, and nothing was said of them."""
FAILS: Final = "fails"
OUTCOMES: Final = {
    Status.NONFINITE: "gives NaN or infinity",
    Status.FAIL: "gives wrong numbers",
    Status.ERROR: "raises",
}
"""Ways to fail that are looked at one by one where together they have nothing in common: of a race
and decays that overflow, only the overflow depends on the inputs."""


@dataclass(frozen=True)
class Subgroup:
    """Cases that a sentence is true of.

    Args:
        said: the sentence.
        failing, cases: how many of them fail, of how many.
        failing_elsewhere, elsewhere: of the others; both 0 where it is said of every case.
        outputs: what is wrong inside, the most frequent first.
        right: outputs that are compared and never wrong.
        fails: the way to fail that the sentence is about.
        alone: whether the cases are those of its one output alone.
    """

    said: str
    failing: int
    cases: int
    failing_elsewhere: int
    elsewhere: int
    outputs: tuple[str, ...]
    right: tuple[str, ...] = ()
    fails: str = FAILS
    alone: bool = False

    def __str__(self) -> str:
        """The sentence, and the counts that it rests on."""
        if not self.elsewhere:
            return self._of_every_case
        inside = f"{self.failing:,} of {self.cases:,} cases"
        outside = f"{self.failing_elsewhere:,} of {self.elsewhere:,} elsewhere"
        where = "" if self.alone else f" (in {', '.join(self.outputs)})"
        only = "only " if not self.failing_elsewhere else ""
        return f"{only}where {self.said}: {inside}, {outside}{where}"

    @property
    def _of_every_case(self) -> str:
        right = f"; never in {', '.join(self.right)}" if self.right else ""
        return (
            f"{self.said}: {self.failing:,} of {self.cases:,} cases"
            f" (in {', '.join(self.outputs)}{right})"
        )


def in_words(found: Iterable[Subgroup]) -> list[str]:
    """What is said of them, the first first."""
    return [
        f"{one.outputs[0]} {one.fails} {one}"
        if one.alone
        else f"{'apart from these it ' if number else ''}{one.fails} {one}"
        for number, one in enumerate(found)
    ]


@dataclass(frozen=True)
class _JudgedCase:
    problem: str
    backward: bool
    dtype: str
    failing: tuple[str, ...]
    passing: tuple[str, ...]
    statuses: frozenset[Status]


def common_factors(verdicts: Iterable[Verdict]) -> list[Subgroup]:
    """Sentences that separate failing from passing cases, each of those that the ones before leave
    unexplained; that it fails everywhere, where it does; [] where nothing separates them.

    Only cases count whose outputs or gradients of whole calls are compared with exact values.

    Args:
        verdicts: of one implementation.
    """
    cases = _cases(verdicts)
    if all(case.backward for case in cases if case.failing):
        # That gradients fail is in their names: what separates those that do is news.
        cases = [case for case in cases if case.backward]
    run = _Comparisons(cases, _sentences(cases), _mask(case.failing for case in cases))
    found, left = run.separated(run.failing)
    if not found and run.failing.bit_count() >= max(EVERYWHERE * len(cases), LEAST):
        return [run.everywhere]
    for status, fails in OUTCOMES.items():
        own = left & _mask(status in case.statuses for case in cases)
        found += run.separated(own, fails)[0]
    return run.with_outputs(found[:MOST])


@dataclass(frozen=True)
class _Comparisons:
    """The cases of a run, and which sentences are true of which."""

    cases: Sequence[_JudgedCase]
    sentences: Mapping[str, int]
    failing: int

    def separated(self, left: int, fails: str = FAILS) -> tuple[list[Subgroup], int]:
        """Sentences that separate some failing cases from the passing ones, and what they leave."""
        found = list[Subgroup]()
        while len(found) < MOST and left.bit_count() >= LEAST:
            # What is not looked at is neither failing nor passing.
            counted = _mask(True for _ in self.cases) & ~(self.failing & ~left)
            best = _best(self.sentences, left, counted)
            if best is None:
                break
            outputs = self._wrong(best[1] & left)
            found.append(self._subgroup(best, left, counted, outputs=outputs, fails=fails))
            left &= ~best[1]
        return found, left

    def with_outputs(self, found: Sequence[Subgroup]) -> list[Subgroup]:
        """These, and a sentence for each output whose failures none of them separates: beside a bug
        of packs, states that were rounded wherever one was given had no line.

        Outputs of the forward alone: gradients of a wrong one are wrong in their own ways, where
        beta = uniform or keys are random.
        """
        own, seen = [*found], set[int]()
        forward = [case for case in self.cases if not case.backward]
        for output in dict.fromkeys(name for case in forward for name in case.failing):
            wrong = _mask(output in case.failing for case in self.cases)
            counted = wrong | _mask(output in case.passing for case in self.cases)
            named = {one.said: self._members(one.said) & counted for one in own}
            if wrong in seen or any(_scored(named.items(), wrong, counted)):
                continue
            seen.add(wrong)
            best = _best(self.sentences, wrong, counted)
            if best is not None and len(own) < len(found) + MOST:
                own.append(self._subgroup(best, wrong, counted, outputs=(output,), alone=True))
        return own

    def _members(self, said: str) -> int:
        """The cases that a sentence, or a pair of them, is true of."""
        every = _mask(True for _ in self.cases)
        for part in (said,) if said in self.sentences else said.split(" and "):
            every &= self.sentences.get(part, 0)
        return every

    def _subgroup(self, best: tuple[str, int], wrong: int, counted: int, **fields: Any) -> Subgroup:
        said, members = best
        inside, outside = members & counted, counted & ~members
        return Subgroup(
            said,
            failing=(inside & wrong).bit_count(),
            cases=inside.bit_count(),
            failing_elsewhere=(outside & wrong).bit_count(),
            elsewhere=outside.bit_count(),
            **fields,
        )

    @property
    def everywhere(self) -> Subgroup:
        """What is wrong in every case, or all but every one."""
        wrong = self._wrong(self.failing)
        right = dict.fromkeys(name for case in self.cases for name in case.passing)
        return Subgroup(
            "everywhere",
            self.failing.bit_count(),
            len(self.cases),
            failing_elsewhere=0,
            elsewhere=0,
            outputs=wrong,
            right=tuple(name for name in right if name not in wrong),
        )

    def _wrong(self, members: int) -> tuple[str, ...]:
        """The outputs that fail, the most frequent first."""
        counts = Counter(
            output
            for number, case in enumerate(self.cases)
            if members >> number & 1
            for output in case.failing
        )
        return tuple(name for name, _ in counts.most_common())


def _cases(verdicts: Iterable[Verdict]) -> list[_JudgedCase]:
    paired = {*named(lambda found: found.paired)}
    judged = [
        row
        for row in verdicts
        if row.problem and row.status.judged and row.property in paired and not row.left_open()
    ]
    # A record may be of an operator that came along with its port, and is not known here.
    judged = [row for row in judged if row.op in OPERATORS]
    grouped = dict[tuple[str, str, str, str], list[Verdict]]()
    for row in judged:
        grouped.setdefault(row.case_key(), []).append(row)
    return [
        _JudgedCase(
            rows[0].problem,
            any(row.output in operator_named(row.op).signature.gradients for row in rows),
            rows[0].dtype,
            failing=tuple(row.output for row in rows if row.status.rejects),
            passing=tuple(row.output for row in rows if not row.status.rejects),
            statuses=frozenset(row.status for row in rows if row.status.rejects),
        )
        for rows in grouped.values()
    ]


def _mask(flags: Iterable[object]) -> int:
    return sum(1 << number for number, flag in enumerate(flags) if flag)


def _sentences(cases: Sequence[_JudgedCase]) -> dict[str, int]:
    """Every trait and its negation by its cases; of equal sets of cases the first."""
    found = [_traits(case.problem) for case in cases]
    columns = {
        name: [own.get(name, False) for own in found]
        for name in dict.fromkeys(name for own in found for name in own)
    }
    columns |= {
        f"dtype = {dtype}": [case.dtype == dtype for case in cases]
        for dtype in dict.fromkeys(case.dtype for case in cases)
    }
    columns["outputs = gradients"] = [case.backward for case in cases]
    every, sentences = _mask(True for _ in cases), dict[int, str]()
    masks = {name: _mask(flags) for name, flags in columns.items()}
    for name, mask in (
        *masks.items(),
        *((negated(name), every & ~mask) for name, mask in masks.items()),
    ):
        sentences.setdefault(mask, name)
    return {name: mask for mask, name in sentences.items() if 0 < mask < every}


def negated(name: str) -> str:
    """The sentence that is true where this one is not."""
    for sign, other in (
        (" > ", " <= "),
        (" >= ", " < "),
        (" != 0", " == 0"),
        (" != ", " == "),
        (" == ", " != "),
        (" = ", " other than "),
    ):
        if sign in name:
            return name.replace(sign, other)
    return f"not {name}"


@lru_cache(maxsize=4096)
def _traits(problem: str) -> Mapping[str, bool]:
    with suppress(ProblemError):  # a record of another version
        made = problem_from_json(problem)
        return operator_of(made).traits(made)
    return {}


def _best(sentences: Mapping[str, int], failing: int, counted: int) -> tuple[str, int] | None:
    """The sentence that separates best; one of a pair only where that is far better."""
    single = max(_scored(sentences.items(), failing, counted), default=None)
    common = [
        (name, mask)
        for name, mask in sentences.items()
        if (mask & failing).bit_count() >= LEAST_J * failing.bit_count()
    ]
    pairs = ((f"{a} and {b}", x & y) for (a, x), (b, y) in combinations(common, 2))
    pair = max(_scored(pairs, failing, counted), default=None)
    chosen = pair if pair is not None and (single is None or pair[0] > single[0] + PAIR) else single
    return None if chosen is None else (chosen[2], chosen[3])


def _scored(
    sentences: Iterable[tuple[str, int]], failing: int, counted: int
) -> Iterator[tuple[float, int, str, int]]:
    """Sentences that separate at all, with their J; shorter ones first among equals."""
    fails, passes = failing.bit_count(), (counted & ~failing).bit_count()
    for said, mask in sentences:
        explained, inside = (mask & failing).bit_count(), (mask & counted).bit_count()
        outside = fails + passes - inside
        if explained < LEAST or outside < LEAST or not passes:
            continue
        J = explained / fails - (inside - explained) / passes
        # Of a table of two by two, chi-squared = n phi^2 with phi = J sqrt(fails passes / (inside
        # outside)).
        if (
            J >= LEAST_J
            and (fails + passes) * J * J * fails * passes / (inside * outside) >= CHANCE
        ):
            yield J, -len(said), said, mask
