"""The ledger: the accepted precision of an implementation on a device, never worse."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kdaverify.checks.median_limit import median_limit
from kdaverify.checks.property_table import named
from kdaverify.checks.status import Status
from kdaverify.verdicts.columns import polars
from kdaverify.verdicts.toml_file import FileError
from kdaverify.verdicts.verdict import NAME_FIELDS, identity

if TYPE_CHECKING:
    import polars as pl

LIMIT: Final = 1.02
"""The lower limit of the median of ratios, new over accepted, must not be above it. Chosen:
problems of the panel are fixed, so that an unchanged kernel has a ratio of 1. A change that is no
loss and is rejected would show it too small."""
# As of re-tests: of a hundred outputs that got no worse, chance holds up one.
CONFIDENCE: Final = 0.99
FEWEST: Final = 7
"""Cases below which even the smallest ratio is no lower limit of the median at 99 %: six ratios all
lie above the median with probability 2^-6 = 1.6 %, seven with 0.8 %."""
FLOOR: Final = 1e-3
"""Shares of the tolerance below it are alike: chosen, as ratios of errors near 0 are of any
size."""
PANEL: Final = "panel"
FIXED: Final = named(lambda found: found.fixed)
"""Suites that test the cases of the panel."""

_HEAD: Final = (
    "# Accepted precision: the share of the tolerance in every case of the fixed panel. Written by"
    " `kdaverify ledger accept`.\n"
)
_LINE: Final = re.compile(r"(\d\.\d{3}e[+-]\d\d)  (\S.*)")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9+=,_-]")


@dataclass(frozen=True)
class Against:
    """A run held against the ledger.

    Args:
        worse: outputs that got worse over the panel, a sentence each.
        missing: what the ledger has and the run has not.
        reported: what the run has in addition.
    """

    worse: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    reported: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ledger:
    """A folder with one file for every implementation and device.

    Raises:
        FileError: there is no such folder.
    """

    folder: Path

    def __post_init__(self) -> None:
        if not self.folder.is_dir():
            raise FileError(
                f"ledger: no folder {self.folder}; `kdaverify ledger accept RECORD --ledger"
                f" {self.folder}` begins one"
            )

    def against(self, implementation: str, rows: pl.DataFrame) -> Against:
        """Holds the panel of a run against what was accepted, device by device.

        Raises:
            FileError: a file is none of the ledger's.
        """
        found = [
            self._device(implementation, device, cases) for device, cases in panel(rows).items()
        ]
        if not found:
            return Against(
                missing=("no case of the fixed panel was judged, and the ledger is about these",)
            )
        parts = zip(*((one.worse, one.missing, one.reported) for one in found), strict=True)
        return Against(*(tuple(said for part in kind for said in part) for kind in parts))

    def _device(self, implementation: str, device: str, cases: Mapping[str, float]) -> Against:
        path = self.folder / file_name(implementation, device)
        if not path.exists():
            return Against(
                missing=(
                    (
                        f"no accepted precision on {device}: `kdaverify ledger accept RECORD"
                        f" --ledger {self.folder}`"
                    ),
                )
            )
        accepted = read(path, implementation, device)
        absent = [name for name in accepted if name not in cases]
        new = [name for name in cases if name not in accepted]
        if absent:
            missing = (
                (
                    f"of the ledger's cases {len(absent)} did not pass or were not judged, the"
                    f" first {absent[0]}"
                ),
            )
        else:
            missing = ()
        reported = (f"of the panel's cases {len(new)} are not in the ledger yet",) if new else ()
        return Against(tuple(_worse(accepted, cases)), missing, reported)


def _worse(accepted: Mapping[str, float], cases: Mapping[str, float]) -> list[str]:
    """Of every format and output whether it got worse, by the median over the panel's cases."""
    ratios: dict[str, list[float]] = {}
    for name in accepted.keys() & cases.keys():
        _, dtype, _, _, output, *_ = name.split("/")
        ratio = max(cases[name], FLOOR) / max(accepted[name], FLOOR)
        for group in (f"{output} in {dtype}", f"everything in {dtype}"):
            ratios.setdefault(group, []).append(ratio)
    limits = {
        group: median_limit(found, CONFIDENCE)
        for group, found in ratios.items()
        if len(found) >= FEWEST
    }
    over = sorted(
        ((limit, group) for group, limit in limits.items() if limit > LIMIT), reverse=True
    )
    return [
        f"{group} got worse than the ledger: median"
        f" {sorted(ratios[group])[(len(ratios[group]) - 1) // 2]:.3g} times the accepted error over"
        f" {len(ratios[group])} panel cases (lower {CONFIDENCE:.0%} confidence limit"
        f" {limit:.3g}; at most {LIMIT})"
        for limit, group in over
    ]


def panel(rows: pl.DataFrame) -> dict[str, dict[str, float]]:
    """The share of the tolerance of every passed case of the fixed panel, by device and by name."""
    pl = polars("the ledger")
    tested = rows.filter(pl.col("property") == PANEL)["case"].unique()
    of = pl.col("property").is_in(FIXED) & pl.col("case").is_in(tested.to_list())
    kept = rows.filter(of & (pl.col("status") == Status.PASS) & pl.col("ratio").is_not_null())
    found: dict[str, dict[str, float]] = {}
    for device, mode, ratio, *about in kept.select(
        "device", "mode", "ratio", *NAME_FIELDS
    ).iter_rows():
        cases, name = found.setdefault(f"{device}-{mode}", {}), identity(about)
        cases[name] = max(ratio, cases.get(name, 0.0))
    return found


def file_name(implementation: str, device: str) -> str:
    """The name of a file: letters, digits and a few signs; all else becomes an underscore."""
    return f"{_UNSAFE.sub('_', implementation)}.{_UNSAFE.sub('_', device)}.txt"


def text(implementation: str, device: str, cases: Mapping[str, float]) -> str:
    """A file of the ledger: one line a case, sorted by name."""
    lines = [f"{_plain(f'{share:.3e}  {name}')}\n" for name, share in sorted(cases.items())]
    return f"{_heading(implementation, device)}{''.join(lines)}"


def _heading(implementation: str, device: str) -> str:
    return f"{_HEAD}{_plain(f'# {implementation} on {device}')}\n"


def read(path: Path, implementation: str, device: str) -> dict[str, float]:
    """The cases of a file.

    Raises:
        FileError: it is another implementation's or device's, or a line is no case.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"ledger: {path} cannot be read: {error}") from None
    heading = _heading(implementation, device)
    if not content.startswith(heading):
        raise FileError(
            f"ledger: {path} is not of {implementation} on {device}; its second line says of what"
            " it is"
        )
    found: dict[str, float] = {}
    for number, line in enumerate(content[len(heading) :].splitlines(), start=3):
        share = _LINE.fullmatch(line)
        if share is None or share[2].count("/") < 4 or share[2] in found:
            wanted = "a share of the tolerance and the name of a case, once"
            raise FileError(f"ledger: {path}: line {number}: wanted {wanted}, got {line[:120]!r}")
        found[share[2]] = float(share[1])
    if not found:
        raise FileError(f"ledger: {path} has no case; accept a record into it, or delete it")
    return found


def _plain(line: str) -> str:
    """One line, whatever names it is made of."""
    return "".join(sign if sign.isprintable() else f"\\x{ord(sign):02x}" for sign in line)


def loosened(old: Mapping[str, float], new: Mapping[str, float]) -> Sequence[str]:
    """Cases that a new file would let be worse, or leave out."""
    return sorted(
        name for name, share in old.items() if new.get(name, float("inf")) > share * LIMIT
    )
