"""Rules held against a tally: what they find lacking, and what exceeded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from kdaverify.checks.status import Status
from kdaverify.verdicts.columns import polars
from kdaverify.verdicts.rules import Limit, Rules
from kdaverify.verdicts.seal import Account, Expected
from kdaverify.verdicts.tally import VerdictCounts, VerdictKind

if TYPE_CHECKING:
    import polars as pl

DECLARED: Final = "declared"
"""In rules, the operator that the implementation declares."""
AXES: Final = ("property", "op", "dtype", "regime", "output")
SHARES: Final = ("skipped", "vacuous", "acquitted")
"""Statistics that are shares of all verdicts."""


def lacking(
    rules: Rules, counted: VerdictCounts, expected: Expected, accounts: Sequence[Account]
) -> tuple[str, ...]:
    """What the rules want and lack, heaviest first, of what applies to the implementation."""
    profiles = sorted({account.profile for account in accounts} - {*rules.profiles})
    gaps = (
        [f"the session ran profile {', '.join(profiles)}, wanted {' or '.join(rules.profiles)}"]
        if rules.profiles and profiles
        else []
    )
    proofs = [(kind, times) for kind, times in counted.kinds.items() if kind.proves()]
    return (*gaps, *_too_few(rules, proofs, expected), *_uncovered(rules, expected))


def _too_few(
    rules: Rules, proofs: list[tuple[VerdictKind, int]], expected: Expected
) -> Iterator[str]:
    """What has fewer passes than wanted; the decision reports what is declared without any."""
    require, least = rules.require, rules.at_least
    axes = (
        ("op", tuple(expected.op if op == DECLARED else op for op in require.ops), (), least.op),
        ("dtype", require.dtypes, expected.dtypes, least.dtype),
        ("regime", require.regimes, (), least.regime),
        ("property", require.properties, expected.properties, least.property),
    )
    total = sum(times for _, times in proofs)
    if 0 < total < least.total:
        yield f"{total} passes in all, wanted {least.total}"
    for axis, required, declared, wanted in axes:
        for name in _all(required, declared):
            found = sum(times for kind, times in proofs if getattr(kind, axis) == name)
            if (
                found < wanted
                and (found or name not in declared)
                and not (axis == "property" and name in expected.not_applicable)
            ):
                yield f"{_passes(found)} for {axis} {name}, wanted {wanted}"
    for output, dtype in product(
        _all(require.outputs, expected.outputs), _all(require.dtypes, expected.dtypes)
    ):
        found = sum(times for kind, times in proofs if (kind.output, kind.dtype) == (output, dtype))
        if found < least.output and (
            found or output not in expected.outputs or dtype not in expected.dtypes
        ):
            yield f"{_passes(found)} for {output} in {dtype}, wanted {least.output}"


def _uncovered(rules: Rules, expected: Expected) -> Iterator[str]:
    """The combinations of which too small a share was judged."""
    judged = {one.name: one for one in expected.covered}
    for name, wanted in (("pairs", rules.at_least.pairs), ("triples", rules.at_least.triples)):
        if wanted and name not in judged:
            yield f"the record states no coverage of {name}, wanted {wanted:.0%}"
        elif wanted and judged[name].share < wanted:
            yield f"{judged[name]}, wanted {wanted:.0%}"


def _all(required: Sequence[str], declared: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*required, *declared)))


def _passes(count: int) -> str:
    return "1 pass" if count == 1 else f"{count or 'no'} passes"


def exceeded(rules: Rules, rows: pl.DataFrame) -> tuple[str, ...]:
    """The limits that are exceeded, a sentence each."""
    return tuple(filter(None, (_over(limit, rows) for limit in rules.limits)))


def _over(limit: Limit, rows: pl.DataFrame) -> str:
    """What is said of a limit; "" where it holds."""
    tested = {axis: getattr(limit, axis) for axis in AXES if getattr(limit, axis) != "*"}
    for axis, glob in tested.items():
        names = [name for name in rows[axis].unique().to_list() if fnmatchcase(name, glob)]
        rows = rows.filter(polars("limits").col(axis).is_in(names))
    found = _measured(limit.statistic, rows)
    where = " ".join(f"{axis} {glob}" for axis, glob in tested.items()) or "all verdicts"
    if found is None:
        return f"{limit.statistic} of {where}: nothing to measure, at most {limit.most:g} wanted"
    if found <= limit.most:
        return ""
    return f"{limit.statistic} of {where}: {found:.3g}, at most {limit.most:g} wanted"


def _measured(statistic: str, rows: pl.DataFrame) -> float | None:
    pl = polars("limits")
    if statistic in SHARES:
        passed = pl.col("status") == Status.PASS
        of = {
            "skipped": pl.col("status") == Status.SKIP,
            "vacuous": passed & (pl.col("vacuous").list.len() > 0),
            "acquitted": passed & pl.col("recheck").is_not_null(),
        }
        return rows.select(of[statistic].mean()).item() if rows.height else None
    ratios = rows["ratio"].drop_nulls()
    figures: dict[str, Any] = {
        "worst": ratios.max,
        "median": ratios.median,
        "q99": lambda: ratios.quantile(0.99, "higher"),
    }
    return figures[statistic]() if ratios.len() else None
