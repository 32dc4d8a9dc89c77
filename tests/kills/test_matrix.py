"""What rows say together: counts, thresholds, survivors, false alarms."""

from __future__ import annotations

import json
from io import StringIO

from rich.console import Console

from kdaverify.faults.catalogue import FAULTS
from kdaverify.faults.conforming_kernels import CONFORMING
from kdaverify.kills.known_faults import SURVIVORS
from kdaverify.kills.matrix import KillMatrix, matrix
from kdaverify.kills.page import show
from kdaverify.kills.plan import Plan, chosen
from kdaverify.kills.rows import ConformingRow, FaultRow
from kdaverify.plugin.expected import shipped
from tests.kills.rows import ACCEPTANCE, SMOKE, attempt, conforming_row, fault_row, kill

DEAD = fault_row("H1", attempt(1.0), attempt(0.5), attempt(0.25, killed=False))
ALIVE = (
    fault_row("S26", attempt(killed=False)),
    fault_row("S26", attempt(killed=False, profile=ACCEPTANCE), profile=ACCEPTANCE),
)
LATE = (
    fault_row("H2", attempt(killed=False)),
    fault_row("H2", attempt(profile=ACCEPTANCE), profile=ACCEPTANCE),
)


def made(*rows: FaultRow | ConformingRow, conforming: bool = False) -> KillMatrix:
    return matrix(Plan(tuple(chosen("H1,H2,S26")), ACCEPTANCE, conforming=conforming), rows)


def test_the_public_keys_count_what_was_tested() -> None:
    reported = made(
        DEAD, *ALIVE, *LATE, conforming_row(), conforming_row("eager-recurrent")
    ).reported()
    assert (
        reported["total"],
        reported["killed"],
        reported["killed_under_smoke"],
        reported["unfinished"],
    ) == (
        3,
        2,
        1,
        0,
    )
    assert (reported["legal_runs"], reported["false_alarms"]) == (200, 0)
    assert {fault["id"]: fault["killed"] for fault in reported["faults"]} == {
        "H1": True,
        "H2": True,
        "S26": False,
    }


def test_the_threshold_is_the_smallest_strength_killed() -> None:
    (reported,) = (fault for fault in made(DEAD).reported()["faults"] if fault["id"] == "H1")
    assert reported["threshold"] == {
        "strength": 0.5,
        "ratio": 20.0,
        "over_family": 30.0,
    } and reported["survives_at"] == [0.25]


def test_what_is_infinite_is_json_all_the_same() -> None:
    row = fault_row(
        "H1", attempt(1.0), attempt(0.5).model_copy(update={"kill": kill(ratio=float("inf"))})
    )
    (reported,) = (fault for fault in made(row).reported()["faults"] if fault["id"] == "H1")
    assert '"ratio": "Infinity"' in json.dumps(reported["threshold"], allow_nan=False)


def test_a_survivor_of_smoke_alone_is_not_finished() -> None:
    reported = made(DEAD, ALIVE[0]).reported()
    assert (reported["total"], reported["unfinished"]) == (1, 2)


def test_suites_of_one_kernel_are_one_row_and_those_left_are_counted() -> None:
    alarm = conforming_row(suite="laws", runs=5, false_alarms=("o is off",))
    reported = made(
        conforming_row(suite="drift"),
        alarm,
        conforming_row(suite="laws", profile=ACCEPTANCE),
        conforming=True,
    ).reported()
    found = [(row["profile"], row["runs"], row["false_alarms"]) for row in reported["legal"]]
    assert found == [(ACCEPTANCE, 100, []), (SMOKE, 105, ["o is off"])]
    assert reported["legal_suites_unfinished"] == 2 * len(CONFORMING) * len(shipped()) - 3


def test_the_page_shows_survivors_and_false_alarms() -> None:
    page = StringIO()
    show(
        Console(file=page, width=160),
        made(DEAD, *ALIVE, conforming_row(false_alarms=("o is off; kdaverify replay",))),
    )
    text = page.getvalue()
    assert (
        "killed: 1 of 2 faults (50.0%), 1 of them under smoke; 1 not finished; conforming kernels:"
        " 1 false alarms in 100 runs" in text
    )
    assert "false alarm: eager: o is off; kdaverify replay" in text
    assert "survivors" in text and "S26" in text


def test_every_reason_belongs_to_a_fault_and_says_which_kind_it_is() -> None:
    assert set(SURVIVORS) <= set(FAULTS)
    assert all(
        why.startswith(("equivalent: ", "below the noise: ", "gap: ")) for why in SURVIVORS.values()
    )
