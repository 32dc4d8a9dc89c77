"""What a study of splits found, as tables for a terminal and as data for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.markup import escape
from rich.table import Table

from kdaverify.operators.attention.splits.plan import PartialFormat, SplitPlan
from kdaverify.operators.attention.splits.study import PARTIALS, Alone, SplitStudy, SplitTrial

MIB = 2.0**20


def plan_line(plan: SplitPlan, io: str) -> str:
    """The schedule in a sentence."""
    busy = sum(1 for part in plan.schedule.parts if part)
    return (
        f"schedule on {plan.sms} SMs: {len(plan.work)} parts, {busy} with work, balance"
        f" {plan.balance:.2f} (mean over largest work); inputs and outputs in {io}"
    )


def requests_table(apart: Sequence[Alone]) -> Table:
    """Every request in its batch, and alone."""
    table = _table(
        "requests in the batch and alone",
        *("requests", "keys", "splits", "alone", "differ", "by"),
        caption="differ: elements of o; by: largest, over rms of o",
    )
    for one in apart:
        differ = (f"{one.changed:.1%}", f"{one.largest:.1e}") if one.changed else ("-", "-")
        table.add_row(*map(str, (len(one.requests), one.keys, one.splits, one.alone)), *differ)
    return table


def partials_table(plan: SplitPlan, study: SplitStudy, trials: Sequence[SplitTrial]) -> Table:
    """Bytes and the largest error of every format of partials."""
    table = _table(
        f"partials under {escape(study.contract.name)}",
        *("format", "MiB", "of cache", "worst", "statistic", "regime", "splits"),
        caption="MiB: written and read again; worst: error / tolerance",
    )
    cache = plan.cache_bytes(study.contract.storage("o"))
    for one in PARTIALS:
        moved = plan.partial_bytes(one)
        worst = worst_of(trial for trial in trials if trial.partial == one.name)
        place = (worst.statistic, worst.regime, str(worst.splits)) if worst else ("-",) * 3
        share = f"{moved / cache:.0%}" if cache else "-"
        table.add_row(one.name, f"{moved / MIB:.2f}", share, _cell(worst), *place)
    return table


def worst_of(trials: Iterable[SplitTrial]) -> SplitTrial | None:
    """The one with the largest share of its tolerance."""
    return max(trials, key=lambda trial: trial.share, default=None)


def shares_table(
    trials: Sequence[SplitTrial], field: str, title: str, caption: str | None = None
) -> Table:
    """The largest share of the tolerance, by a field of trials and the format of partials."""
    columns = (field, *(one.name for one in PARTIALS))
    table = _table(f"error / tolerance by {title}", *columns, caption=caption)
    for key in dict.fromkeys(getattr(trial, field) for trial in trials):
        same = [trial for trial in trials if getattr(trial, field) == key]
        cells = (worst_of(x for x in same if x.partial == one.name) for one in PARTIALS)
        table.add_row(str(key), *map(_cell, cells))
    return table


def _table(title: str, *columns: str, caption: str | None = None) -> Table:
    table = Table(title=title, caption=caption)
    for n, name in enumerate(columns):
        table.add_column(name, justify="right" if n else "left")
    return table


def answers(study: SplitStudy, trials: Sequence[SplitTrial]) -> Iterable[str]:
    """The finding in sentences."""
    orders: dict[tuple[str, int, str], list[SplitTrial]] = {}
    for trial in trials:
        orders.setdefault((trial.regime, trial.splits, trial.partial), []).append(trial)
    for one in admitted(trials):
        groups = (group for (*_, name), group in orders.items() if name == one.name)
        least, most = max(map(_extremes, groups), key=lambda pair: pair[1].share - pair[0].share)
        yield (
            f"order of the merge, partials in {one.name}: largest change {least.share:.3f} to"
            f" {most.share:.3f} ({least.merge} to {most.merge}, {most.regime}, {most.splits}"
            " splits)"
        )
    names = "; ".join(one.name for one in admitted(trials)) or "none"
    yield f"{escape(study.contract.name)} admits partials in: {names}"


def _extremes(trials: Sequence[SplitTrial]) -> tuple[SplitTrial, SplitTrial]:
    shares = sorted(trials, key=lambda trial: trial.share)
    return shares[0], shares[-1]


def _cell(trial: SplitTrial | None) -> str:
    if trial is None:
        return "-"
    return f"{trial.share:.2f}" if trial.share <= 1 else f"[red]{trial.share:.3g}[/red]"


def admitted(trials: Iterable[SplitTrial]) -> list[PartialFormat]:
    """Formats of partials within the tolerance in every trial."""
    over = {trial.partial for trial in trials if trial.share > 1}
    return [one for one in PARTIALS if one.name not in over]


def as_data(
    plan: SplitPlan, study: SplitStudy, trials: Sequence[SplitTrial], apart: Sequence[Alone]
) -> dict[str, Any]:
    """What is known, for `--json`."""
    schedule = {
        "sms": plan.sms,
        "num_splits": plan.schedule.num_splits,
        "work": plan.work,
        "balance": plan.balance,
        "partial_bytes": {one.name: plan.partial_bytes(one) for one in PARTIALS},
        "cache_bytes": plan.cache_bytes(study.contract.storage("o")),
    }
    return {
        "contract": study.contract.name,
        "schedule": schedule,
        "alone": [asdict(one) for one in apart],
        "admitted": [one.name for one in admitted(study.declared(trials))],
        "trials": [asdict(trial) for trial in trials],
    }
