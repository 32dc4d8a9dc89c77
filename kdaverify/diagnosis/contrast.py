"""What a failure depends on, by experiment: cases that differ in one thing, within a time.

Over the cases of a suite many things change at once, and what nearly all of them have (a last,
partial chunk) separates nothing. One factor at a time separates it: passes at T = 64, fails at
T = 65. It does not find interactions (Box, Hunter and Hunter, Statistics for Experimenters, 2005):
those are left to `common_factor`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kdaverify.adapters.base import Adapter
from kdaverify.checks.near_miss import CLEAR
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.property_table import PROPERTIES, plain_call
from kdaverify.diagnosis.common_factor import negated
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.diagnosis.races import differing
from kdaverify.diagnosis.words import DIFFERS
from kdaverify.operator import operator_of
from kdaverify.problem_operator import ContrastAxis

LARGEST: Final = 0.5
"""Largest `cost` of a case that is run: there are some thirty."""
MOST: Final = 3
"""Failing cases that are experimented on; each of those after the first is one that what was found
so far leaves unexplained."""
FIRST: Final = 2
"""Levels of every axis that are run before more of those that matter."""
ENOUGH: Final = 3
"""Levels beside the failing one, from which a rule is read, where an axis has so many: two lengths
are separated by any of ten sentences."""
MOST_AXES: Final = 3
"""Axes that are reported, in the operator's order: structure before values."""
MOST_LEVELS: Final = 4
MOST_LENGTHS: Final = 6


@dataclass(frozen=True)
class Contrast:
    """One axis along which a failing case passes.

    Args:
        rule: a sentence about a problem that only failing ones fulfil; "" where none is.
        fails, passes: the levels, in words.
    """

    rule: str
    fails: tuple[str, ...]
    passes: tuple[str, ...]

    def reported(self, verbs: tuple[str, str]) -> str:
        """In words.

        Args:
            verbs: for a level that fails and for one that passes.
        """
        levels = ", ".join(map(_listed, verbs, (self.fails, self.passes)))
        return f"only where {self.rule} ({levels})" if self.rule else levels


@dataclass(frozen=True)
class Run:
    """A case with one change.

    Args:
        problem: None where there is none.
        fails: None where the kernel does not take it, or nothing was decided.
    """

    change: Mapping[str, Any]
    problem: Any
    fails: bool | None


@dataclass(frozen=True)
class Experiment:
    """What was found from one failing case.

    Args:
        case: it.
        outputs: what failed.
        varies: whether equal calls differ, and this is what was looked for.
        contrasts: the axes that matter, those that separate by a rule first.
    """

    case: PropertyCase
    outputs: tuple[str, ...]
    varies: bool
    contrasts: tuple[Contrast, ...]

    @property
    def call(self) -> str:
        """The plain call that the case makes, else its suite."""
        return plain_call(self.case.property, self.case.detail) or self.case.property

    def explains(self, problem: Any) -> bool:
        """Whether all rules are true of a problem."""
        own = _sentences(problem)
        rules = [found.rule for found in self.contrasts if found.rule]
        return bool(rules) and all(own.get(rule, False) for rule in rules)

    def __str__(self) -> str:
        what, several = " and ".join(self.outputs), len(self.outputs) > 1
        head, verbs = (
            (f"{DIFFERS} ({what}):", ("differ", "agree"))
            if self.varies
            else (f"{self.call} {what}", ("fail", "pass") if several else ("fails", "passes"))
        )
        shown = "; ".join(found.reported(verbs) for found in self.contrasts[:MOST_AXES])
        return f"{head} {f'{verbs[0]} ' if self.contrasts[0].rule else ''}{shown}"


def experiments(
    cases: Sequence[PropertyCase], adapter: Adapter, *, seconds: float
) -> list[Experiment]:
    """From a failing case, and from those that it leaves unexplained, what the failure depends on.

    Args:
        cases: failing ones; the first are preferred.
        seconds: in all; what is begun is ended.
    """
    until, found = time.monotonic() + seconds, list[Experiment]()
    left = [case for case in cases if _small(case)]
    while left and len(found) < MOST and time.monotonic() < until:
        case = left.pop(0)
        share = (until - time.monotonic()) / (2 if len(found) < MOST - 1 else 1)
        one = experiment(case, adapter, until=time.monotonic() + share)
        if one is not None and one.contrasts:
            found.append(one)
            left = [other for other in left if not one.explains(other.problem)]
    return found


def experiment(case: PropertyCase, adapter: Adapter, *, until: float) -> Experiment | None:
    """One factor at a time from a failing case; None where it does not fail again."""
    trial = _trial(case, adapter)
    if trial is None:
        return None
    axes = operator_of(case.problem).contrasts(case.problem, case.detail)
    results = [list[Run]() for _ in axes]
    left = [[*axis.levels] for axis in axes]
    while any(left) and time.monotonic() < until:
        number = min((n for n, own in enumerate(left) if own), key=lambda n: _turn(results[n]))
        results[number].append(_run(trial, case, left[number].pop(0)))
    contrasts = [
        _contrast(axis, case.problem, own, ruled=not (trial.varies and _of_values(axis, case)))
        for axis, own in zip(axes, results, strict=True)
    ]
    found = sorted((one for one in contrasts if one.passes), key=lambda one: not one.rule)
    # Two axes may be one sentence: T and W are, where sequences are shorter than W.
    once = {one.rule or str(number): one for number, one in reversed([*enumerate(found)])}
    return Experiment(
        case, trial.outputs, trial.varies, tuple(one for one in found if one in once.values())
    )


def _of_values(axis: ContrastAxis, case: PropertyCase) -> bool:
    """Whether an axis changes nothing but regimes of values.

    They decide how visible a race is, not whether there is one: of one it was said that results
    differ only where keys are random, and only where gates are zero. Of a race they are levels,
    without a rule.
    """
    accuracy_fields = operator_of(case.problem).accuracy_fields
    return all(name in accuracy_fields for change in axis.levels for name in change)


def _turn(own: Sequence[Run]) -> tuple[int, int]:
    """Each axis has two levels first; then those that matter."""
    matters = any(run.fails is False for run in own)
    return (0 if len(own) < FIRST else 1 if matters else 2), len(own)


def _run(trial: _Trial, case: PropertyCase, change: Mapping[str, Any]) -> Run:
    changed = _changed(case, change)
    if changed is None:
        return Run(change, None, None)
    return Run(change, changed.problem, trial.fails(changed))


def _changed(case: PropertyCase, change: Mapping[str, Any]) -> PropertyCase | None:
    try:
        problem = case.problem.replace(**change)
    except ValueError:
        return None
    changed = PropertyCase(case.property, problem, case.detail)
    return changed if _small(changed) else None


def _small(case: PropertyCase) -> bool:
    own = PROPERTIES[case.property]
    return own.shrinks and operator_of(case.problem).cost(case.problem) <= LARGEST


@dataclass(frozen=True)
class _Trial:
    """Whether a case fails in the way that the first one did.

    Args:
        outputs: that fail.
        varies: whether equal calls differ: then that is looked for, not their error.
    """

    adapter: Adapter
    outputs: tuple[str, ...]
    varies: bool

    def fails(self, case: PropertyCase) -> bool | None:
        """None where the kernel does not take it, or nothing was decided."""
        if self.varies:
            return bool(differing(case, self.adapter))
        found = _outcomes(case, self.adapter)
        own = [found[name].status for name in self.outputs if name in found]
        if not own or not all(status.judged for status in own):
            return None
        return any(status.rejects for status in own)


def _trial(case: PropertyCase, adapter: Adapter) -> _Trial | None:
    found = {name: one for name, one in _outcomes(case, adapter).items() if one.status.rejects}
    if varying := differing(case, adapter):
        return _Trial(adapter, varying, varies=True)
    clear = tuple(name for name, one in found.items() if one.ratio is None or one.ratio >= CLEAR)
    return _Trial(adapter, clear, varies=False) if clear else None


def _outcomes(case: PropertyCase, adapter: Adapter) -> dict[str, Outcome]:
    try:
        found = check(case.property, adapter, case.problem, case.detail)
    except ValueError:  # the property is not tested on such a problem
        return {}
    return {outcome.output: outcome for outcome in found}


def _contrast(axis: ContrastAxis, base: Any, own: Sequence[Run], *, ruled: bool) -> Contrast:
    """The first sentence that is true of exactly those that fail, and the levels."""
    decided = [run for run in own if run.fails is not None]
    changed = {name: getattr(base, name) for run in decided for name in run.change}
    every = [Run(changed, base, fails=True), *decided]
    truths = [_sentences(run.problem, axis.about) for run in every]
    wanted = [run.fails for run in every]
    enough = ruled and len(decided) >= min(ENOUGH, len(axis.levels))
    exact = (said for said in truths[0] if [one.get(said, False) for one in truths] == wanted)
    rule = next(exact, "") if enough else ""
    fails, passes = (
        tuple(_level(run.change) for run in every if run.fails is which) for which in (True, False)
    )
    return Contrast(rule if passes else "", fails, passes)


def _sentences(problem: Any, about: tuple[str, ...] = ("",)) -> dict[str, bool]:
    """The traits of a problem whose names begin so, each with its negation."""
    own = operator_of(problem).traits(problem)
    return {
        said: true
        for name, trait in own.items()
        if name.startswith(about)
        for said, true in ((name, trait), (negated(name), not trait))
    }


def _level(change: Mapping[str, Any]) -> str:
    lengths = change.get("lengths", 0)
    if lengths is None:
        return f"one sequence of {change['T']}"
    if lengths:
        padding = change["T"] - sum(lengths)
        behind = f" and {padding} past the last offset" if padding else ""
        more = ", ..." if len(lengths) > MOST_LENGTHS else ""
        return f"a pack of {', '.join(map(str, lengths[:MOST_LENGTHS]))}{more}{behind}"
    return ", ".join(f"{name} = {value}" for name, value in change.items() if name != "lengths")


def _listed(verb: str, levels: Sequence[str]) -> str:
    shown, more = levels[:MOST_LEVELS], len(levels) - MOST_LEVELS
    heads = {level.partition(" = ")[0] for level in shown}
    if len(heads) == 1 and all(level.count(" = ") == 1 for level in shown):
        said = f"{heads.pop()} = {', '.join(level.partition(' = ')[2] for level in shown)}"
    else:
        said = "; ".join(shown) if any(", " in level for level in shown) else ", ".join(shown)
    return f"{verb} at {said}{', ...' if more > 0 else ''}"
