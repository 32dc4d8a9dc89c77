"""Export, run and score give what judging in this process gives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.declaration import declared
from kdaverify.adapters.exchange.declared import adapter_of
from kdaverify.checks.status import Status
from kdaverify.verdicts.verdict import Verdict
from tests.adapters.exchange.conftest import (
    WORDS,
    Export,
    Question,
    answered,
    judged,
    right,
    scored,
)
from tests.rows import ROOT

KERNELS = ROOT / "tests/adapters/numpy_kda.py"
APART: dict[str, Any] = {
    "duration_s": 0.0,
    "versions": {},
    "mode": "",
    "replay": "",
    "implementation": "",
}


def alike(verdicts: list[Verdict]) -> list[Verdict]:
    return [verdict.model_copy(update=APART) for verdict in verdicts]


def in_process(words: dict[str, str]) -> Adapter:
    declaration = declared({**WORDS, **words})
    return adapter_of(declaration, lambda arguments: right(**arguments))


def test_a_right_kernel_gets_the_verdicts_it_gets_in_this_process(
    export: Export, questions: list[Question]
) -> None:
    verdicts = scored(answered(export()), questions)
    assert {verdict.status for verdict in verdicts} == {Status.PASS}
    assert alike(verdicts) == alike(judged(in_process({}), questions))
    assert {verdict.mode for verdict in verdicts} == {"offline"}
    assert {verdict.versions["torch"] for verdict in verdicts} == {"9.9"}
    assert "port:right, outputs/00001-0.safetensors" in {
        verdict.versions["kernel"] for verdict in verdicts
    }


@pytest.mark.parametrize(
    "words",
    [
        {"layout": "bhtd", "state": "vk"},
        {"layout": "thd", "gate": "log2"},
        {"gate": "decay", "beta": "logit", "scale": "folded"},
    ],
)
def test_a_wrong_kernel_gets_the_same_figures_in_any_conventions(
    export: Export, questions: list[Question], words: dict[str, str]
) -> None:
    def off(q: Any, k: Any, v: Any, g: Any, beta: Any, **named: Any) -> Any:
        return right(q, k, v, -g.abs(), beta.abs().clamp(max=1), **named)

    def call(arguments: dict[str, Any]) -> Any:
        return off(**arguments)

    # Read in any conventions but the canonical ones this kernel is wrong, and so is every figure,
    # in the same way.
    words = {**words, "packing": "cu_seqlens"} if words.get("layout") == "thd" else words
    there = scored(answered(export(**words), off), questions)
    here = judged(adapter_of(declared({**WORDS, **words}), call), questions)
    assert [(v.status, v.value, v.ratio) for v in there] == [
        (v.status, v.value, v.ratio) for v in here
    ]
    assert any(verdict.status.rejects for verdict in there)


def test_nothing_is_judged_while_calls_are_written_down(
    export: Export, questions: list[Question], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        pytest.fail("the standard was made")

    monkeypatch.setattr("kdaverify.operators.kda.operator.standard", fails)
    manifest = json.loads((export() / "manifest.json").read_text())
    assert [len(case["calls"]) for case in manifest["cases"]] == [1, 5, 3]


def test_a_resumed_call_names_the_call_whose_state_it_takes(export: Export) -> None:
    cases = json.loads((export() / "manifest.json").read_text())["cases"]
    links = [[call["links"] for call in case["calls"]] for case in cases]
    files = [call["file"] for call in cases[1]["calls"]]
    assert links[1] == [{}, *({"initial_state": [file, "final_state"]} for file in files[:-1])]
    assert not any(links[0] + links[2])
    assert [call["entry"] for call in cases[1]["calls"]] == [
        "forward",
        "step",
        "step",
        "step",
        "forward",
    ]


def test_the_manifest_says_what_is_wanted(export: Export) -> None:
    manifest = json.loads((export(layout="bhtd", state="vk") / "manifest.json").read_text())
    outputs = manifest["cases"][0]["calls"][0]["outputs"]
    assert outputs["o"] == {"shape": [1, 2, 7, 3], "dtype": "float32"}
    assert outputs["final_state"] == {"shape": [1, 2, 3, 4], "dtype": "float32"}
    assert manifest["keywords"] == ["scale", "initial_state", "cu_seqlens"]
    assert manifest["declaration"]["contract"] == "recurrent-fp32"


def test_a_case_tested_twice_is_written_once(export: Export, questions: list[Question]) -> None:
    once = export()
    questions.append(questions[0])
    twice = export("again")
    for path in once.rglob("*.*"):
        assert path.read_bytes() == (twice / path.relative_to(once)).read_bytes(), path


def run(folder: Path, function: str) -> subprocess.CompletedProcess[bytes]:
    command = [
        sys.executable,
        str(folder / "run.py"),
        f"{KERNELS}:{function}",
        "--framework",
        "numpy",
    ]
    return subprocess.run(command, cwd=folder.parent, capture_output=True, timeout=120, check=False)


def test_the_runner_has_at_most_eighty_lines(export: Export) -> None:
    assert len((export() / "run.py").read_text().splitlines()) <= 80


def test_the_runner_keeps_going_says_what_failed_and_goes_on_where_it_stopped(
    export: Export, questions: list[Question]
) -> None:
    folder = export()
    done = run(folder, "breaks")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(b"\r9 of 9 calls\n1 failed; outputs/*.error says why\n")
    assert (
        "ValueError: seven is too many (numpy_kda.py:71 in breaks)"
        in (folder / "outputs/00001-0.safetensors.error").read_text()
    )
    failing = [
        verdict for verdict in scored(folder, questions) if verdict.status is not Status.PASS
    ]
    assert [(verdict.case, verdict.status) for verdict in failing] == [
        (questions[0][1].id, Status.ERROR)
    ]
    assert (
        "outputs/00001-0.safetensors: the kernel raised ValueError: seven is too many"
        " (numpy_kda.py:71 in breaks)" in failing[0].message
    )
    written = {path: path.stat().st_mtime_ns for path in folder.glob("outputs/*.safetensors")}
    assert run(folder, "kda").stdout.startswith(b"\r1 of 1 calls\n0 failed")
    assert all(path.stat().st_mtime_ns == time for path, time in written.items())
    verdicts = scored(folder, questions)
    assert {verdict.status for verdict in verdicts} == {Status.PASS}
    assert verdicts[0].versions["kernel"].startswith(f"{KERNELS}:kda, ")


def test_a_call_that_ends_the_runner_comes_last_the_next_time(
    export: Export, questions: list[Question]
) -> None:
    folder = export()
    assert run(folder, "exits").returncode == 9
    assert run(folder, "exits").returncode == 9
    assert len(list(folder.glob("outputs/*.safetensors"))) == 8
    crashed = next(
        verdict for verdict in scored(folder, questions) if verdict.status is not Status.PASS
    )
    assert (crashed.status, crashed.case) == (Status.CRASH, questions[0][1].id)
    assert (
        "outputs/00001-0.safetensors: the kernel's process ended during this call"
        in crashed.message
    )
