"""A small export: three questions of the suites, a runner, and outputs of a right kernel."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.declaration import declared
from kdaverify.adapters.exchange.manifest import Manifest
from kdaverify.adapters.exchange.offline import OFFLINE
from kdaverify.adapters.exchange.recorder import RUNNER, Recorder, prepare
from kdaverify.verdicts.judge import FatalRejection, Judge, Rejected
from kdaverify.verdicts.verdict import Verdict
from oracles.inputs import Inputs
from oracles.recurrence import recurrence
from tests.adapters.standins import PACK, MakeProblem

Question = tuple[str, Any, dict[str, Any]]
Export = Callable[..., Path]
WORDS = {
    "name": "port",
    "contract": "recurrent-fp32",
    "packing": "cu_seqlens",
    "dtypes": "fp32+bf16",
}


def right(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    *,
    scale: Any = None,
    initial_state: Any = None,
    cu_seqlens: Any = None,
) -> Any:
    """The definition, in float64 inside."""
    o, final_state = recurrence(Inputs(q, k, v, g, beta, scale, initial_state, cu_seqlens))
    return o.to(q.dtype), final_state.float()


@pytest.fixture
def questions(make_problem: MakeProblem) -> list[Question]:
    return [
        ("forward", make_problem(B=1, T=7, H=1, HV=2, K=4, V=3), {}),
        (
            "resume",
            make_problem(B=1, T=9, H=1, HV=1, K=4, V=3, dtype="bf16"),
            {"cut": 4, "way": "chunk-step"},
        ),
        (
            "packing",
            make_problem(B=1, T=sum(PACK) + 2, lengths=PACK, H=1, HV=1, K=4, V=3, state="random"),
            {"arrangement": "alone"},
        ),
    ]


@pytest.fixture
def export(tmp_path: Path, questions: list[Question]) -> Export:
    """Exports the questions under a declaration."""

    def call(name: str = "cases", **changes: str) -> Path:
        folder = tmp_path / name
        declaration = declared({**WORDS, **changes})
        draft = Manifest.draft(declaration, profile="smoke", seed=0)
        prepare(folder, draft)
        recorder = Recorder(folder, draft)
        judged(recorder, questions)
        recorder.finish()
        return folder

    return call


def answered(folder: Path, function: Callable[..., Any] = right) -> Path:
    """The folder after its runner has called `function`, in this process."""
    spec = importlib.util.spec_from_file_location("standalone_run", RUNNER)
    assert spec is not None and spec.loader is not None
    runner: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runner)
    manifest = json.loads((folder / "manifest.json").read_text())
    functions = {"forward": function, "step": function}
    for case in manifest["cases"]:
        for call in case["calls"]:
            runner.answer(
                call,
                manifest,
                functions,
                "torch",
                {"function": "port:right", "torch": "9.9"},
                folder,
            )
    return folder


def judged(adapter: Adapter, questions: list[Question]) -> list[Verdict]:
    """The verdicts on every question, all outputs of it."""
    verdicts: list[Verdict] = []
    for name, problem, detail in questions:
        try:
            Judge(adapter, verdicts.append, name)(problem, **detail)
        except (Rejected, FatalRejection):
            continue
    return verdicts


def scored(folder: Path, questions: list[Question]) -> list[Verdict]:
    return judged(OFFLINE.configured({"score": str(folder)}), questions)
