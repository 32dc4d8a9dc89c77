"""Lines below a decision's table: grades, the run, borderline and inconclusive verdicts."""

from __future__ import annotations

from collections import Counter
from typing import Final

from rich.text import Text

from kdaverify.checks.status import MEANING
from kdaverify.verdicts.decision import Decision
from kdaverify.verdicts.verdict import Verdict

REMARKABLE: Final = "three correct digits fewer (or half of what their operands hold)"
"""What `checks.digits` warns of, in the words of a page."""


def evidence(decision: Decision) -> list[Text]:
    """The lines that have something to say."""
    return [
        *_grades(decision.grades),
        *_run(decision),
        *_line(
            decision.passed_on_retest,
            "borderline failure",
            "passed on re-test at fresh seeds; the record holds the figures",
        ),
        *_accuracy(decision.less_accurate),
        *_line(
            decision.vacuous,
            "verdict",
            "inconclusive, no evidence: a zero, negated or shuffled output would pass too",
        ),
    ]


def _grades(grades: dict[str, str]) -> list[Text]:
    """The meaning of the letters, where one is not A."""
    worse = sorted({*grades.values()} - {"A"})
    if worse:
        return [_reported("grades", "; ".join(f"{letter} {MEANING[letter]}" for letter in worse))]
    return []


def _run(decision: Decision) -> list[Text]:
    """The output with the largest rms error relative to the conforming kernels."""
    paired = decision.paired
    worst = max(paired, key=lambda run: run.limit, default=None)
    # A median hides the cases that fail: beside failures "1 times" would read as a pass.
    if worst is None or (decision.failures and not worst.raised):
        return []
    return [_reported("over the run", f"worst of {len(paired)} outputs: {worst}")]


def _accuracy(found: tuple[Verdict, ...]) -> list[Text]:
    """Passes with many digits fewer than a recurrence: outputs, formats, inputs, the worst."""
    if not found:
        return []
    # The command line starts without torch.
    from kdaverify.operator import operator_of, problem_from_json

    problems = [problem_from_json(verdict.problem) for verdict in found]
    outputs = ", ".join(
        f"{name} ({times})"
        for name, times in sorted(Counter(f"{v.output} in {v.dtype}" for v in found).items())
    )
    accuracy_fields = operator_of(problems[0]).accuracy_fields
    inputs = "; ".join(
        f"{name} {_most([str(getattr(problem, name)) for problem in problems])}"
        for name in accuracy_fields
    )
    said = (
        f"{_passing(len(found))} {REMARKABLE} than a token recurrence, as the contract"
        f" allows: {outputs}; most often {inputs}"
    )
    worst = (
        f"most in {found[0].output}, {found[0].digits_fewer:.1f} fewer, on"
        f" {problems[0].describe()}\n  {found[0].replay}"
    )
    return [_reported("accuracy", f"{said}; {worst}")]


def _passing(count: int) -> str:
    return "1 passing output has" if count == 1 else f"{count} passing outputs have"


def _most(values: list[str]) -> str:
    """The commonest value, and how often it stands there."""
    [(value, times)] = Counter(values).most_common(1)
    return f"{value} ({times})"


def _line(count: int, noun: str, said: str) -> list[Text]:
    plural = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return [_reported(f"{count} {noun}{plural}", said)] if count else []


def _reported(head: str, said: str) -> Text:
    line = Text(f"{head}: ", style="bold")
    line.append(said, style="not bold")
    return line
