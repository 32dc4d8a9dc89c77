"""Whatever comes back broken is named, and none of it is accepted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kdaverify.adapters.base import AdapterError
from kdaverify.adapters.exchange.offline import OFFLINE
from kdaverify.checks.status import Status
from kdaverify.verdicts.decision import Expected, Ruling, decide
from tests.adapters.exchange.conftest import Export, Question, answered, scored

FILE = "outputs/00001-0.safetensors"
OTHER = "outputs/00002-0.safetensors"
Spoil = Callable[[Path], None]


def rewritten(
    change: Callable[[dict[str, Tensor]], dict[str, Tensor]], *, about: bool = True
) -> Spoil:
    """The file again, with other tensors."""

    def spoil(folder: Path) -> None:
        from safetensors import safe_open

        with safe_open(folder / FILE, "pt") as file:
            said: Any = file.metadata()
        save_file(change(load_file(folder / FILE)), folder / FILE, metadata=said if about else None)

    return spoil


def cut(folder: Path) -> None:
    content = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(content[: len(content) // 2])


SPOILT: dict[str, tuple[Spoil, Status, str]] = {
    "missing": (
        lambda folder: (folder / FILE).unlink(),
        Status.UNANSWERED,
        "is not there; run run.py",
    ),
    "truncated": (cut, Status.ERROR, "cut off or damaged"),
    "empty": (lambda folder: (folder / FILE).write_bytes(b""), Status.ERROR, "cut off or damaged"),
    "junk": (
        lambda folder: (folder / FILE).write_bytes(b"junk" * 99),
        Status.ERROR,
        "cut off or damaged",
    ),
    "a folder": (
        lambda folder: ((folder / FILE).unlink(), (folder / FILE).mkdir())[0],
        Status.ERROR,
        "cut off or damaged",
    ),
    "other dtype": (
        rewritten(lambda x: {**x, "o": x["o"].double()}),
        Status.DTYPE,
        "wanted torch.float32",
    ),
    "other shape": (
        rewritten(lambda x: {**x, "o": x["o"][:, 1:].contiguous()}),
        Status.SHAPE,
        "wanted shape [1, 7, 2, 3]",
    ),
    "NaN": (rewritten(lambda x: {**x, "o": x["o"] * torch.nan}), Status.NONFINITE, "not finite"),
    "no o": (
        rewritten(lambda x: {"final_state": x["final_state"]}),
        Status.MISSING,
        "o: wanted a tensor",
    ),
    "no state": (
        rewritten(lambda x: {"o": x["o"]}),
        Status.MISSING,
        "final_state: wanted a tensor",
    ),
    "more": (rewritten(lambda x: {**x, "lse": x["o"].clone()}), Status.ERROR, "got lse too"),
    "unsigned": (rewritten(dict, about=False), Status.ERROR, "made from other inputs"),
    "of another call": (
        lambda folder: shutil.copy(folder / OTHER, folder / FILE),
        Status.ERROR,
        "made from other inputs",
    ),
}  # pyright: ignore[reportAssignmentType] # what a spoiler returns is not looked at


@pytest.mark.parametrize("kind", SPOILT)
def test_a_bad_file_is_named_and_not_accepted(
    export: Export, questions: list[Question], kind: str
) -> None:
    spoil, status, said = SPOILT[kind]
    folder = answered(export())
    spoil(folder)
    bad = [verdict for verdict in scored(folder, questions) if verdict.status is not Status.PASS]
    assert {(verdict.case, verdict.status) for verdict in bad} == {(questions[0][1].id, status)}
    assert said in bad[0].message
    assert FILE in bad[0].message


def test_outputs_made_from_another_state_than_the_one_here_are_refused(
    export: Export, questions: list[Question]
) -> None:
    folder = answered(export())
    first = folder / OTHER
    rewritten_elsewhere = {name: tensor * 1.0001 for name, tensor in load_file(first).items()}
    from safetensors import safe_open

    with safe_open(first, "pt") as file:
        said: Any = file.metadata()
    save_file(rewritten_elsewhere, first, metadata=said)
    (bad,) = [verdict for verdict in scored(folder, questions) if verdict.status is not Status.PASS]
    assert (bad.property, bad.status) == ("resume", Status.ERROR)
    assert (
        "outputs/00002-1.safetensors: wanted outputs for inputs/00002-1.safetensors as it is here"
        in bad.message
    )


def test_missing_outputs_are_not_enough_evidence_and_wrong_ones_a_rejection(
    export: Export, questions: list[Question]
) -> None:
    folder = answered(export())
    (folder / FILE).unlink()
    expected = Expected("port", ("fp32", "bf16"), ("o", "final_state"), ("resume", "packing"))
    decision = decide(scored(folder, questions), expected)
    assert (decision.ruling, decision.cases, decision.skipped, decision.failures) == (
        Ruling.INSUFFICIENT,
        2,
        0,
        (),
    )
    assert decision.reasons[0].startswith(f"1 case without outputs: {FILE}: is not there")
    rewritten_file = folder / "outputs/00003-0.safetensors"
    rewritten_file.write_bytes(b"")
    assert decide(scored(folder, questions), expected).ruling is Ruling.REJECT


def edited(change: Callable[[dict[str, Any]], object]) -> Spoil:
    """The manifest with one thing changed."""

    def spoil(folder: Path) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        change(manifest)
        (folder / "manifest.json").write_text(json.dumps(manifest))

    return spoil


def change_input(folder: Path) -> None:
    tensors = load_file(folder / "inputs/00001-0.safetensors")
    tensors["q"][0, 0, 0, 0] += 1
    save_file(tensors, folder / "inputs/00001-0.safetensors")


HARNESS: dict[str, tuple[Spoil, str]] = {
    "extra output": (
        lambda folder: shutil.copy(folder / FILE, folder / "outputs/00009-0.safetensors"),
        "outputs/00009-0.safetensors: no call",
    ),
    "extra note": (
        lambda folder: (folder / "outputs/notes.txt").write_text("mine"),
        "outputs/notes.txt: no call of this export",
    ),
    "changed input": (change_input, "inputs/00001-0.safetensors: missing, or not as exported"),
    "missing input": (
        lambda folder: (folder / "inputs/00003-1.safetensors").unlink(),
        "inputs/00003-1.safetensors: missing",
    ),
    "looser contract": (
        edited(lambda manifest: manifest["declaration"].update(contract="chunk64-bf16")),
        "manifest.json: is not as it was exported",
    ),
    "other seed": (
        edited(lambda manifest: manifest.update(seed=1)),
        "manifest.json: is not as it was exported",
    ),
    "dropped case": (
        edited(lambda manifest: manifest["cases"].pop()),
        "manifest.json: is not as it was exported",
    ),
    "unknown field": (edited(lambda manifest: manifest.update(more=1)), "manifest.json: more: "),
    "other version": (
        edited(lambda manifest: manifest.update(kdaverify="0.0.1")),
        "got 0.0.1; score with the version that exported",
    ),
    "unfinished": (
        edited(lambda manifest: manifest.update(digest="")),
        "the export was not completed",
    ),
    "cut off": (
        lambda folder: (folder / "manifest.json").write_text("{"),
        "manifest.json: cannot be read",
    ),
    "no manifest": (
        lambda folder: (folder / "manifest.json").unlink(),
        "manifest.json: no such file",
    ),
}  # pyright: ignore[reportAssignmentType] # what a spoiler returns is not looked at


@pytest.mark.parametrize("kind", HARNESS)
def test_a_folder_that_is_not_what_was_exported_is_refused_before_anything_is_judged(
    export: Export, kind: str
) -> None:
    spoil, said = HARNESS[kind]
    folder = answered(export())
    spoil(folder)
    with pytest.raises(AdapterError) as refusal:
        OFFLINE.configured({"score": str(folder)})
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_question_that_was_not_exported_is_the_harness_own_fault(
    export: Export, questions: list[Question]
) -> None:
    folder = answered(export())
    (name, problem, detail), *_ = questions
    with pytest.raises(
        AdapterError, match=r"holds no case forward .* --profile smoke --kda-seed 0"
    ):
        scored(folder, [(name, problem.replace(seed=8), detail)])


def test_other_tensors_than_exported_are_the_harness_own_fault(
    export: Export, questions: list[Question], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = answered(export())

    def other(path: Path) -> dict[str, Tensor]:
        return {"q": torch.zeros(1)}

    monkeypatch.setattr("kdaverify.adapters.exchange.playback.load_file", other)
    with pytest.raises(
        AdapterError, match=r"inputs/00001-0.safetensors: holds no call of this version"
    ):
        scored(folder, questions)


def test_a_folder_that_is_in_use_is_not_exported_to(export: Export, tmp_path: Path) -> None:
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases/mine.txt").touch()
    with pytest.raises(AdapterError, match="cases: is not empty; name a new folder"):
        export()
