"""What a study of mailboxes found, as tables for a terminal and as data for programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table

from kdaverify.budgets.designs.design import KIB, Formats
from kdaverify.checks.mailboxes.bench import Trial
from kdaverify.checks.mailboxes.memory import Drift
from kdaverify.checks.mailboxes.proposals import Judgement
from kdaverify.checks.mailboxes.search import NARROW, Study

# From here on two decimals say nothing.
TENFOLD = 10.0


def singles_table(study: Study) -> Table:
    """Error / tolerance of each mailbox alone in each format."""
    table = Table(
        title=(
            f"{study.part}: one mailbox narrow, the others fp32 ({study.wide.share:.2g}x tolerance)"
        ),
        caption="x: overflows; -t: a scale for every matrix",
    )
    table.add_column("mailbox", no_wrap=True)
    for fmt in NARROW:
        table.add_column(fmt.name.replace("-tile", "-t"), no_wrap=True, justify="right")
    for mailbox in study.mailboxes:
        found = (study.singles.get((mailbox.name, fmt)) for fmt in NARROW)
        table.add_row(mailbox.name, *(_share(trial, study.limit) for trial in found))
    return table


def front_table(study: Study) -> Table:
    """The assignments that no other beats in both bytes and error."""
    table = Table(
        title=f"{study.part}: Pareto front, {len(study.front)} of {study.tried} assignments"
    )
    for name in (
        "KiB",
        *(("us",) if study.part == "forward" else ()),
        "error / tolerance",
        "worst at",
        "formats",
    ):
        table.add_column(
            name, justify="right" if name in ("KiB", "us", "error / tolerance") else "left"
        )
    for trial in study.front:
        table.add_row(*_row(study, trial))
    return table


def _row(study: Study, trial: Trial) -> list[str]:
    time = (
        [f"{study.bench.design.microseconds(trial.formats):.2f}"] if study.part == "forward" else []
    )
    formats = {mailbox.name: trial.formats[mailbox.name] for mailbox in study.mailboxes}
    return [
        f"{study.moved(trial) / KIB:.0f}",
        *time,
        _share(trial, study.limit),
        " ".join(trial.worst),
        described(formats),
    ]


def described(formats: Formats) -> str:
    """Formats by name, those of most mailboxes last and as "the rest"."""
    groups: dict[str, list[str]] = {}
    for name, fmt in formats.items():
        groups.setdefault(fmt.name, []).append(name)
    *few, most = sorted(groups.items(), key=lambda group: len(group[1]))
    return "; ".join(
        [
            *(f"{fmt}: {' '.join(names)}" for fmt, names in few),
            f"{most[0]}: {'all' if not few else 'the rest'}",
        ]
    )


def _share(trial: Trial | None, limit: float) -> str:
    if trial is None:
        return "-"
    if math.isinf(trial.share):
        return "x"
    shown = f"{trial.share:.2f}" if trial.share < TENFOLD else f"{trial.share:.3g}"
    return shown if trial.share <= limit else f"[red]{shown}[/red]"


def answer(study: Study) -> Iterable[str]:
    """The finding in sentences."""
    for regime, tensor in study.refused.items():
        yield (
            f"{regime}: {tensor} overflows whatever the mailboxes hold; the rest is judged without"
            " that regime"
        )
    if not study.ends:
        yield "nothing was tried"
        return
    yield f"as designed: {_sized(study, study.own)}"
    best = study.best
    if best is None:
        yield (
            f"no assignment stays within {study.limit:g}x tolerance; fp32 throughout comes to"
            f" {study.wide.share:.3g}x"
        )
    else:
        yield (
            f"fewest bytes within {study.limit:g}x tolerance: {_sized(study, best)}:"
            f" {' '.join(_row(study, best)[-1:])}"
        )


def _sized(study: Study, trial: Trial) -> str:
    if study.part == "forward":
        time = f", {study.bench.design.microseconds(trial.formats):.2f} us"
    else:
        time = ""
    return trial_line(f"{study.moved(trial) / KIB:.0f} KiB{time}", trial)


def trial_line(name: str, trial: Trial) -> str:
    """One line on one assignment."""
    share = "overflows" if math.isinf(trial.share) else f"{trial.share:.3g}x tolerance"
    return f"{name}: {share} ({' '.join(trial.worst)})"


def drift_line(name: str, found: Drift) -> str:
    """One line on a long memory."""
    verdict = "no drift" if found.within else "drifts"
    return (
        f"{name}: {verdict} (state after {found.tokens[-1]} tokens: error {found.errors[-1]:.2g},"
        f" {math.exp(found.last):.3g} times the contract's, slope {found.slope:.3f}, bias"
        f" {found.bias:.2f})"
    )


def judgements_table(judgements: Sequence[Judgement]) -> Table:
    """The proposals, a line each."""
    table = Table(title="proposals", show_lines=True)
    for name in (
        "",
        "proposes",
        "",
        "KiB saved",
        "o",
        "S_T",
        "gradients",
        "error / tolerance",
        "slope",
        "because",
    ):
        table.add_column(
            name,
            justify=(
                "right"
                if name in ("KiB saved", "o", "S_T", "gradients", "error / tolerance", "slope")
                else "left"
            ),
        )
    for j in judgements:
        factors = [
            f"{j.factors[name]:.2f}" if j.factors and name in j.factors else "-"
            for name in ("o", "S_T", "gradients")
        ]
        share = "-" if j.share is None else f"{j.share:.2f}"
        slope = "-" if j.memory is None else f"{j.memory.slope:.2f}"
        table.add_row(
            j.name,
            j.proposes,
            "yes" if j.yes else "no",
            f"{j.saved:g}",
            *factors,
            share,
            slope,
            j.because,
        )
    return table


def heading(study: Study) -> str:
    """What is searched, and how."""
    bench, design = study.bench, study.bench.design
    formats = design.formats(bench.operands)
    size = (
        f"{design.transfers} transfers of {design.bytes_moved(formats) / KIB:.0f} KiB,"
        f" {design.microseconds(formats):.2f} us a chunk"
    )
    problems = (
        f"{', '.join(bench.regimes)}; T = {bench.tokens}, K = V = {bench.width}, seed {bench.seed}"
    )
    return (
        f"{design.name}: {design.about}. As designed {size}. Tolerances of {bench.contract.name} on"
        f" {problems}"
    )


def show(console: Console, *parts: RenderableType) -> None:
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str), highlight=False)


def as_data(study: Study) -> dict[str, Any]:
    """What is known, for `--json`; null stands for an overflow."""
    best = study.best
    singles = [
        {"mailbox": name, "format": fmt.name, **_trial_data(study, trial)}
        for (name, fmt), trial in study.singles.items()
    ]
    return {
        "part": study.part,
        "limit": study.limit,
        "refused": study.refused,
        "wide": _trial_data(study, study.wide),
        "own": _trial_data(study, study.own),
        "singles": singles,
        "combined": [_trial_data(study, trial) for trial in study.combined],
        "front": [_trial_data(study, trial) for trial in study.front],
        "best": None if best is None else _trial_data(study, best),
    }


def _trial_data(study: Study, trial: Trial) -> dict[str, Any]:
    return {
        "bytes": study.moved(trial),
        "microseconds": (
            study.bench.design.microseconds(trial.formats) if study.part == "forward" else None
        ),
        "share": _finite(trial.share),
        "worst": list(trial.worst),
        "formats": {mailbox.name: trial.formats[mailbox.name].name for mailbox in study.mailboxes},
        "shares": {" ".join(place): _finite(share) for place, share in trial.shares.items()},
    }


def judgement_data(j: Judgement) -> dict[str, Any]:
    factors = (
        None if j.factors is None else {name: _finite(factor) for name, factor in j.factors.items()}
    )
    share = None if j.share is None else _finite(j.share)
    slope = None if j.memory is None else j.memory.slope
    return {
        "name": j.name,
        "proposes": j.proposes,
        "yes": j.yes,
        "because": j.because,
        "saved_kib": j.saved,
        "factors": factors,
        "share": share,
        "slope": slope,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
