"""Stages of a kernel in a worker process: what it gives, what it edits and how it dies are what
they would be here.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from kdaverify.checks.location import FEEDS
from kdaverify.checks.stages import stages
from kdaverify.checks.status import Status
from kdaverify.problems import Problem
from tests.checks import staged
from tests.checks.staged import StageArguments, Staged, first_wrong, tables

RIGHT = Staged("right")
EDITS = Staged("edits", ("state", staged.input_overwritten))
TRUNCATES = Staged("truncates", tables(solve=staged.truncated_neumann))


def _dies(x: StageArguments, written: dict[str, torch.Tensor]) -> Any:
    os._exit(3)


DIES = Staged("dies", ("wy", _dies))


PROBLEM = Problem.from_json(
    '{"B":1,"H":1,"HV":2,"K":8,"T":71,"V":8,"beta":"one","dtype":"bf16","gate":"slow",'
    '"key":"coherent-0.9","lengths":[5,66],"op":"kda","seed":2,"state":"random","value":"normal"}'
)


def test_a_stage_gives_there_what_it_gives_here(isolated: Any) -> None:
    adapter = isolated("RIGHT")
    for feed in FEEDS:
        here, there = (stages(which, PROBLEM, feed=feed) for which in (RIGHT, adapter))
        assert [(outcome.output, outcome.message) for outcome in here] == [
            (outcome.output, outcome.message) for outcome in there
        ]


def test_an_edited_input_and_a_dead_process_are_reported_of_their_stage(isolated: Any) -> None:
    rejected = [outcome for outcome in stages(isolated("EDITS"), PROBLEM) if outcome.status.rejects]
    assert [(outcome.output, outcome.status) for outcome in rejected] == [
        ("state", Status.MUTATED_INPUT)
    ]
    dead = isolated("DIES")
    rejected = [outcome for outcome in stages(dead, PROBLEM) if outcome.status.rejects]
    assert [(outcome.output, outcome.status) for outcome in rejected] == [("wy", Status.CRASH)]
    assert first_wrong(dead, PROBLEM) == "wy"


def test_the_first_wrong_stage_is_found_across_processes(isolated: Any) -> None:
    assert first_wrong(isolated("TRUNCATES"), PROBLEM) == "solve"
