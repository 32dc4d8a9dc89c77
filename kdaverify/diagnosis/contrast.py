"""What a failure depends on, by experiment: cases that differ in one thing, within a time.

Over the cases of a suite many things change at once, and what nearly all of them have (a last,
partial chunk) separates nothing. One factor at a time separates it: passes at T = 64, fails at
T = 65. It does not find interactions (Box, Hunter and Hunter, Statistics for Experimenters, 2005):
those are left to `common_factor`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from kdaverify.adapters.base import Adapter
from kdaverify.checks.borderline import CLEAR
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.property_table import plain_call
from kdaverify.diagnosis.common_factor import negated
from kdaverify.diagnosis.question import PropertyCase, shrinks
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
MOST_APART: Final = 2
"""Outputs, or groups of them, that are reported of one case."""
MOST_AXES: Final = 3
"""Axes that are reported where some have no rule, in the operator's order: structure before values.
All with a rule are: of a port wrong for K > 64 the width was the fifth axis, behind lengths."""
CONFIRMED: Final = 1 / 4
"""Of the time: to see whether what passes beside a rule passes with other numbers too."""
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
        wrong: by output, whether it fails; without those that were not decided, and empty where the
            kernel does not take the case.
    """

    change: Mapping[str, Any]
    problem: Any
    wrong: Mapping[str, bool]

    def fails(self, outputs: Sequence[str]) -> bool | None:
        """Whether any of these outputs fails; None where none was decided."""
        own = [self.wrong[name] for name in outputs if name in self.wrong]
        return any(own) if own else None


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
        return _call(self.case)

    @property
    def rules(self) -> tuple[str, ...]:
        """Sentences that only failing cases fulfil."""
        return tuple(found.rule for found in self.contrasts if found.rule)

    def holds(self, problem: Any) -> bool:
        """Whether all rules are true of a problem."""
        own = _sentences(problem)
        return bool(self.rules) and all(own.get(rule, False) for rule in self.rules)

    def explains(self, case: PropertyCase) -> bool:
        """Whether all rules are true of a case of the same call.

        Of another call they may be true by chance: the cases of a decode entry point with a bug of
        its own were taken for those of a bug in the forward of all sequences.
        """
        return _call(case) == self.call and self.holds(case.problem)

    def __str__(self) -> str:
        what, several = " and ".join(self.outputs), len(self.outputs) > 1
        head, verbs = (
            (f"{DIFFERS} ({what}):", ("differ", "agree"))
            if self.varies
            else (f"{self.call} {what}", ("fail", "pass") if several else ("fails", "passes"))
        )
        most = max(MOST_AXES, len(self.rules))
        shown = "; ".join(found.reported(verbs) for found in self.contrasts[:most])
        return f"{head} {f'{verbs[0]} ' if self.contrasts[0].rule else ''}{shown}"


def experiments(
    cases: Sequence[PropertyCase], adapter: Adapter, *, seconds: float
) -> list[Experiment]:
    """From a failing case, and from those that it leaves unexplained, what the failure depends on.

    Args:
        cases: failing ones; the first are preferred.
        seconds: in all; what is begun is ended.
    """
    until, found, made = time.monotonic() + seconds, list[Experiment](), list[Experiment]()
    left = [case for case in cases if _small(case)]
    while left and len(found) < MOST and time.monotonic() < until:
        case = min(left, key=partial(_known_of, made))
        left.remove(case)
        share = (until - time.monotonic()) / (2 if len(found) < MOST - 1 else 1)
        for one in experiment(case, adapter, until=time.monotonic() + share):
            left = [other for other in left if not one.explains(other)]
            if not _repeats(one, made):
                found.append(one)
            made.append(one)
    return found


def _known_of(made: Sequence[Experiment], case: PropertyCase) -> int:
    """0 where nothing is known of a case; 1 where rules of another call are true of it; 2 where its
    call was experimented on, and nothing says that this failure is another.
    """
    same = [one for one in made if one.call == _call(case)]
    if any(one.holds(case.problem) for one in made):
        return 2 if same else 1
    return 2 if any(not one.rules for one in same) else 0


def _repeats(one: Experiment, made: Iterable[Experiment]) -> bool:
    """Whether another call depends on the same: a second line would say nothing new."""
    return bool(one.rules) and any({*one.rules} <= {*other.rules} for other in made)


def _call(case: PropertyCase) -> str:
    return plain_call(case.property, case.detail) or case.property


def experiment(case: PropertyCase, adapter: Adapter, *, until: float) -> list[Experiment]:
    """One factor at a time from a failing case: what its outputs depend on, or each of them where
    together they depend on nothing; [] where it does not fail again.
    """
    trial = _trial(case, adapter)
    if trial is None:
        return []
    axes = operator_of(case.problem).contrasts(case.problem, case.detail)
    results = [list[Run]() for _ in axes]
    left = [[*axis.levels] for axis in axes]
    ended = until - (until - time.monotonic()) * CONFIRMED
    while any(left) and time.monotonic() < ended:
        number = min(
            (n for n, own in enumerate(left) if own),
            key=lambda n: _turn(results[n], trial.outputs),
        )
        results[number].append(_run(trial, case, left[number].pop(0)))
    runs = _confirmed(trial, case, [*zip(axes, results, strict=True)], until)
    whole = _found(trial, case, runs, trial.outputs)
    if whole.rules or trial.varies:
        return [whole] if whole.contrasts else []
    # With one bug in o and another in the state no change of one thing makes both right.
    apart = dict[tuple[str, ...], list[str]]()
    for name in trial.outputs:
        apart.setdefault(_found(trial, case, runs, (name,)).rules, []).append(name)
    several = [_found(trial, case, runs, names) for rules, names in apart.items() if rules]
    return several[:MOST_APART] or ([whole] if whole.contrasts else [])


def _confirmed(
    trial: _Trial,
    case: PropertyCase,
    runs: Sequence[tuple[ContrastAxis, list[Run]]],
    until: float,
) -> list[tuple[ContrastAxis, list[Run]]]:
    """The runs, those that pass beside a rule confirmed with another seed.

    Of a fault that few elements show, one head has none by chance: of a port that was wrong at any
    number of heads it was said that it is wrong only where there are several.
    """
    found = list[tuple[ContrastAxis, list[Run]]]()
    for axis, own in runs:
        ruled = _contrast(axis, case.problem, own, trial.outputs, ruled=not trial.varies).rule
        again = [_again(trial, case, run) if ruled and time.monotonic() < until else run
                 for run in own]  # fmt: skip
        found.append((axis, again))
    return found


def _again(trial: _Trial, case: PropertyCase, run: Run) -> Run:
    """A run that passes, as it is with another seed where that one fails."""
    if run.fails(trial.outputs) is not False:
        return run
    seed = {"seed": case.problem.seed + 1}
    other = _run(trial, case, {**run.change, **seed})
    return Run(run.change, run.problem, other.wrong) if other.fails(trial.outputs) else run


def _found(
    trial: _Trial,
    case: PropertyCase,
    runs: Sequence[tuple[ContrastAxis, Sequence[Run]]],
    outputs: Sequence[str],
) -> Experiment:
    """What it depends on whether any of these outputs fails."""
    contrasts = [
        _contrast(
            axis,
            case.problem,
            own,
            outputs,
            ruled=not (trial.varies and _of_values(axis, case)),
        )
        for axis, own in runs
    ]
    found = sorted((one for one in contrasts if one.passes), key=lambda one: not one.rule)
    # Two axes may be one sentence: T and W are, where sequences are shorter than W.
    once = {one.rule or str(number): one for number, one in reversed([*enumerate(found)])}
    kept = tuple(one for one in found if one in once.values())
    return Experiment(case, tuple(outputs), trial.varies, kept)


def _of_values(axis: ContrastAxis, case: PropertyCase) -> bool:
    """Whether an axis changes nothing but regimes of values.

    They decide how visible a race is, not whether there is one: of one it was said that results
    differ only where keys are random, and only where gates are zero. Of a race they are levels,
    without a rule.
    """
    accuracy_fields = operator_of(case.problem).accuracy_fields
    return all(name in accuracy_fields for change in axis.levels for name in change)


def _turn(own: Sequence[Run], outputs: Sequence[str]) -> tuple[int, int]:
    """Each axis has two levels first; then those that matter to any output."""
    matters = any(run.fails((name,)) is False for run in own for name in outputs)
    return (0 if len(own) < FIRST else 1 if matters else 2), len(own)


def _run(trial: _Trial, case: PropertyCase, change: Mapping[str, Any]) -> Run:
    changed = _changed(case, change)
    if changed is None:
        return Run(change, None, {})
    return Run(change, changed.problem, trial.wrong(changed))


def _changed(case: PropertyCase, change: Mapping[str, Any]) -> PropertyCase | None:
    try:
        problem = case.problem.replace(**change)
    except ValueError:
        return None
    changed = PropertyCase(case.property, problem, case.detail)
    return changed if _small(changed) else None


def _small(case: PropertyCase) -> bool:
    return shrinks(case) and operator_of(case.problem).cost(case.problem) <= LARGEST


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

    def wrong(self, case: PropertyCase) -> dict[str, bool]:
        """Of the outputs that were decided, which fail; {} where the kernel does not take it."""
        if self.varies:
            differ = differing(case, self.adapter)
            return dict.fromkeys(self.outputs, bool(differ))
        found = _outcomes(case, self.adapter)
        own = {name: found[name].status for name in self.outputs if name in found}
        if not all(status.judged for status in own.values()):
            return {}
        return {name: status.rejects for name, status in own.items()}


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


def _contrast(
    axis: ContrastAxis, base: Any, own: Sequence[Run], outputs: Sequence[str], *, ruled: bool
) -> Contrast:
    """The first sentence that is true of exactly those that fail, and the levels."""
    decided = [run for run in own if run.fails(outputs) is not None]
    changed = {name: getattr(base, name) for run in decided for name in run.change}
    every = [Run(changed, base, dict.fromkeys(outputs, True)), *decided]
    truths = [_sentences(run.problem, axis.about) for run in every]
    wanted = [run.fails(outputs) for run in every]
    enough = ruled and len(decided) >= min(ENOUGH, len(axis.levels))
    exact = (said for said in truths[0] if [one.get(said, False) for one in truths] == wanted)
    rule = next(exact, "") if enough else ""
    fails, passes = (
        tuple(_level(run.change) for run in every if run.fails(outputs) is which)
        for which in (True, False)
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
