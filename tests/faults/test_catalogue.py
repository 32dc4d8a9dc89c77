"""Every fault of the catalogue is there: off it is the embedded kernel to the bit, on it changes
what it says on the inputs it says.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from kdaverify.adapters import AdapterError, find
from kdaverify.adapters.eager import EAGER
from kdaverify.adapters.stages import StageArguments, chain, formats_of
from kdaverify.budgets.formats import FORMATS
from kdaverify.faults import catalogue
from kdaverify.faults.adapter import Faulty, unpatched
from kdaverify.faults.catalogue import FAULTS, NOT_RECREATED
from kdaverify.faults.fault import KINDS, STRENGTHS, Fault
from kdaverify.faults.planted.catalogue import PLANTED
from kdaverify.faults.planted.questions import QUESTIONS
from kdaverify.problems import Problem, cotangents
from tests.faults.showing import conforming, rms, shows
from tests.faults.triggers import PLAIN, TRIGGERS
from tests.rows import ROOT

SURVEY = json.loads(Path(__file__).with_name("survey.json").read_text())
EVERY_FAULT = tuple(FAULTS.values())
RUNNABLE = tuple(fault for fault in EVERY_FAULT if fault.operator == "kda")
"""Of KDA; test_other_operators.py has the others."""
TRIGGERED = tuple(fault for fault in RUNNABLE if TRIGGERS[fault.id].how != "own")
GRADED = tuple(
    fault for fault in TRIGGERED if fault.graded and TRIGGERS[fault.id].how in ("call", "step")
)


def named(fault: Fault) -> str:
    return fault.id


def test_every_entry_of_the_survey_is_re_created_or_says_why_not() -> None:
    known = [*FAULTS, *(gap.id for gap in NOT_RECREATED)]
    assert sorted(known) == sorted(SURVEY)
    assert sum(len(stage.FAULTS) for stage in catalogue.MODULES) == len(FAULTS)
    assert all(len(gap.why) > 40 for gap in NOT_RECREATED)


def test_references_and_classes_are_those_of_the_survey() -> None:
    for fault in EVERY_FAULT:
        reference, kind = SURVEY[fault.id]
        assert (fault.reference, fault.kind) == (reference, kind), fault.id


def test_every_fault_has_a_trigger_and_a_class() -> None:
    assert set(TRIGGERS) == {fault.id for fault in RUNNABLE}
    assert all(fault.kind in KINDS and fault.outputs and fault.trigger for fault in EVERY_FAULT)


def test_a_compilers_error_is_no_race() -> None:
    """Faults that give the same outputs on every call are compared like those of other classes."""
    exceptions = {fault.id: fault.random for fault in EVERY_FAULT if fault.varies is not None}
    assert exceptions == {"WU9": False, "B21": False, "L6": True}
    assert all(fault.random is (fault.kind == "D") for fault in EVERY_FAULT if fault.varies is None)


def test_the_reference_page_holds_the_catalogue() -> None:
    page = (ROOT / "docs" / "faults.md").read_text().splitlines()
    rows = [
        f"| {fault.id} | {fault.stage} | {fault.kind} | {fault.title} | {fault.trigger} |"
        f" {', '.join(fault.outputs)} | {fault.reference} |"
        for fault in EVERY_FAULT
    ]
    gaps = [f"| {gap.id} | {gap.why} | {gap.reference} |" for gap in NOT_RECREATED]
    listed = [
        line
        for line in page
        if line.startswith("| ")
        and not line.startswith(("| id |", "| class", "| key", "| kind", "| `"))
    ]
    kinds = [f"| {name} | {kind.about} |" for name, kind in QUESTIONS.items()]
    planted = [
        f"| {fault.id} | {fault.question} | {fault.trigger} | {fault.profile} |"
        for fault in PLANTED.values()
    ]
    assert listed == [
        *(f"| {kind} | {about} |" for kind, about in KINDS.items()),
        *rows,
        *gaps,
        *kinds,
        *planted,
    ]


@pytest.mark.parametrize("fault", RUNNABLE, ids=named)
def test_with_the_patch_off_it_is_the_embedded_kernel_to_the_bit(fault: Fault) -> None:
    problem = Problem.model_validate({**PLAIN, "T": 70, "dtype": fault.dtypes[-1]})
    x, given, off = problem.inputs(), cotangents(problem, "both"), unpatched(fault)
    pairs = [
        *zip(vars(off.forward(x)).values(), vars(EAGER.forward(x)).values(), strict=True),
        *zip(
            off.gradients(x, given).named().values(),
            EAGER.gradients(x, given).named().values(),
            strict=True,
        ),
    ]
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("fault", TRIGGERED, ids=named)
def test_on_its_trigger_it_changes_what_it_names(fault: Fault) -> None:
    assert shows(Faulty(fault), TRIGGERS[fault.id])


@pytest.mark.parametrize("fault", RUNNABLE, ids=named)
def test_every_stage_can_be_called_by_itself(fault: Fault) -> None:
    problem = Problem.model_validate(
        {**PLAIN, "T": 70, "lengths": (40, 0, 30), "dtype": fault.dtypes[0]}
    )
    given, calls = cotangents(problem, "both"), find(f"fault:{fault.id}").stages(problem.dtype)
    formats = formats_of(EAGER.contract(problem.dtype), FORMATS[problem.dtype])
    written = chain(
        calls,
        StageArguments(
            problem.inputs(), {k: v for k, v in vars(given).items() if v is not None}, 64, formats
        ),
    )
    assert {name for call in calls.values() for name in call.gives} == set(written)


@pytest.mark.rotates
@pytest.mark.parametrize("fault", GRADED, ids=named)
def test_a_weaker_fault_has_a_smaller_effect(fault: Fault) -> None:
    trigger = TRIGGERS[fault.id]
    problem = trigger.problem(fault.dtypes)
    x, right = problem.inputs(), conforming(problem, trigger.how)[0]
    names = [name for name in fault.outputs if name in right]

    def effect(strength: float) -> float:
        adapter = Faulty(fault, strength)
        output = (adapter.step if trigger.how == "step" else adapter.forward)(x.copied())
        return max(rms(getattr(output, name) - right[name]) for name in names)

    assert effect(STRENGTHS[-1]) < effect(1.0)


def test_random_faults_differ_from_call_to_call_and_repeat_by_case() -> None:
    x = Problem.model_validate(PLAIN).inputs()

    def struck(case: str) -> list[bool]:
        adapter = find("fault:A8")
        adapter.begin(case)
        right = EAGER.forward(x).o
        return [not torch.equal(adapter.forward(x).o, right) for _ in range(12)]

    assert struck("one") == struck("one")
    assert 0 < sum(struck("one")) < 12


def test_a_fault_is_found_by_its_id_and_strength() -> None:
    assert find("fault:H1").name == "fault:H1"
    assert find("fault:H1@0.25").name == "fault:H1@0.25"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("fault:H99", "no fault named 'H99'; did you mean"),
        ("fault:H1@2", "wanted a strength of (0, 1], such as 0.25"),
        ("fault:H1@strong", "wanted a strength of (0, 1]"),
        ("fault:A3@0.5", "it is there or not; leave out @0.5"),
        ("fault:SO3", "not re-created: rows past the end"),
    ],
)
def test_what_is_no_fault_says_what_to_do(spec: str, said: str) -> None:
    with pytest.raises(AdapterError) as caught:
        find(spec)
    assert said in str(caught.value)
