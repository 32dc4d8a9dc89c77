"""A race that one kind of failure shows is named in the others, and the outputs that differ are."""

from __future__ import annotations

import torch

from kdaverify.checks.status import Status
from kdaverify.diagnosis import session
from kdaverify.diagnosis.answer import KernelErrors
from kdaverify.diagnosis.races import Race
from kdaverify.diagnosis.words import DIFFERS, FITS, PERHAPS
from tests.rows import row

ONE, TWO = torch.ones(4), 2 * torch.ones(4)


def test_the_outputs_that_differ_are_named() -> None:
    first, second = KernelErrors({"o": ONE, "s": ONE}), KernelErrors({"o": ONE, "s": TWO})
    assert Race(((first, 3), (second, 1))).outputs == ("s",)


def test_where_some_calls_fail_all_outputs_differ() -> None:
    answer, failed = KernelErrors({"o": ONE, "s": ONE}), KernelErrors({}, Status.ERROR)
    assert Race(((failed, 3), (answer, 1))).outputs == ("o", "s")
    assert Race(((failed, 3), (KernelErrors({}, Status.NONFINITE), 1))).outputs == ("call",)


def test_a_race_of_one_kind_is_named_in_kinds_without_a_cause() -> None:
    kinds = [
        row(Status.FAIL, property=name, case=f"kda-{name}", problem="{}")
        for name in ("forward", "resume", "packing", "laws")
    ]
    own = (f"{DIFFERS}: 3 of 24 calls", "no known bug matches", f"{FITS}known bug H1", "")
    found = {kind.case_key(): {"diagnosis": said} for kind, said in zip(kinds, own, strict=True)}
    shared = session._with_races(found, kinds)  # pyright: ignore[reportPrivateUsage]
    head = f"{PERHAPS}{DIFFERS} in forward o"
    assert [one["diagnosis"] for one in shared.values()] == [
        own[0],
        f"{head}; {own[1]}",
        own[2],
        head,
    ]
    without = {key: {"diagnosis": "no known bug matches"} for key in found}
    assert session._with_races(without, kinds) == without  # pyright: ignore[reportPrivateUsage]
